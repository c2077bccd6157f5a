// The stand-in device with the settings of tests. All functions need the lock that Call holds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llmb::simt {

size_t device_bytes();
int num_devices();
size_t allowed_shared_bytes(const void* kernel);
bool draw_eager();
void count_run(const void* kernel);
// Whether [memory, memory + num_bytes) lies in one allocation of the device, or in pinned host memory.
bool in_device_memory(const void* memory, size_t num_bytes);
bool in_pinned_memory(const void* memory, size_t num_bytes);

}  // namespace llmb::simt
