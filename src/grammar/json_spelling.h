// How answers spell values. There is one spelling for everything that a schema bounds. As JSON:
//  - White space: nothing, one space, or a new line with at most 32 spaces and tabs, inside { } and [ ] and behind a
//  comma;
//    nothing or one space behind a colon.
//  - Strings: characters as they are, but \" \\ \b \f \n \r \t, and \u00xx for other control characters. Strings that
//  no
//    pattern, enumeration or format bounds may use any escape, surrogates in pairs.
//  - Numbers: decimal, without exponent, no leading zeros, no -0.
// In the notation of Gemma's calls (chat/tool_calls.h) there is no white space, and `quote` stands before and behind
// strings, whose characters are as they are: strings that hold the quote's text have no spelling. Names of members stand
// without quotes, unless they are empty or hold one of :,{}[]<
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "grammar/char_set.h"
#include "grammar/expr.h"

namespace llmb::grammar {

using Json = nlohmann::ordered_json;

// A number's digits: -12.5 is {true, "12", "5"}; no trailing zeros behind the point.
struct Decimal {
  bool is_negative = false;
  std::string whole = "0", fraction;

  static Decimal of(const Json& number);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  std::string text() const;
};

class JsonSpelling {
 public:
  // quote: of Gemma's notation, perhaps behind kSpecialMark; "": JSON. REQUIRES: it is ASCII, begins with < and has no
  // other one.
  explicit JsonSpelling(ExprArena* arena, std::string_view quote = "");

  ExprId space();  // where white space may be
  ExprId space_after_colon();

  ExprId string_char(const CharSet& set);  // one of them in a string
  ExprId any_string_char();                // with any escape
  ExprId string_chars() { return is_json() ? arena_.star(string_char(CharSet::all())) : without_quote(); }
  static std::string json_content(std::string_view text);  // of a JSON string, without quotes; text is UTF-8
  std::string string_content(std::string_view text) const {
    return is_json() ? json_content(text) : std::string(text);
  }
  ExprId quoted(ExprId content);
  ExprId name(ExprId content);             // of a member
  ExprId name_of(const std::string& text);  // kNothing where it has no spelling
  bool is_json() const { return quote_.empty(); }

  ExprId whole_number();       // 0, 7, -12
  ExprId fractional_number();  // with a point and a digit behind it that is not 0
  ExprId number();             // either, also 1.0
  ExprId at_least(const Decimal& bound, bool is_strict);
  ExprId at_most(const Decimal& bound, bool is_strict);
  ExprId equal_to(const Decimal& value);  // however many zeros behind the point
  // resource_exhausted where the divisor has too many digits.
  Result<ExprId> multiple_of(const Decimal& divisor);

 private:
  ExprId digit(char first, char last) {
    return arena_.byte_range(static_cast<uint8_t>(first), static_cast<uint8_t>(last));
  }
  ExprId digits() { return arena_.star(digit('0', '9')); }
  ExprId some_nonzero() { return arena_.concat(digits(), arena_.concat(digit('1', '9'), digits())); }
  ExprId any_fraction();
  ExprId larger(const Decimal& bound, bool is_strict);  // of numbers without sign
  ExprId smaller(const Decimal& bound, bool is_strict);
  ExprId larger_fraction(const std::string& bound, bool is_strict);
  ExprId smaller_fraction(const std::string& bound, bool is_strict);
  ExprId negative(ExprId magnitude) { return arena_.concat(arena_.byte('-'), magnitude); }

  ExprId without_quote();
  ExprId bare_name();

  ExprArena& arena_;
  const std::string quote_;  // as it is written
  const std::string quote_text_;
};

}  // namespace llmb::grammar
