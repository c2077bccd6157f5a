// How much of what rows could share is saved, on made files (sharing_workload.h), in groups, shuffled and planned, for KV
// pools of several sizes, on the ledger backend.
//
//     make tools && build/tools/bench_sharing
//
// 2026-11-22, Release, share of the possible saving, the same on every machine:
//     pool                     32 k    128 k    512 k tokens
//     documents  in groups   99.9 %   99.9 %   99.9 %
//     documents  shuffled    14.0 %   53.0 %  100.0 %
//     documents  planned     99.9 %   99.9 %   99.9 %    the shuffled rows in the planner's order
//     few_shot   in groups  100.0 %  100.0 %  100.0 %
//     few_shot   shuffled   100.0 %  100.0 %  100.0 %
//     few_shot   planned    100.0 %  100.0 %  100.0 %
//     tree       in groups  100.0 %  100.0 %  100.0 %
//     tree       shuffled    75.7 %   99.1 %  100.0 %
//     tree       planned    100.0 %  100.0 %  100.0 %
//
// Steps for the first 1,000 rows in groups with answers of 128 tokens, by --max-num-seqs; in brackets preemptions:
//     pool            32 k                         128 k tokens
//     seats         64      128     256          64      128     256
//     documents  2,064    1,049     945 (202) 2,064    1,049     557
//     few_shot   2,050    1,029     675 (263) 2,050    1,029     526
// So where rows share their prompts, twice the 64 seats halve the steps without a preemption even in the smallest pool.
// Whether a step of 128 rows takes less than two of 64 depends on the device: bench_sharing_steps measures it. In processor
// time, 7 pairs, 2026-11-23, beside other work, Zen 4 EPYC, 2 threads: 1.63 times (95 %: 1.59 to 1.86) for SmolLM2-135M in
// bf16 with 2,048 tokens shared, 1.69 times (1.66 to 1.81) for Qwen2.5-0.5B in int8 with 128 tokens shared.
#include <cstdio>
#include <memory>
#include <utility>

#include "tools/sharing_workload.h"

namespace {

void run(const char* file, const char* order, const llmb::Requests& requests) {
  for (const int32_t pool_tokens : {32 << 10, 128 << 10, 512 << 10}) {
    const llmb::SharingResult r = llmb::run_sharing_workload(requests, pool_tokens);
    const auto n = [](int64_t v) { return static_cast<long long>(v); };
    std::printf("%-10s %-10s %4d k %10lld %10lld %10lld %7.1f %% %9lld %7lld %8lld %8lld\n", file, order,
                pool_tokens >> 10, n(r.prompt_tokens.num_asked), n(r.num_possible), n(r.prompt_tokens.num_computed),
                100 * r.share_saved(), n(r.num_evictions), n(r.num_copies), n(r.num_preemptions), n(r.num_steps));
    std::fflush(stdout);
  }
}

void run_orders(const char* file, const llmb::Requests& in_groups) {
  run(file, "in groups", in_groups);
  const llmb::Requests shuffled = llmb::SharingWorkload::shuffled(in_groups);
  run(file, "shuffled", shuffled);
  run(file, "planned", llmb::planned(shuffled, llmb::Schedule::kAuto, llmb::SharingWorkload::kNumSlots));
}

void run_seats(const char* file, const llmb::Requests& requests) {
  llmb::Requests rows;
  for (size_t i = 0; i < 1000; ++i) {
    auto row = std::make_shared<llmb::Request>(*requests[i]);
    row->params.stop.max_tokens = 128;
    rows.push_back(std::move(row));
  }
  for (const int32_t pool_tokens : {32 << 10, 128 << 10}) {
    for (const int32_t num_seats : {64, 128, 256}) {
      const llmb::SharingResult r = llmb::run_sharing_workload(rows, pool_tokens, num_seats);
      std::printf("%-10s %4d k %4d seats %8lld steps %8lld preemptions\n", file, pool_tokens >> 10, num_seats,
                  static_cast<long long>(r.num_steps), static_cast<long long>(r.num_preemptions));
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main() {
  std::printf("%-10s %-10s %6s %10s %10s %10s %9s %9s %7s %8s %8s\n", "file", "rows", "pool", "asked", "possible",
              "computed", "saved", "evictions", "copies", "preempt", "steps");
  run_orders("documents", llmb::SharingWorkload::documents());
  run_orders("few_shot", llmb::SharingWorkload::few_shot());
  run_orders("tree", llmb::SharingWorkload::tree());
  run_seats("documents", llmb::SharingWorkload::documents());
  run_seats("few_shot", llmb::SharingWorkload::few_shot());
}
