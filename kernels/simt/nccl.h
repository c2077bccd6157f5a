// NCCL's twin for ranks on one machine, in processes of their own or as threads: the calls that kernels/cuda/nccl.h
// names, over shared memory. Thread-safe as the runtime is. `type` is NCCL's number of an element type.
//
// 1. Calls run on the stream's queue, in order with its other work; a recording holds them.
// 2. A rank whose turn comes waits for the others while it holds the layer's lock, so ranks that are threads of one
//    process must not use the layer meanwhile: each is a process of its own.
// 3. Sums are rounded to the element type behind each addition, in an order that differs from call to call and is the
//    same on all ranks.
// 4. A communicator that was aborted, and one whose ranks do not make the same call, leaves what it should have written
//    as it was and has an asynchronous error, on all its ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/simt/runtime.h"

namespace llmb::simt {

const char* nccl_error_string(int result);
int nccl_unique_id(char* id);  // [128]
int nccl_init_rank(void** comm, int size, const char* id, int rank);
int nccl_destroy(void* comm);
int nccl_abort(void* comm);
int nccl_async_error(void* comm, int* result);
int nccl_all_reduce(const void* from, void* to, size_t count, int type, void* comm, cudaStream_t stream);
int nccl_all_gather(const void* from, void* to, size_t count, int type, void* comm, cudaStream_t stream);
int nccl_broadcast(const void* from, void* to, size_t count, int type, int root, void* comm, cudaStream_t stream);
int nccl_send(const void* from, size_t count, int type, int peer, void* comm, cudaStream_t stream);
int nccl_receive(void* to, size_t count, int type, int peer, void* comm, cudaStream_t stream);
// Sends and receives of one thread, of one communicator and one stream, with ranks beside its own; nothing else.
int nccl_group_start();
int nccl_group_end();

// From now on this process waits at random before it takes part in a call; 0: not.
void delay_nccl_calls(uint64_t seed);
// How many calls of NCCL's twin this process has run.
uint64_t num_nccl_calls();

}  // namespace llmb::simt
