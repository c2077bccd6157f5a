#include "io/input_format.h"

#include <array>
#include <cctype>
#include <string>
#include <utility>

namespace llmb {

namespace {

using Names = std::array<std::pair<const char*, InputFormat>, 4>;

constexpr Names kFlagNames = {{{"jsonl", InputFormat::kJsonLines},
                               {"text", InputFormat::kText},
                               {"csv", InputFormat::kCsv},
                               {"tsv", InputFormat::kTsv}}};

bool drop_ending(std::string* path, std::string_view ending) {
  if (!path->ends_with(ending)) return false;
  path->resize(path->size() - ending.size());
  return true;
}

}  // namespace

InputFormat input_format_of(std::string_view path) {
  std::string name(path);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (!drop_ending(&name, ".gz")) drop_ending(&name, ".zst");
  if (name.ends_with(".txt")) return InputFormat::kText;
  if (name.ends_with(".csv")) return InputFormat::kCsv;
  return name.ends_with(".tsv") ? InputFormat::kTsv : InputFormat::kJsonLines;
}

const char* input_format_name(InputFormat format) {
  for (const auto& [name, known] : kFlagNames)
    if (known == format) return name;
  return "";
}

std::optional<InputFormat> parse_input_format(std::string_view name) {
  for (const auto& [known, format] : kFlagNames)
    if (known == name) return format;
  return std::nullopt;
}

}  // namespace llmb
