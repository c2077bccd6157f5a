#include "cli/option_values.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

namespace llmb {

namespace {

// nullopt: not a positive size.
std::optional<int64_t> parse_size(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  static const std::map<std::string, double> kFactors = {{"", 1},          {"k", 1e3}, {"K", 1024.0},      {"m", 1e6},
                                                         {"M", 1048576.0}, {"g", 1e9}, {"G", 1073741824.0}};
  const auto factor = kFactors.find(end);
  if (end == text.c_str() || factor == kFactors.end() || !(value > 0) || !(value * factor->second < 9e15))
    return std::nullopt;
  return static_cast<int64_t>(std::llround(value * factor->second));
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

CLI::Validator number_in(double low, double high, bool low_excluded) {
  return CLI::Validator(
      [=](std::string& text) {
        char* end = nullptr;
        const double v = std::strtod(text.c_str(), &end);
        if (end != text.c_str() && *end == '\0' && v >= low && v <= high && !(low_excluded && v == low))
          return std::string();
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
