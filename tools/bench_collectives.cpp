// How fast ranks on one machine's processors meet: the five calls of base/collectives.h over shared memory
// (base/shared_ranks.h), each rank a process on cores of its own, beside a plain memcpy of as many bytes by each rank at
// the same time.
//
//     make tools && build/tools/bench_collectives [--ranks 2,4] [--kib 4,16384]
//
// A rank that waits keeps its core, so more ranks than cores wait for each other's turns. Two ranks on two cores of an AMD
// EPYC 7003, 2026-11-27, nearly quiet, us of 4 KiB, 64 KiB, 1 MiB and 16 MiB: broadcast 5, 33, 350, 3803; all_reduce 5, 34,
// 327, 7321; all_gather 2, 32, 208, 5291; send, receive 6, 46, 282, 4294. From 64 KiB on that is 1.4 to 5 GB/s, from core to
// core, where each core's memcpy makes 25 to 35 GB/s in its own caches and 4.7 in memory.
#include <cstring>

#include "base/core_parts.h"
#include "base/thread_pool.h"
#include "tools/collectives_bench.h"

namespace llmb::bench {
namespace {

class SharedMemoryCalls final : public RankCalls {
 public:
  SharedMemoryCalls(Collectives& ranks, const CollectivesOptions& options)
      : ranks_(ranks), options_(options), data_(num_floats(options)), all_(num_floats(options)) {}

  void write(const std::vector<float>& values) override { std::copy(values.begin(), values.end(), data_.begin()); }
  std::vector<float> read(Call call, int64_t count) override {
    const std::vector<float>& from = call == Call::kAllGather ? all_ : data_;
    return {from.begin(), from.begin() + count};
  }

  void run(Call call, int64_t bytes, int num_calls) override {
    for (int i = 0; i < num_calls; ++i) run_once(call, bytes);
  }

  double limit_s(Call, int64_t bytes) override {
    std::vector<double> rounds;
    for (int i = 0; i < options_.repeats; ++i) {
      const double begin = seconds_now();
      int num_copies = 0;
      do {
        std::memcpy(all_.data(), data_.data(), static_cast<size_t>(bytes));
        asm volatile("" ::: "memory");  // all copies are made
        ++num_copies;
      } while (seconds_now() - begin < options_.round_ms / 1e3);
      rounds.push_back((seconds_now() - begin) / num_copies);
    }
    return median(rounds);
  }
  bool is_limit_of_all() const override { return true; }

 private:
  static size_t num_floats(const CollectivesOptions& options) {
    return static_cast<size_t>(options.max_bytes()) / sizeof(float);
  }

  void run_once(Call call, int64_t bytes) {
    const int rank = ranks_.rank(), partner = rank ^ 1;
    switch (call) {
      case Call::kBroadcast:
        return ranks_.broadcast(data_.data(), bytes, ranks_.size() - 1);
      case Call::kAllReduce:
        return ranks_.all_reduce(data_.data(), bytes / int64_t{sizeof(float)});
      case Call::kAllGather:
        return ranks_.all_gather(data_.data(), bytes / int64_t{sizeof(float)} / ranks_.size() * int64_t{sizeof(float)},
                                 all_.data());
      case Call::kSendReceive:
        if (rank % 2 == 0) ranks_.send(data_.data(), bytes, partner);
        ranks_.receive(data_.data(), bytes, partner);
        if (rank % 2 == 1) ranks_.send(data_.data(), bytes, partner);
    }
  }

  Collectives& ranks_;
  const CollectivesOptions options_;
  std::vector<float> data_, all_;
};

int run(const CollectivesOptions& options) {
  CollectivesBench::print_header("a memcpy of the call's size by each rank, all at the same time");
  for (const int num_ranks : options.ranks) {
    if (num_ranks > usable_cpu_count())
      std::printf("%d ranks share %d cores\n", num_ranks, usable_cpu_count());
    ChannelMembers all;
    for (int rank = 0; rank < num_ranks; ++rank) all.ranks.push_back(rank);
    const auto ranks = SharedRanks::create(num_ranks, {all, all});
    if (!ranks.ok()) throw std::runtime_error(ranks.status().message());
    const int code = run_rank_processes(num_ranks, "bench_collectives", [&](int rank) {
      run_on(divide_cores(usable_cpus(), num_ranks)[static_cast<size_t>(rank)]);
      const auto timed = SharedRanks::join(*ranks, 0, rank), host = SharedRanks::join(*ranks, 1, rank);
      SharedMemoryCalls calls(*timed, options);
      CollectivesBench(options, *host, calls).run();
    });
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace
}  // namespace llmb::bench

int main(int argc, char** argv) {
  return llmb::bench::run_collectives_bench(argc, argv, "bench_collectives",
                                            "Times the calls in which ranks on processors meet.", {}, llmb::bench::run);
}
