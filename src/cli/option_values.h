// Validators of flags' values. Each validator refuses with one line that says what is expected.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace llmb {

inline constexpr int32_t kIntMax = INT32_MAX;

// "2048", "32k" (thousands), "32K" (x 1024), "2M", "1.5G": as vLLM reads --max-model-len. Up to `largest`, from 1.
CLI::Validator size_validator(int64_t largest);

// An integer in decimal, without leading zeros. CLI11 reads 010 as 8, and -1 of an unsigned option as 2^64 - 1.
CLI::Validator integer_in(int64_t low, uint64_t high);

// A number in decimal; scientific notation too. CLI11's Range reports badly and lets NaN pass.
CLI::Validator number_in(double low, double high, bool low_excluded = false);

CLI::Validator device_name();

// A text that is there: an unset variable of a script must not lift a constraint.
CLI::Validator non_empty();

// CLI11's IsMember and CheckedTransformer list enumerators' numbers, and the latter accepts these.
CLI::Validator one_of(std::vector<std::string> names);

// The same for an option of type Enum, which names[i].first sets to names[i].second.
template <typename Enum>
CLI::Validator one_of(std::vector<std::pair<std::string, Enum>> choices) {
  std::vector<std::string> names;
  for (const auto& choice : choices) names.push_back(choice.first);
  const CLI::Validator is_known = one_of(std::move(names));
  return CLI::Validator(
      [is_known, choices = std::move(choices)](std::string& text) {
        std::string problem = is_known(text);
        for (const auto& [name, value] : choices) {
          if (text != name) continue;
          text = std::to_string(static_cast<int>(value));  // CLI11 makes an enumerator of it
          break;
        }
        return problem;
      },
      "NAME");
}

}  // namespace llmb
