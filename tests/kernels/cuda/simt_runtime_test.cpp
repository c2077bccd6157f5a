// The host SIMT layer's CUDA runtime: when queued work runs, memory, failing calls, graphs.
#ifdef LLMB_SIMT
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/memory.h"
#include "tests/support/device_array.h"

namespace llmb::cuda {

namespace {

using test::DeviceArray;

__global__ void add_kernel(int* value, int amount) { *value += amount; }
__global__ void copy_kernel(const int* from, int* to) { *to = *from; }

void add(int* value, int amount, const Stream& stream) {
  launch({dim3(1), dim3(1), 0, stream.get()}, add_kernel, value, amount);
}

// ---- when work runs -----------------------------------------------------------------------------------------------

TEST_CASE("queued work runs when it is waited for, not before") {
  const Stream stream;
  PinnedMemory pinned(4);
  DeviceArray<int> value(std::vector<int>{1});
  add(value.data(), 5, stream);
  check(cudaMemcpyAsync(pinned.data(), value.data(), 4, cudaMemcpyDeviceToHost, stream.get()), "copy");
  CHECK(*pinned.data<int>() == -1);  // fresh memory is all 0xFF
  stream.synchronize();
  CHECK(*pinned.data<int>() == 6);
}

TEST_CASE("a pinned buffer that is reused too early shows, pageable memory may be reused at once") {
  const Stream stream;
  PinnedMemory pinned(4);
  DeviceArray<int> values(2);
  int pageable = 7;
  *pinned.data<int>() = 7;
  check(cudaMemcpyAsync(values.data(), pinned.data(), 4, cudaMemcpyHostToDevice, stream.get()), "copy");
  check(cudaMemcpyAsync(values.data() + 1, &pageable, 4, cudaMemcpyHostToDevice, stream.get()), "copy");
  *pinned.data<int>() = pageable = 8;
  CHECK(values.holds(std::vector<int>{8, 7}));
}

TEST_CASE("streams go their own ways until an event joins them") {
  const Stream first, second;
  const Event done;
  DeviceArray<int> value(std::vector<int>{1}), seen(std::vector<int>{0, 0});
  add(value.data(), 1, first);
  done.record(first.get());
  launch({dim3(1), dim3(1), 0, second.get()}, copy_kernel, value.data(),
         seen.data());  // nothing says that 1 + 1 is done
  check(cudaStreamWaitEvent(second.get(), done.get()), "wait");
  launch({dim3(1), dim3(1), 0, second.get()}, copy_kernel, value.data(), seen.data() + 1);
  second.synchronize();
  CHECK(seen.holds(std::vector<int>{1, 2}));
}

TEST_CASE("the default stream and blocking streams take turns") {
  cudaStream_t blocking = nullptr;
  check(cudaStreamCreate(&blocking), "cudaStreamCreate");
  DeviceArray<int> value(std::vector<int>{1}), seen(1);
  launch({dim3(1), dim3(1), 0, blocking}, add_kernel, value.data(), 1);
  launch({dim3(1), dim3(1)}, copy_kernel, value.data(), seen.data());
  check(cudaStreamSynchronize(nullptr), "synchronize");
  CHECK(seen.holds(std::vector<int>{2}));
  check(cudaStreamDestroy(blocking), "destroy");
}

TEST_CASE("a question lets one piece of work through") {
  const Stream stream;
  const Event event(cudaEventDefault);
  DeviceArray<int> value(std::vector<int>{0});
  add(value.data(), 1, stream);
  event.record(stream.get());
  CHECK(cudaEventQuery(event.get()) == cudaErrorNotReady);
  CHECK(cudaEventQuery(event.get()) == cudaErrorNotReady);
  CHECK(cudaEventQuery(event.get()) == cudaSuccess);
  CHECK(cudaStreamQuery(stream.get()) == cudaSuccess);
  add(value.data(), 1, stream);
  CHECK(cudaStreamQuery(stream.get()) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(stream.get()) == cudaSuccess);
}

TEST_CASE("the time between two events is not negative, and known only when both have happened") {
  const Stream stream;
  const Event begin(cudaEventDefault), end(cudaEventDefault), without_time;
  begin.record(stream.get());
  end.record(stream.get());
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()) == cudaErrorNotReady);
  end.synchronize();
  CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()) == cudaSuccess);
  CHECK(milliseconds >= 0);
  without_time.record(stream.get());
  CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), without_time.get()) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("eager work runs as it is queued") {
  ::llmb::simt::set_eager_percent(100);
  const Stream stream;
  PinnedMemory pinned(4);
  DeviceArray<int> value(std::vector<int>{9});
  check(cudaMemcpyAsync(pinned.data(), value.data(), 4, cudaMemcpyDeviceToHost, stream.get()), "copy");
  CHECK(*pinned.data<int>() == 9);
  ::llmb::simt::set_eager_percent(0);
}

// ---- memory -------------------------------------------------------------------------------------------------------

TEST_CASE("device memory has a size, which allocations use up") {
  const size_t before = ::llmb::simt::device_bytes_in_use();
  ::llmb::simt::set_device_bytes(before + 1000);
  size_t free_bytes = 0, total_bytes = 0;
  {
    const DeviceMemory memory(600);
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    CHECK(free_bytes == 400);
    CHECK(total_bytes == before + 1000);
    void* more = nullptr;
    CHECK(cudaMalloc(&more, 401) == cudaErrorMemoryAllocation);
    CHECK(more == nullptr);
    const DeviceMemory fits(400);
  }
  CHECK(::llmb::simt::device_bytes_in_use() == before);
  ::llmb::simt::set_device_bytes(size_t{8} << 30);
}

TEST_CASE("copies outside allocations, or of the wrong kind, are refused") {
  DeviceArray<int> values(4);
  int host[4] = {};
  const DeviceMemory memory(16);
  CHECK(cudaMemcpy(memory.data(), host, 16, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(memory.data(), host, 17, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host, memory.data(), 16, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host, host, 16, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaMemset(memory.data(), 0, 17) == cudaErrorInvalidValue);
  CHECK(cudaFree(host) == cudaErrorInvalidValue);
}

TEST_CASE("pitched copies move rows") {
  const Stream stream;
  DeviceArray<int> from(std::vector<int>{1, 2, 3, 4, 5, 6}), to(std::vector<int>(8, 0));
  check(cudaMemcpy2DAsync(to.data(), 16, from.data(), 12, 8, 2, cudaMemcpyDeviceToDevice, stream.get()), "copy");
  CHECK(to.holds(std::vector<int>{1, 2, 0, 0, 4, 5, 0, 0}));
}

TEST_CASE("more than 48 KB of shared memory has to be asked for, more than 227 KB there is not") {
  const auto* kernel = reinterpret_cast<const void*>(&add_kernel);
  int num_blocks = -1;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&num_blocks, kernel, 128, 100 << 10) == cudaSuccess);
  CHECK(num_blocks == 0);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) + 1) ==
        cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10) == cudaSuccess);
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&num_blocks, kernel, 128, 100 << 10) == cudaSuccess);
  CHECK(num_blocks == 2);
}

// ---- failing calls --------------------------------------------------------------------------------------------------

TEST_CASE("the n-th call fails, once or for ever") {
  int count = 0;
  ::llmb::simt::fail_call_after(1, cudaErrorECCUncorrectable);
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(cudaGetDeviceCount(&count) == cudaErrorECCUncorrectable);
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  ::llmb::simt::fail_call_after(0, cudaErrorIllegalAddress, true);
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  CHECK(cudaPeekAtLastError() == cudaErrorIllegalAddress);
  ::llmb::simt::clear_failure();
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(std::string(cudaGetErrorName(cudaErrorIllegalAddress)) == "cudaErrorIllegalAddress");
}

TEST_CASE("a machine without a GPU") {
  ::llmb::simt::set_num_devices(0);
  int count = -1;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  CHECK(count == 0);
  CHECK(cudaSetDevice(0) == cudaErrorInvalidDevice);
  ::llmb::simt::set_num_devices(1);
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

struct Graph {
  cudaGraphExec_t executable = nullptr;
  size_t num_nodes = 0;
  ~Graph() { cudaGraphExecDestroy(executable); }
};

template <class Record>
void record(Graph* result, const Stream& stream, Record&& work) {
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin");
  work();
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream.get(), &graph), "end");
  check(cudaGraphGetNodes(graph, nullptr, &result->num_nodes), "nodes");
  check(cudaGraphInstantiate(&result->executable, graph, 0), "instantiate");
  check(cudaGraphDestroy(graph), "destroy");
}

TEST_CASE("a graph runs what was recorded, as often as it is launched, with the memory's contents of that time") {
  const Stream stream;
  PinnedMemory pinned(4);
  DeviceArray<int> amount(1), total(std::vector<int>{100});
  Graph graph;
  record(&graph, stream, [&] {
    check(cudaMemcpyAsync(amount.data(), pinned.data(), 4, cudaMemcpyHostToDevice, stream.get()), "copy");
    add(total.data(), 1, stream);
    check(cudaMemsetAsync(amount.data(), 0, 4, stream.get()), "memset");
  });
  CHECK(graph.num_nodes == 3);
  CHECK(total.holds(std::vector<int>{100}));  // recording runs nothing
  for (int i = 0; i < 3; ++i) check(cudaGraphLaunch(graph.executable, stream.get()), "launch");
  CHECK(total.holds(std::vector<int>{103}));
  CHECK(amount.holds(std::vector<int>{0}));
}

TEST_CASE("a recording takes other streams in by events, and wants them back") {
  const Stream stream, side;
  const Event fork, join;
  DeviceArray<int> value(std::vector<int>{0}), side_value(std::vector<int>{0}), seen(1);
  const auto work = [&](bool joined) {
    add(value.data(), 1, stream);
    fork.record(stream.get());
    check(cudaStreamWaitEvent(side.get(), fork.get()), "wait");
    launch({dim3(1), dim3(1), 0, side.get()}, copy_kernel, value.data(), side_value.data());
    join.record(side.get());
    if (joined) check(cudaStreamWaitEvent(stream.get(), join.get()), "wait");
    launch({dim3(1), dim3(1), 0, stream.get()}, copy_kernel, side_value.data(), seen.data());
  };
  for (uint64_t seed = 0; seed < 5; ++seed) {
    ::llmb::simt::set_seed(seed);
    value.upload(std::vector<int>{41});
    Graph graph;
    record(&graph, stream, [&] { work(true); });
    check(cudaGraphLaunch(graph.executable, stream.get()), "launch");
    CHECK(seen.holds(std::vector<int>{42}));
  }
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin");
  work(false);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream.get(), &graph) == cudaErrorStreamCaptureUnjoined);
  CHECK(graph == nullptr);
}

TEST_CASE("what may not be recorded spoils the recording, and the stream can be used again") {
  const Stream stream;
  DeviceArray<int> value(std::vector<int>{0});
  const auto spoils = [&](auto&& call) {
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin");
    CHECK(call() == cudaErrorStreamCaptureUnsupported);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream.get(), &status), "status");
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream.get(), &graph) == cudaErrorStreamCaptureInvalidated);
    add(value.data(), 1, stream);
    stream.synchronize();
  };
  int host = 0;
  void* memory = nullptr;
  spoils([&] { return cudaStreamSynchronize(stream.get()); });
  spoils([&] { return cudaDeviceSynchronize(); });
  spoils([&] { return cudaMalloc(&memory, 16); });
  spoils([&] { return cudaMemcpyAsync(value.data(), &host, 4, cudaMemcpyHostToDevice, stream.get()); });
  CHECK(value.holds(std::vector<int>{4}));
}

}  // namespace

}  // namespace llmb::cuda
#endif
