#include "cli/option_values.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <string_view>

namespace llmb {

namespace {

// 010, -00.5: some read octal there.
bool has_leading_zero(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

// The number at the beginning, and the rest in *rest. nullopt: none, or one of no decimal notation.
std::optional<double> parse_number(std::string_view text, std::string_view* rest) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || has_leading_zero(text)) return std::nullopt;
  *rest = text.substr(static_cast<size_t>(end - text.data()));
  return value;
}

// nullopt: not a positive size.
std::optional<int64_t> parse_size(std::string_view text) {
  static const std::map<std::string_view, double> kFactors = {
      {"", 1}, {"k", 1e3}, {"K", 1024.0}, {"m", 1e6}, {"M", 1048576.0}, {"g", 1e9}, {"G", 1073741824.0}};
  std::string_view unit;
  const std::optional<double> value = parse_number(text, &unit);
  const auto factor = kFactors.find(unit);
  if (!value || factor == kFactors.end() || !(*value > 0) || !(*value * factor->second < 9e15)) return std::nullopt;
  return static_cast<int64_t>(std::llround(*value * factor->second));
}

template <typename Integer>
bool parses_in(std::string_view text, Integer low, Integer high) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= low && value <= high;
}

}  // namespace

CLI::Validator size_validator(int64_t largest) {
  return CLI::Validator(
      [largest](std::string& text) {
        const auto size = parse_size(text);
        if (!size || *size < 1 || *size > largest)
          return "'" + text + "' is not a size from 1 to " + std::to_string(largest) + " such as 4096, 4k, 4K or 2G";
        text = std::to_string(*size);
        return std::string();
      },
      "SIZE");
}

CLI::Validator integer_in(int64_t low, uint64_t high) {
  return CLI::Validator(
      [=](std::string& text) {
        const bool fits = high <= INT64_MAX ? parses_in<int64_t>(text, low, static_cast<int64_t>(high))
                                            : parses_in<uint64_t>(text, static_cast<uint64_t>(low), high);
        if (fits && !has_leading_zero(text) && text != "-0") return std::string();
        return "'" + text + "' is not a decimal integer from " + std::to_string(low) + " to " + std::to_string(high);
      },
      "INTEGER");
}

CLI::Validator number_in(double low, double high, bool low_excluded) {
  return CLI::Validator(
      [=](std::string& text) {
        std::string_view rest;
        const std::optional<double> v = parse_number(text, &rest);
        if (v && rest.empty() && *v >= low && *v <= high && !(low_excluded && *v == low)) return std::string();
        char range[96];
        std::snprintf(range, sizeof range, " is not a number in %c%g, %g]", low_excluded ? '(' : '[', low, high);
        return "'" + text + "'" + range;
      },
      "NUMBER");
}

CLI::Validator device_name() {
  return CLI::Validator(
      [](const std::string& text) {
        const bool is_gpu = text.starts_with("cuda:") && text.size() > 5 && text.size() < 9 &&
                            text.find_first_not_of("0123456789", 5) == std::string::npos;
        if (is_gpu || text == "auto" || text == "cpu" || text == "cuda" || text == "ledger") return std::string();
        return "'" + text + "' is not one of auto, cpu, cuda, cuda:N, ledger";
      },
      "DEVICE");
}

CLI::Validator non_empty() {
  return CLI::Validator([](const std::string& text) { return std::string(text.empty() ? "it is empty" : ""); }, "TEXT");
}

CLI::Validator one_of(std::vector<std::string> names) {
  return CLI::Validator(
      [names = std::move(names)](const std::string& text) {
        if (std::find(names.begin(), names.end(), text) != names.end()) return std::string();
        std::string list;
        for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
        return "'" + text + "' is not one of " + list;
      },
      "NAME");
}

}  // namespace llmb
