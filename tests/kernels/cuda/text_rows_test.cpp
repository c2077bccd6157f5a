#include "kernels/cuda/text_rows.h"

#include <doctest/doctest.h>

#include <vector>

#include "tests/support/device_array.h"

namespace llmb::cuda {

using test::DeviceArray;

TEST_CASE("texts have the rows of their entries, tokens of the second text type 1, padding none") {
  const std::vector<int32_t> lengths = {1, 130, 3, 64};
  std::vector<StepRow> rows;
  std::vector<StepEntry> entries(lengths.size());
  std::vector<SampleRow> samples;
  std::vector<int32_t> positions, types, begins, ends;
  entries[0].second_text = 0, entries[1].second_text = 100, entries[2].second_text = 3;
  for (size_t e = 0; e < lengths.size(); ++e) {
    begins.push_back(static_cast<int32_t>(rows.size()));
    for (int32_t i = 0; i < lengths[e]; ++i) {
      rows.push_back({static_cast<int32_t>(e), i, i});
      positions.push_back(i);
      types.push_back(i >= entries[e].second_text);
    }
    ends.push_back(static_cast<int32_t>(rows.size()));
    samples.emplace_back().token_row = ends.back() - 1;
  }
  for (int i = 0; i < 5; ++i) rows.emplace_back(), positions.push_back(0), types.push_back(0);
  for (int i = 0; i < 2; ++i) samples.emplace_back().token_row = -1, begins.push_back(0), ends.push_back(0);

  const DeviceArray<StepRow> on_rows(rows);
  const DeviceArray<StepEntry> on_entries(entries);
  const DeviceArray<SampleRow> on_samples(samples);
  const DeviceArray<int32_t> on_positions(positions);
  const TextStep step{static_cast<int32_t>(rows.size()),
                      static_cast<int32_t>(samples.size()),
                      on_rows.data(),
                      on_entries.data(),
                      on_positions.data(),
                      on_samples.data()};
  DeviceArray<int32_t> first(samples.size()), last(samples.size()), type(rows.size());
  find_text_rows(step, /*only_first=*/false, first.data(), last.data(), nullptr);
  CHECK((first.holds(begins) && last.holds(ends)));
  find_text_rows(step, /*only_first=*/true, first.data(), last.data(), nullptr);
  for (size_t e = 0; e < lengths.size(); ++e) ends[e] = begins[e] + 1;
  CHECK((first.holds(begins) && last.holds(ends)));
  find_token_types(step, type.data(), nullptr);
  CHECK(type.holds(types));
  CHECK((first.check_guards() && last.check_guards() && type.check_guards()));
  find_text_rows({}, false, nullptr, nullptr, nullptr);
  find_token_types({}, nullptr, nullptr);
}

}  // namespace llmb::cuda
