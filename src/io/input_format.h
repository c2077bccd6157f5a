// The forms that an input may have besides JSON lines.
#pragma once

#include <optional>
#include <string_view>

namespace llmb {

enum class InputFormat {
  kJsonLines,
  kText,  // a prompt a line
  kCsv,   // RFC 4180: the first row names the columns, a quoted field may hold line breaks
  kTsv,   // the same with tabs
};

// Between the fields of a row. REQUIRES: kCsv or kTsv
constexpr char csv_separator(InputFormat format) { return format == InputFormat::kTsv ? '\t' : ','; }

// By the file's name: .txt, .csv or .tsv, also in front of .gz or .zst; else JSON lines.
InputFormat input_format_of(std::string_view path);

// "jsonl", "text", "csv", "tsv"
const char* input_format_name(InputFormat format);
// nullopt: none of these.
std::optional<InputFormat> parse_input_format(std::string_view name);

}  // namespace llmb
