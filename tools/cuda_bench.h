// Times work on a CUDA device as a share of a limit that was measured in the same run, and prints tables of it.
// Driven by one thread. Throws cuda::CudaError.
//
// 1. A timed call is one of many in a captured graph, so that the host's launches cost nothing, as in the engine.
// 2. Calls go over enough copies of their memory that none is left in the second-level cache, unless the copies a case
//    can have are fewer.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/types.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/machine_limits.h"
#include "kernels/cuda/memory.h"

namespace llmb::bench {

using cuda::check;

// Device memory of several copies, each begins at a multiple of 256 bytes.
class Copies {
 public:
  Copies() = default;
  Copies(int64_t bytes, int num_copies = 1)
      : stride_(ceil_div(std::max<int64_t>(bytes, 1), 256) * 256), memory_(stride_ * num_copies) {}

  template <class T>
  T* at(int copy) const {
    return reinterpret_cast<T*>(memory_.data<uint8_t>() + copy * stride_);
  }
  int64_t stride() const { return stride_; }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  int64_t stride_ = 0;
  cuda::DeviceMemory memory_;
};

template <class T>
Copies upload(const std::vector<T>& values, cudaStream_t stream) {
  const size_t bytes = values.size() * sizeof(T);
  Copies copies(static_cast<int64_t>(bytes));
  if (bytes > 0)
    check(cudaMemcpyAsync(copies.at<T>(0), values.data(), bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return copies;
}

// In units of 1 / s.
struct Limits {
  double read_bytes = 1;
  double copy_bytes = 1;  // read and written
  double bf16_flops = 1;
};

struct Settings {
  int repeats = 11;
  double min_round_ms = 1;  // a timed round holds as many calls as fill it
  int max_copies = 256;
  int64_t max_copies_bytes = int64_t{2} << 30;
  std::string json_path;  // empty: none
};

class CudaBench {
 public:
  explicit CudaBench(const Settings& settings) : settings_(settings) {
    int device = 0, l2_bytes = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaGetDeviceProperties(&properties_, device), "cudaGetDeviceProperties");
    check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute");
    l2_bytes_ = l2_bytes;
    const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    char date[16] = "";
    std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
    date_ = date;
    if (!settings_.json_path.empty() && (json_ = std::fopen(settings_.json_path.c_str(), "w")) == nullptr)
      throw std::runtime_error("cannot write " + settings_.json_path);
  }
  CudaBench(const CudaBench&) = delete;
  CudaBench& operator=(const CudaBench&) = delete;
  ~CudaBench() {
    if (json_ != nullptr) std::fclose(json_);
  }

  cudaStream_t stream() const { return stream_.get(); }
  int32_t num_sms() const { return properties_.multiProcessorCount; }
  const std::string& date() const { return date_; }
  const char* device_name() const { return properties_.name; }

  // How many copies of `bytes` a case needs so that a call finds none of its memory in the cache.
  int num_copies(int64_t bytes) const {
    const int64_t wanted = ceil_div(3 * l2_bytes_, std::max<int64_t>(bytes, 1)) + 1;
    return static_cast<int>(
        std::clamp<int64_t>(std::min(wanted, settings_.max_copies_bytes / bytes), 1, settings_.max_copies));
  }

  // Median seconds of one call. body(copy) queues the work of one call on stream(), which must be capturable.
  double time_s(int num_copies, const std::function<void(int)>& body) {
    const auto all_copies = [&] {
      for (int copy = 0; copy < num_copies; ++copy) body(copy);
    };
    all_copies();  // loads the kernels
    const double once_ms = round_ms(all_copies);
    const int turns = std::clamp(static_cast<int>(settings_.min_round_ms / std::max(once_ms, 1e-3)), 1,
                                 std::max(1, kMaxCalls / num_copies));
    check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int turn = 0; turn < turns; ++turn) all_copies();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    const auto launch = [&] { check(cudaGraphLaunch(executable, stream()), "cudaGraphLaunch"); };
    launch();
    std::vector<double> ms;
    for (int i = 0; i < settings_.repeats; ++i) ms.push_back(round_ms(launch));
    check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    std::nth_element(ms.begin(), ms.begin() + settings_.repeats / 2, ms.end());
    return std::max(ms[static_cast<size_t>(settings_.repeats / 2)], 1e-9) / 1e3 / (turns * num_copies);
  }

  // The device's limits, and their rows of the table.
  void measure_limits(int64_t bytes, const std::function<double()>& flops_per_s) {
    const Copies from(bytes), to(bytes), sink(4);
    cuda::fill_normal(from.at<float>(0), DType::kF32, bytes / 4, 1, 1, stream());
    const auto bytes_moved = static_cast<double>(bytes);
    limits_.read_bytes = bytes_moved / time_s(1, [&](int) {
                           cuda::read_memory(from.at<void>(0), bytes, sink.at<uint32_t>(0), stream());
                         });
    limits_.copy_bytes =
        2 * bytes_moved / time_s(1, [&](int) { cuda::copy_memory(from.at<void>(0), to.at<void>(0), bytes, stream()); });
    limits_.bf16_flops = flops_per_s();
    print_header();
    const std::string size = std::to_string(bytes >> 20) + " MiB";
    print("limit", "read " + size, bytes_moved / limits_.read_bytes, limits_.read_bytes, 1e9, "GB/s", 0);
    print("limit", "copy " + size, 2 * bytes_moved / limits_.copy_bytes, limits_.copy_bytes, 1e9, "GB/s", 0);
    print("limit", "bf16 matrix product", 0, limits_.bf16_flops, 1e12, "TFLOP/s", 0);
  }
  const Limits& limits() const { return limits_; }

  // A case bound by reading, by reading and writing, or by arithmetic.
  void report_read(const char* op, const std::string& shape, double seconds, double bytes) {
    print(op, shape, seconds, bytes / seconds, 1e9, "GB/s", limits_.read_bytes);
  }
  void report_copy(const char* op, const std::string& shape, double seconds, double bytes) {
    print(op, shape, seconds, bytes / seconds, 1e9, "GB/s", limits_.copy_bytes);
  }
  void report_flops(const char* op, const std::string& shape, double seconds, double flops) {
    print(op, shape, seconds, flops / seconds, 1e12, "TFLOP/s", limits_.bf16_flops);
  }
  // Bound by a link whose rate was measured by the case itself.
  void report_link(const char* op, const std::string& shape, double seconds, double bytes, double bytes_per_s) {
    print(op, shape, seconds, bytes / seconds, 1e9, "GB/s", bytes_per_s);
  }
  // Bound by whichever of the two takes longer at its limit.
  void report_either(const char* op, const std::string& shape, double seconds, double read_bytes, double flops) {
    if (read_bytes / limits_.read_bytes >= flops / limits_.bf16_flops) report_read(op, shape, seconds, read_bytes);
    else report_flops(op, shape, seconds, flops);
  }

 private:
  static constexpr int kMaxCalls = 1024;  // in a graph

  double round_ms(const std::function<void()>& work) {
    begin_.record(stream());
    work();
    end_.record(stream());
    end_.synchronize();
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), "cudaEventElapsedTime");
    return ms;
  }

  void print_header() const {
    std::printf("%s, %d SMs, %s\n", properties_.name, properties_.multiProcessorCount, date_.c_str());
    std::printf("%-18s %-46s %11s %10s %-8s %10s %7s\n", "op", "shape", "us", "value", "unit", "limit", "share");
  }

  void print(const std::string& op, const std::string& shape, double seconds, double value, double scale,
             const std::string& unit, double limit) {
    std::printf("%-18s %-46s %11.2f %10.1f %-8s ", op.c_str(), shape.c_str(), seconds * 1e6, value / scale,
                unit.c_str());
    if (limit > 0) std::printf("%10.1f %6.1f%%\n", limit / scale, 100 * value / limit);
    else std::printf("%10s %7s\n", "", "");
    std::fflush(stdout);
    if (json_ == nullptr) return;
    nlohmann::json line = {{"op", op},     {"shape", shape}, {"us", seconds * 1e6},       {"value", value / scale},
                           {"unit", unit}, {"date", date_},  {"device", properties_.name}};
    if (limit > 0) line["limit"] = limit / scale, line["share"] = value / limit;
    std::fprintf(json_, "%s\n", line.dump().c_str());
    std::fflush(json_);
  }

  const Settings settings_;
  cudaDeviceProp properties_{};
  int64_t l2_bytes_ = 0;
  std::string date_;
  std::FILE* json_ = nullptr;
  const cuda::Stream stream_;
  const cuda::Event begin_{cudaEventDefault}, end_{cudaEventDefault};
  Limits limits_;
};

// Normal values of mean 0, in each copy others.
inline Copies normal(CudaBench& bench, int64_t count, float deviation = 1, int num_copies = 1,
                     DType dtype = DType::kBF16) {
  Copies copies(count * dtype_bytes(dtype), num_copies);
  for (int c = 0; c < num_copies; ++c)
    cuda::fill_normal(copies.at<void>(c), dtype, count, deviation, static_cast<uint32_t>(c + 1), bench.stream());
  return copies;
}

}  // namespace llmb::bench
