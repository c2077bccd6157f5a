// Settings of the host SIMT layer for tests: the order of threads, failing calls, the size of the device.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/simt/runtime.h"

namespace llmb::simt {

// The order of threads, warps and blocks in all launches from now on; at the start LLMB_SIMT_SEED, or 0.
void set_seed(uint64_t seed);

// The call after `num_calls` more calls of the runtime returns `error`; with `sticky` all later ones too, as after a
// fault of the device. clear_failure() ends it.
void fail_call_after(uint64_t num_calls, cudaError_t error, bool sticky = false);
void clear_failure();
uint64_t num_calls();
// How many calls found that what they wait for had not run yet: events and streams that the host synchronises with.
uint64_t num_waits();

// How many grids have run whose kernel's name holds `part`, those of graphs too.
uint64_t num_runs(const std::string& part);

// Device memory: how much there is (8 GiB at the start), and how much is taken.
void set_device_bytes(size_t num_bytes);
size_t device_bytes_in_use();
// How many pieces of device and of pinned memory have been handed out since the start.
uint64_t num_allocations();

// The percentage of work that runs as soon as it is queued, drawn by the seed. 0 at the start: all work waits.
void set_eager_percent(uint32_t percent);

// The device's properties: compute capability (9, 0 at the start) and multiprocessors (4 at the start); 0 devices.
void set_compute_capability(int major, int minor);
void set_num_multiprocessors(int count);
void set_num_devices(int count);

}  // namespace llmb::simt
