// Cases of bench_kernels_cuda for what one of eight GPUs does that divide keys and values by position, calls between
// them aside (tools/bench_collectives_cuda): its slices go to where the others are sent them, states of rows over them
// are made and merged, and hidden states before a step's rows are given and taken.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/rank_part.h"
#include "kernels/cuda/block_copy.h"
#include "kernels/cuda/hidden_rows.h"
#include "kernels/cuda/merge_states.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

struct SlicedModel {
  int32_t hidden, heads, kv_heads, head_dim;
  bool is_tiny;

  int32_t num_ranks() const { return is_tiny ? 2 : 8; }
  int32_t slice_tokens() const { return is_tiny ? 8 : kSliceTokens; }
};

// A layer's keys and values of this rank's part of texts with so many tokens in all, in bf16, from blocks in any order.
inline void gather_slices_case(CudaBench& bench, const SlicedModel& m, int32_t num_tokens) {
  const int32_t count = num_tokens / (m.num_ranks() * m.slice_tokens()), num_blocks = count + count / 4 + 1;
  const int64_t slice_bytes = int64_t{m.slice_tokens()} * m.kv_heads * m.head_dim * 2;
  const double bytes = 2.0 * static_cast<double>(count * slice_bytes);
  const int copies = bench.num_copies(2 * num_blocks * slice_bytes);
  const Copies pool(2 * num_blocks * slice_bytes, copies), gathered(2 * m.num_ranks() * count * slice_bytes);
  check(cudaMemsetAsync(pool.at<void>(0), 0x3c, static_cast<size_t>(pool.bytes()), bench.stream()), "cudaMemsetAsync");
  std::vector<cuda::BlockPair> pairs;
  for (int32_t block = 0; block < num_blocks; ++block) pairs.push_back({block, 0});
  std::shuffle(pairs.begin(), pairs.end(), std::mt19937(1));
  for (int32_t place = 0; place < count; ++place) pairs[static_cast<size_t>(place)].to = place;
  const Copies named = upload(pairs, bench.stream());
  const int64_t of_rank = count * slice_bytes;
  const double seconds = bench.time_s(copies, [&](int c) {
    const cuda::BlockPool from{pool.at<void>(c), num_blocks * slice_bytes, slice_bytes};
    const cuda::BlockPool to{gathered.at<uint8_t>(0) + of_rank, m.num_ranks() * of_rank, slice_bytes};
    cuda::block_copy(from, to, 2, slice_bytes, named.at<cuda::BlockPair>(0), count, bench.stream());
  });
  bench.report_copy("gather_slices", std::to_string(num_tokens) + " tokens, 1 of " + std::to_string(m.num_ranks()),
                    seconds, 2 * bytes);
}

// Rows of as many texts, each over several pieces of this rank's slices.
inline void merge_states_case(CudaBench& bench, const SlicedModel& m, int32_t num_texts, int32_t num_pieces) {
  const int64_t rows = int64_t{num_texts} * m.heads, state = m.head_dim + 2;
  std::vector<cuda::RowPieces> pieces;
  for (int32_t row = 0; row < rows; ++row) pieces.push_back({row, num_pieces, static_cast<int32_t>(rows)});
  const Copies of_rows = upload(pieces, bench.stream()),
               partials = normal(bench, num_pieces * rows * m.head_dim, 1, 1, DType::kF32),
               stats = upload(std::vector<float>(static_cast<size_t>(num_pieces * rows * 2), 1), bench.stream()),
               own(rows * state * 4),
               all = upload(std::vector<float>(static_cast<size_t>(m.num_ranks() * rows * state), 1), bench.stream()),
               out(rows * m.head_dim * 2);
  const std::string what = std::to_string(num_texts) + " rows, ";
  const double join_s = bench.time_s(1, [&](int) {
    cuda::join_pieces(of_rows.at<cuda::RowPieces>(0), partials.at<float>(0), stats.at<float>(0), rows, m.head_dim,
                      own.at<float>(0), bench.stream());
  });
  bench.report_copy("join_pieces", what + std::to_string(num_pieces) + " pieces", join_s,
                    static_cast<double>(rows * state * 4) * (num_pieces + 1));
  const double merge_s = bench.time_s(1, [&](int) {
    cuda::merge_states(all.at<float>(0), m.num_ranks(), rows, m.heads, m.head_dim, nullptr, out.at<__nv_bfloat16>(0),
                       bench.stream());
  });
  bench.report_copy("merge_states", what + std::to_string(m.num_ranks()) + " ranks", merge_s,
                    static_cast<double>(rows * (m.num_ranks() * state * 4 + m.head_dim * 2)));
}

// One row of each text, whose states before it lie in this rank's slices.
inline void previous_hidden_case(CudaBench& bench, const SlicedModel& m, int32_t num_texts) {
  using T = __nv_bfloat16;
  const int32_t slice = m.slice_tokens();
  std::vector<cuda::StepRow> rows;
  std::vector<int32_t> starts, positions, slots;
  std::vector<BlockId> ids;
  std::vector<cuda::BlockPair> blocks;
  for (int32_t text = 0; text < num_texts; ++text) {
    rows.push_back({text, 0, 0}), starts.push_back(text), ids.push_back(text), slots.push_back(text * slice + 1);
    positions.push_back(1), blocks.push_back({num_texts - 1 - text, text});
  }
  const Copies of_rows = upload(rows, bench.stream()), start = upload(starts, bench.stream()),
               table = upload(ids, bench.stream()), places = upload(positions, bench.stream()),
               of_slots = upload(slots, bench.stream()), named = upload(blocks, bench.stream()),
               group = upload(std::vector<cuda::SliceGroup>{{0, num_texts}}, bench.stream()),
               pool = normal(bench, int64_t{num_texts} * slice * m.hidden),
               given = normal(bench, int64_t{m.num_ranks()} * num_texts * m.hidden),
               out(int64_t{num_texts} * m.hidden * 4);
  const cuda::SlicedRows step{{num_texts, slice, of_rows.at<cuda::StepRow>(0), start.at<int32_t>(0),
                               table.at<BlockId>(0), 1, places.at<int32_t>(0), of_slots.at<int32_t>(0), nullptr},
                              group.at<cuda::SliceGroup>(0),
                              named.at<cuda::BlockPair>(0),
                              /*rank=*/0};
  const double bytes = static_cast<double>(num_texts) * m.hidden;
  const std::string what = std::to_string(num_texts) + " rows of " + std::to_string(m.hidden);
  const double give_s = bench.time_s(
      1, [&](int) { cuda::give_previous_hidden(step, pool.at<T>(0), m.hidden, given.at<T>(0), bench.stream()); });
  bench.report_copy("previous_hidden", what + ", given", give_s, 4 * bytes);
  const double take_s = bench.time_s(1, [&](int) {
    cuda::take_previous_hidden(step, pool.at<T>(0), given.at<T>(0), num_texts, m.hidden, out.at<float>(0),
                               bench.stream());
  });
  bench.report_copy("previous_hidden", what + ", taken", take_s, 6 * bytes);
}

inline void slice_cases(CudaBench& bench, const SlicedModel& m) {
  for (const int32_t num_tokens : m.is_tiny ? std::vector<int32_t>{64} : std::vector<int32_t>{16384, 131072, 1048576})
    gather_slices_case(bench, m, num_tokens);
  for (const int32_t num_texts : m.is_tiny ? std::vector<int32_t>{3} : std::vector<int32_t>{1, 32, 256}) {
    merge_states_case(bench, m, num_texts, m.is_tiny ? 2 : 8);
    previous_hidden_case(bench, m, num_texts);
  }
}

}  // namespace llmb::bench
