// One field of formatted text: its layout, and numbers and strings put into it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "jinja/value.h"

namespace llmb::jinja {

inline constexpr int64_t kMaxWidth = 100'000;  // of a field, and most digits of a number

// [[fill]align][sign][#][0][width][grouping][.precision][type]
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // < > = ^, 0: by the type
  char sign = '-';
  bool alternate = false;
  char grouping = 0;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

std::string format_float(double value, const FormatSpec& spec);
std::string format_int(int64_t value, const FormatSpec& spec);
std::string format_string(std::string_view text, const FormatSpec& spec);
std::string char_of(int64_t value);  // throws for what is not a character
std::string digits_of(uint64_t magnitude, unsigned base, bool upper);
std::string sign_of(bool negative, const FormatSpec& spec);
std::string pad_number(const std::string& sign, const std::string& body, const FormatSpec& spec);

// Decimal digits from text[*at] on, which moves behind them. Throws for a number past kMaxWidth.
int64_t read_count(std::string_view text, size_t* at);

// format(v, spec) of Python.
std::string format_value(Heap& heap, const Value& v, std::string_view spec);

}  // namespace llmb::jinja
