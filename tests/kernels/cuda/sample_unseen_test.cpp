#include <doctest/doctest.h>

#include <random>

#include "core/resolve_step.h"
#include "kernels/cuda/sample.h"
#include "tests/support/device_array.h"

namespace llmb::cuda {
namespace {

using test::DeviceArray;

// Rows with slices of so many entries, the last one unseen in every row but each third; a token that is sampled may be
// anywhere in its row's slice, or not in it.
struct Case {
  std::vector<SampleRow> rows;
  std::vector<TokenPenalty> penalty;
  std::vector<TokenId> sampled;
};

Case make_case(const std::vector<int32_t>& lengths, uint32_t seed) {
  std::mt19937 rng(seed);
  Case c;
  for (size_t r = 0; r < lengths.size(); ++r) c.sampled.push_back(static_cast<TokenId>(rng() % 1000));
  for (size_t r = 0; r < lengths.size(); ++r) {
    SampleRow& row = c.rows.emplace_back();
    row.penalty_begin = static_cast<int32_t>(c.penalty.size());
    const auto source = static_cast<int32_t>(rng() % lengths.size());
    const bool is_unseen = r % 3 != 2 && lengths[r] > 0;
    for (int32_t i = 0; i + is_unseen < lengths[r]; ++i)
      c.penalty.push_back({2000 + i, static_cast<int32_t>(rng() % 4)});
    if (lengths[r] > 1 && rng() % 4 != 0)
      c.penalty[static_cast<size_t>(row.penalty_begin) + rng() % static_cast<size_t>(lengths[r] - is_unseen)].token =
          c.sampled[static_cast<size_t>(source)];
    if (is_unseen) c.penalty.push_back({unseen_token(source), 1});
    row.penalty_end = static_cast<int32_t>(c.penalty.size());
  }
  return c;
}

TEST_CASE("unseen tokens are added to the counts of penalties exactly as the host does it") {
  const std::vector<int32_t> lengths = {1, 0, 0, 2, 3, 3, 31, 32, 32, 33, 34, 33, 64, 65, 66, 500, 1, 2, 97};
  for (size_t num_rows : {size_t{1}, size_t{4}, size_t{5}, lengths.size(), size_t{0}})
    for (uint32_t seed = 1; seed <= 6; ++seed) {
      CAPTURE(num_rows);
      const Case c = make_case({lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(num_rows)}, seed);
      DeviceArray<int32_t> sampled(c.sampled);
      DeviceArray<TokenPenalty> penalty(c.penalty);
      DeviceArray<SampleRow> rows(c.rows);
      count_unseen_tokens(rows.data(), static_cast<int32_t>(num_rows), penalty.data(), sampled.data(), nullptr);
      Case expected = c;
      llmb::count_unseen_tokens(c.sampled, &expected.rows, &expected.penalty);
      const auto actual_rows = rows.download();
      const auto actual = penalty.download();
      for (size_t r = 0; r < num_rows; ++r) {
        CAPTURE(r);
        REQUIRE(actual_rows[r].penalty_end == expected.rows[r].penalty_end);
        for (auto i = static_cast<size_t>(actual_rows[r].penalty_begin);
             i < static_cast<size_t>(actual_rows[r].penalty_end); ++i) {
          CHECK(actual[i].token == expected.penalty[i].token);
          CHECK(actual[i].output_count == expected.penalty[i].output_count);
        }
      }
      CHECK(rows.check_guards());
      CHECK(penalty.check_guards());
      CHECK(sampled.holds(c.sampled));
    }
}

}  // namespace
}  // namespace llmb::cuda
