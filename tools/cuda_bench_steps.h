// Cases of bench_kernels_cuda for resolve_step and give_tokens, which frame every step: latency, not bytes.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/resolve_step.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

// `num_seqs` entries of as many rows, each behind a group in flight; all rows are sampled, as one group an entry.
inline void step_case(CudaBench& bench, int32_t num_seqs, int32_t rows_each) {
  const int32_t num_blocks = (17 + rows_each) / 16 + 1;
  const int32_t num_rows = num_seqs * rows_each;
  std::vector<cuda::StepRow> rows;
  std::vector<StepEntry> entries(static_cast<size_t>(num_seqs));
  std::vector<int32_t> block_start = {0}, counts(entries.size(), 1), num_items = {num_seqs};
  std::vector<SampleGroup> groups;
  std::vector<SampleRow> samples(static_cast<size_t>(num_rows));
  std::vector<cuda::AttentionItem> items(entries.size());
  for (int32_t e = 0; e < num_seqs; ++e) {
    entries[e].base = 16;
    entries[e].follows = e;
    entries[e].max_ahead = rows_each;
    block_start.push_back((e + 1) * num_blocks);
    groups.push_back({e, e, e * rows_each, (e + 1) * rows_each, SampleMode::kVerify});
    items[e].query_start = e * rows_each;
    items[e].num_rows = rows_each;
    for (int32_t i = 0; i < rows_each; ++i) {
      samples[rows.size()].token_row = static_cast<int32_t>(rows.size());
      rows.push_back({e, i, i});
    }
  }
  const auto send = [&](const auto& values) { return upload(values, bench.stream()); };
  const auto zeros = [&](size_t count) { return send(std::vector<int32_t>(count, 0)); };
  const Copies on_device[] = {send(rows), send(entries), send(block_start), zeros(entries.size() * static_cast<size_t>(num_blocks))};
  const Copies tokens = zeros(rows.size()), positions = zeros(rows.size()), slots = zeros(rows.size());
  const Copies sample_rows = send(samples), given = send(counts), last = zeros(2 * entries.size());
  const Copies item_list = send(items), item_count = send(num_items), group_list = send(groups);
  const Copies is_finite = send(std::vector<uint8_t>(rows.size(), 1));
  cuda::UnresolvedStep step;
  step.num_tokens = step.num_samples = num_rows;
  step.rows = on_device[0].at<cuda::StepRow>(0), step.entries = on_device[1].at<StepEntry>(0);
  step.block_start = on_device[2].at<int32_t>(0), step.block_ids = on_device[3].at<BlockId>(0);
  step.tokens = tokens.at<TokenId>(0), step.positions = positions.at<int32_t>(0), step.slots = slots.at<int32_t>(0);
  step.samples = sample_rows.at<SampleRow>(0);
  step.lists[0] = {item_list.at<cuda::AttentionItem>(0), item_count.at<int32_t>(0)};
  cuda::GroupsToGive to_give;
  to_give.num_groups = num_seqs;
  to_give.groups = group_list.at<SampleGroup>(0), to_give.samples = step.samples, to_give.tokens = step.tokens;
  to_give.sampled = tokens.at<TokenId>(0), to_give.is_finite = is_finite.at<uint8_t>(0);
  const cuda::GivenOnDevice before{given.at<int32_t>(0), last.at<TokenId>(0),
                                   last.at<TokenId>(static_cast<int64_t>(entries.size()))};
  const std::string what = std::to_string(num_seqs) + " sequences of " + std::to_string(rows_each) + " rows";
  const auto bytes_of_row = static_cast<double>(sizeof(cuda::StepRow) + sizeof(SampleRow) + 3 * sizeof(int32_t));
  bench.report_copy("resolve_step", what,
                    bench.time_s(1, [&](int) { cuda::resolve_step(step, before, bench.stream()); }),
                    num_rows * bytes_of_row);
  bench.report_copy("give_tokens", what,
                    bench.time_s(1, [&](int) { cuda::give_tokens(to_give, before, bench.stream()); }),
                    num_rows * static_cast<double>(sizeof(SampleRow) + 3 * sizeof(int32_t)));
}

inline void step_cases(CudaBench& bench, bool is_tiny) {
  step_case(bench, 1, 1);
  if (is_tiny) return;
  for (const int32_t rows_each : {1, 5}) step_case(bench, 256, rows_each);
  step_case(bench, 8, 1024);
}

}  // namespace llmb::bench
