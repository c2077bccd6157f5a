// How fast ranks on GPUs meet: the five calls of backend/cuda/device_collectives.h over NCCL and whatever joins this
// machine's GPUs, each rank a process with a GPU of its own, beside plain copies from GPU 0 to GPU 1.
//
//     tools/gpu_bundle.sh build-gpu && build-gpu/tools/bench_collectives_cuda [--ranks 2,4,8] [--kib 4,16384]
//
// A share is as NCCL's own tests count bus bandwidth: a GPU sends 2 (n - 1) / n of an all-reduce's bytes over its link,
// (n - 1) / n of an all-gather's. Behind the calls stand sums over ranks with the norm that follows, of rows of 4,096
// numbers in bf16: "all" rows on all GPUs, summed in the order of ranks or "nccl" by its all-reduce, and each GPU's "own"
// rows (backend/cuda/divided_rows.h, whose reckoned border stands beside them); then hidden states before rows, which a
// layer takes that drafts over divided keys and values (tools/cuda_bench_hidden.h). Numbers of ranks for which there are
// too few GPUs are left out. Exit code 77: there are fewer than two GPUs, so nothing was timed.
#include "backend/cuda/device_collectives.h"
#include "backend/cuda/divided_rows.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rank_parts.h"
#include "kernels/cuda/tuning.h"
#include "tools/collectives_bench.h"
#include "tools/cuda_bench.h"
#include "tools/cuda_bench_hidden.h"

namespace llmb::bench {
namespace {

constexpr int kTooFewGpus = 77;

// Copies from GPU `from`, which is the current one, to GPU `to` go the direct way if there is one. False: by the host.
bool open_direct_way(int from, int to) {
#ifdef LLMB_SIMT
  return from != to;  // all its devices lie in one memory
#else
  int can = 0;
  if (cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || can == 0) return false;
  return cudaDeviceEnablePeerAccess(to, 0) == cudaSuccess;
#endif
}

class DeviceCalls final : public RankCalls {
 public:
  DeviceCalls(const DeviceCollectives& ranks, const CollectivesOptions& options)
      : ranks_(ranks), options_(options), data_(options.max_bytes()), all_(options.max_bytes()) {
    if (ranks_.rank() != 0) return;
    const bool is_direct = open_direct_way(0, 1);
    check(cudaSetDevice(1), "cudaSetDevice");
    peer_ = Copies(options.max_bytes());
    check(cudaSetDevice(0), "cudaSetDevice");
    std::printf("%d ranks; GPU 0 reaches GPU 1 %s\n", ranks_.size(), is_direct ? "directly" : "through the host");
  }

  void write(const std::vector<float>& values) override {
    check(cudaMemcpy(data_.at<void>(0), values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  std::vector<float> read(Call call, int64_t count) override {
    std::vector<float> values(static_cast<size_t>(count));
    const Copies& from = call == Call::kAllGather ? all_ : data_;
    check(cudaMemcpy(values.data(), from.at<void>(0), values.size() * sizeof(float), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return values;
  }

  void run(Call call, int64_t bytes, int num_calls) override {
    for (int i = 0; i < num_calls; ++i) queue(call, bytes);
    stream_.synchronize();
  }

  double limit_s(Call call, int64_t bytes) override {
    const auto size = static_cast<double>(ranks_.size());
    const double others = (size - 1) / size;
    const double share = call == Call::kAllReduce ? 2 * others : call == Call::kAllGather ? others : 1;
    return share * copy_s(bytes);
  }
  bool is_limit_of_all() const override { return false; }

 private:
  void queue(Call call, int64_t bytes) const {
    const int rank = ranks_.rank(), partner = rank ^ 1;
    float* const data = data_.at<float>(0);
    const int64_t count = bytes / int64_t{sizeof(float)};
    switch (call) {
      case Call::kBroadcast:
        return ranks_.broadcast(data, bytes, ranks_.size() - 1, stream_.get());
      case Call::kAllReduce:
        return ranks_.all_reduce(data, DType::kF32, count, stream_.get());
      case Call::kAllGather:
        return ranks_.all_gather(data, count / ranks_.size() * int64_t{sizeof(float)}, all_.at<void>(0), stream_.get());
      case Call::kSendReceive:
        if (rank % 2 == 0) ranks_.send(data, bytes, partner, stream_.get());
        ranks_.receive(data, bytes, partner, stream_.get());
        if (rank % 2 == 1) ranks_.send(data, bytes, partner, stream_.get());
    }
  }

  // Seconds of a copy to GPU 1.
  double copy_s(int64_t bytes) const {
    const auto copies_s = [&](int num_copies) {
      stream_.synchronize();
      const double begin = seconds_now();
      for (int i = 0; i < num_copies; ++i)
        check(cudaMemcpyAsync(peer_.at<void>(0), data_.at<void>(0), static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                              stream_.get()),
              "cudaMemcpyAsync");
      stream_.synchronize();
      return (seconds_now() - begin) / num_copies;
    };
    const int num_copies = std::clamp(static_cast<int>(options_.round_ms / 1e3 / std::max(copies_s(1), 1e-7)), 1, 2000);
    std::vector<double> rounds;
    for (int i = 0; i < options_.repeats; ++i) rounds.push_back(copies_s(num_copies));
    return median(rounds);
  }

  const DeviceCollectives& ranks_;
  const CollectivesOptions options_;
  const cuda::Stream stream_;
  const Copies data_, all_;
  Copies peer_;  // rank 0's, on GPU 1
};

#ifdef LLMB_SIMT
constexpr int64_t kMostRows = 18;  // a processor computes them
constexpr int64_t kHiddenWidth = 264;
const std::vector<int32_t> kHiddenRows = {1, 5};
#else
constexpr int64_t kMostRows = 16384;
constexpr int64_t kHiddenWidth = 8192;
const std::vector<int32_t> kHiddenRows = {1, 32, 256};
#endif

enum class RowsWay { kNccl, kAll, kOwn };

// Sums of rows over ranks, and the norm behind each.
class NormedRows {
 public:
  static constexpr int64_t kWidth = 4096;
  using T = __nv_bfloat16;

  NormedRows(const DeviceCollectives& ranks, int64_t max_rows)
      : ranks_(ranks),
        room_(rows_of_each(max_rows, ranks.size()) * ranks.size()),
        x_(room_ * kWidth * int64_t{sizeof(T)}),
        parts_(ranks.size() * x_.bytes()),
        residual_(room_ * kWidth * int64_t{sizeof(float)}),
        weight_(kWidth * int64_t{sizeof(float)}) {
    for (const cuda::DeviceMemory* memory : {&x_, &parts_, &residual_, &weight_})
      check(cudaMemset(memory->data(), 0, static_cast<size_t>(memory->bytes())), "cudaMemset");
  }

  // Throws where divided rows give other bytes than rows that all ranks do. Leaves zeros.
  void check_ways(int64_t rows) {
    const std::vector<uint16_t> all = result(RowsWay::kAll, rows), own = result(RowsWay::kOwn, rows);
    if (all != own) throw std::runtime_error("divided rows give other sums and norms, of " + std::to_string(rows));
    result(RowsWay::kAll, 0);
  }

  // Seconds of each of so many.
  double time_s(RowsWay way, int64_t rows, int num_times) {
    stream_.synchronize();
    const double begin = seconds_now();
    for (int i = 0; i < num_times; ++i) run(way, rows);
    stream_.synchronize();
    return (seconds_now() - begin) / num_times;
  }

 private:
  std::vector<uint16_t> result(RowsWay way, int64_t rows) {
    std::vector<uint16_t> x(static_cast<size_t>(room_ * kWidth));  // from 1 to 2, in bf16
    for (size_t i = 0; i < static_cast<size_t>(rows * kWidth); ++i)
      x[i] = static_cast<uint16_t>(0x3F80 + (i * 7 + static_cast<size_t>(ranks_.rank()) * 31) % 128);
    const std::vector<float> ones(kWidth, 1);
    check(cudaMemset(residual_.data(), 0, static_cast<size_t>(residual_.bytes())), "cudaMemset");
    check(cudaMemcpy(x_.data(), x.data(), static_cast<size_t>(x_.bytes()), cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaMemcpy(weight_.data(), ones.data(), static_cast<size_t>(weight_.bytes()), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    if (rows > 0) run(way, rows);
    stream_.synchronize();
    x.resize(static_cast<size_t>(rows * kWidth));
    check(cudaMemcpy(x.data(), x_.data(), x.size() * sizeof(uint16_t), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return x;
  }

  void run(RowsWay way, int64_t rows) {
    const int64_t row_bytes = kWidth * int64_t{sizeof(T)};
    const auto stream = stream_.get();
    T* const x = x_.data<T>();
    if (way != RowsWay::kOwn) {
      if (way == RowsWay::kNccl) {
        ranks_.all_reduce(x, DType::kBF16, rows * kWidth, stream);
      } else {
        ranks_.all_gather(x, rows * row_bytes, parts_.data(), stream);
        cuda::sum_parts(parts_.data<const T>(), ranks_.size(), rows * kWidth, x, stream);
      }
      return norm(0, rows);
    }
    const int64_t each = rows_of_each(rows, ranks_.size());
    const Range own = rows_of_rank(rows, ranks_.size(), ranks_.rank());
    ranks_.exchange(x, each * row_bytes, each * row_bytes, parts_.data(), stream);
    cuda::sum_other_parts(parts_.data<const T>(), ranks_.size(), ranks_.rank(), each * kWidth,
                          x + ranks_.rank() * each * kWidth, stream);
    norm(own.begin, own.count());
    ranks_.all_gather(x + ranks_.rank() * each * kWidth, each * row_bytes, x, stream);
  }
  void norm(int64_t first, int64_t rows) {
    T* const x = x_.data<T>() + first * kWidth;
    cuda::add_rms_norm(residual_.data<float>() + first * kWidth, x, weight_.data<const float>(), 1e-5f, rows, kWidth, x,
                       stream_.get());
  }

  const DeviceCollectives& ranks_;
  const cuda::Stream stream_;
  const int64_t room_;
  const cuda::DeviceMemory x_, parts_, residual_, weight_;
};

void time_rows(const CollectivesOptions& options, const DeviceCollectives& ranks, Collectives& host) {
  const int64_t most = std::min(kMostRows, options.max_bytes() / (NormedRows::kWidth * 2));
  if (most == 0) return;
  NormedRows bench(ranks, most);
  const auto from = [&](bool deterministic) {
    const DividedRowsCase c{ranks.size(), NormedRows::kWidth, 2, deterministic};
    return static_cast<long long>(min_divided_rows(c, cuda::tuning::kMeetingUs));
  };
  if (ranks.rank() == 0)
    std::printf("sum and norm, %d ranks: us a call; reckoned: own rows from %lld on beside all, %lld beside nccl\n"
                "%8s %10s %10s %10s\n",
                ranks.size(), from(true), from(false), "rows", "all", "nccl", "own");
  for (int64_t rows = 1; rows <= most; rows *= 4) {
    double us[3] = {};
    bench.check_ways(rows);
    for (const RowsWay way : {RowsWay::kAll, RowsWay::kNccl, RowsWay::kOwn}) {
      wait_for_all(host);
      const double once = bench.time_s(way, rows, 1);
      int num_times = std::clamp(static_cast<int>(options.round_ms / 1e3 / std::max(once, 1e-7)), 1, 2000);
      host.broadcast(&num_times, sizeof num_times, 0);
      std::vector<double> rounds;
      for (int i = 0; i < options.repeats; ++i) rounds.push_back(bench.time_s(way, rows, num_times));
      us[way == RowsWay::kAll ? 0 : way == RowsWay::kNccl ? 1 : 2] = 1e6 * median(rounds);
    }
    if (ranks.rank() == 0)
      std::printf("%8lld %10.2f %10.2f %10.2f\n", static_cast<long long>(rows), us[0], us[1], us[2]);
  }
  if (ranks.rank() == 0) std::fflush(stdout);
}

// In a process of its own: a process that has asked CUDA for anything cannot be forked.
int count_gpus() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    int count = 0;
    ::_exit(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
  }
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

void be_rank(const CollectivesOptions& options, const std::shared_ptr<SharedRanks>& ranks, int rank) {
  check(cudaSetDevice(rank), "cudaSetDevice");
  const auto host = SharedRanks::join(ranks, 0, rank);
  const auto device = DeviceCollectives::make(*host, [&] { return !ranks->failure().ok(); });
  if (!device.ok()) throw std::runtime_error(device.status().message());
  DeviceCalls calls(**device, options);
  CollectivesBench(options, *host, calls).run();
  time_rows(options, **device, *host);
  time_hidden(options, **device, *host, kHiddenRows, kHiddenWidth);
}

int run(const CollectivesOptions& options) {
  const int num_gpus = count_gpus();
  if (num_gpus < 2) {
    std::printf("bench_collectives_cuda: ranks need two GPUs, and there are %d: nothing was timed\n", num_gpus);
    return kTooFewGpus;
  }
  CollectivesBench::print_header("what a GPU sends in the call, by plain copies from GPU 0 to GPU 1");
  for (const int num_ranks : options.ranks) {
    if (num_ranks > num_gpus) {
      std::printf("%d ranks: left out, there are %d GPUs\n", num_ranks, num_gpus);
      continue;
    }
    ChannelMembers all;
    for (int rank = 0; rank < num_ranks; ++rank) all.ranks.push_back(rank);
    const auto ranks = SharedRanks::create(num_ranks, {all});
    if (!ranks.ok()) throw std::runtime_error(ranks.status().message());
    const int code = run_rank_processes(num_ranks, "bench_collectives_cuda",
                                        [&](int rank) { be_rank(options, *ranks, rank); });
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace
}  // namespace llmb::bench

int main(int argc, char** argv) {
  llmb::bench::CollectivesOptions options;
  options.ranks = {2, 4, 8};
  return llmb::bench::run_collectives_bench(argc, argv, "bench_collectives_cuda",
                                            "Times the calls in which ranks on GPUs meet.", options, llmb::bench::run);
}
