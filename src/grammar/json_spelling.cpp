#include "grammar/json_spelling.h"

#include <algorithm>

#include "base/check.h"
#include "core/request.h"
#include "text/unicode.h"

namespace llmb::grammar {

namespace {

constexpr int32_t kMaxIndent = 32;
constexpr std::string_view kNotBare = ":,{}[]<";  // in a name, which quotes stand around then

// The escape of one character, or "".
std::string escape_of(char32_t c) {
  constexpr std::string_view kChars = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const size_t at = c < 0x80 ? kChars.find(static_cast<char>(c)) : std::string_view::npos;
  if (at != std::string_view::npos) return {'\\', kLetters[at]};
  if (c >= 0x20) return "";
  constexpr char kHex[] = "0123456789abcdef";
  return {'\\', 'u', '0', '0', kHex[c / 16], kHex[c % 16]};
}

}  // namespace

Decimal Decimal::of(const Json& number) {
  const std::string text = number.dump();  // shortest digits that read back as the same number
  Decimal out;
  size_t at = 0;
  if (text[at] == '-') out.is_negative = true, ++at;
  const size_t exponent_at = std::min(text.find_first_of("eE"), text.size());
  const std::string mantissa = text.substr(at, exponent_at - at);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string digits = mantissa.substr(0, point) + (point < mantissa.size() ? mantissa.substr(point + 1) : "");
  int64_t place =
      static_cast<int64_t>(point) + (exponent_at < text.size() ? std::stoll(text.substr(exponent_at + 1)) : 0);
  if (place <= 0) digits.insert(0, static_cast<size_t>(1 - place), '0'), place = 1;
  if (place > static_cast<int64_t>(digits.size())) digits.append(static_cast<size_t>(place) - digits.size(), '0');
  out.whole = digits.substr(0, static_cast<size_t>(place));
  out.fraction = digits.substr(static_cast<size_t>(place));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size() - 1));
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  if (out.is_zero()) out.is_negative = false;
  return out;
}

std::string Decimal::text() const {
  return (is_negative ? "-" : "") + whole + (fraction.empty() ? "" : "." + fraction);
}

JsonSpelling::JsonSpelling(ExprArena* arena, std::string_view quote)
    : arena_(*arena), quote_(quote), quote_text_(quote.substr(quote.starts_with(kSpecialMark) ? 1 : 0)) {
  LLMB_CHECK(is_json() || (quote_text_.size() > 1 && quote_text_.rfind('<') == 0));
}

ExprId JsonSpelling::space() {
  if (!is_json()) return kEmptyString;
  const ExprId indent = arena_.repeat(arena_.bytes(ByteSet().set(' ').set('\t')), 0, kMaxIndent);
  return arena_.either({kEmptyString, arena_.byte(' '), arena_.concat(arena_.byte('\n'), indent)});
}

ExprId JsonSpelling::space_after_colon() { return is_json() ? arena_.optional(arena_.byte(' ')) : kEmptyString; }

ExprId JsonSpelling::string_char(const CharSet& set) {
  if (!is_json()) return utf8_char(set, &arena_);
  const CharSet special{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}, escaped = set.intersect(special);
  std::vector<ExprId> parts = {utf8_char(set.intersect(special.complement()), &arena_)};
  for (const auto& [first, last] : escaped.ranges())
    for (char32_t c = first; c <= last; ++c) parts.push_back(arena_.literal(escape_of(c)));
  return arena_.either(std::move(parts));
}

ExprId JsonSpelling::any_string_char() {
  if (!is_json()) return string_char(CharSet::all());
  const auto hex = [this](std::string_view digits) {
    ByteSet set;
    for (const char c : digits) set.set(static_cast<size_t>(c)), set.set(static_cast<size_t>(std::toupper(c)));
    return arena_.bytes(set);
  };
  const ExprId any = hex("0123456789abcdef"), d = hex("d");
  const auto four = [&](ExprId first, ExprId second) {
    return arena_.literal("\\u", arena_.sequence(std::vector{first, second, any, any}));
  };
  const ExprId plain = four(hex("0123456789abcef"), any), before_surrogates = four(d, hex("01234567"));
  const ExprId pair = arena_.concat(four(d, hex("89ab")), four(d, hex("cdef")));
  ByteSet letters;
  for (const char c : std::string_view("\"\\/bfnrt")) letters.set(static_cast<size_t>(c));
  const CharSet raw = CharSet{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}.complement();
  return arena_.either({utf8_char(raw, &arena_), arena_.concat(arena_.byte('\\'), arena_.bytes(letters)), plain,
                        before_surrogates, pair});
}

// Characters but <, and each < with what follows it up to the next one, which must not go on as the quote does.
ExprId JsonSpelling::without_quote() {
  const CharSet other = CharSet{{'<', '<'}}.complement();
  const ExprId others = arena_.star(utf8_char(other, &arena_));
  ExprId behind = kNothing;  // i bytes of the quote
  for (size_t i = quote_text_.size(); --i > 0;) {
    const auto next = static_cast<uint8_t>(quote_text_[i]);
    const ExprId differs = utf8_char(other.intersect(CharSet{{next, next}}.complement()), &arena_);
    behind = arena_.either({kEmptyString, arena_.concat(differs, others), arena_.concat(arena_.byte(next), behind)});
  }
  return arena_.concat(others, arena_.star(arena_.concat(arena_.byte('<'), behind)));
}

std::string JsonSpelling::json_content(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const std::string escape = escape_of(next_char(text, &at));
    out += escape.empty() ? text.substr(begin, at - begin) : std::string_view(escape);
  }
  return out;
}

ExprId JsonSpelling::quoted(ExprId content) {
  const ExprId quote = is_json() ? arena_.byte('"') : arena_.literal(quote_);
  return arena_.concat(quote, arena_.concat(content, quote));
}

ExprId JsonSpelling::bare_name() {
  CharSet marks;
  for (const char c : kNotBare) marks.add(static_cast<uint8_t>(c), static_cast<uint8_t>(c));
  return arena_.repeat(utf8_char(marks.complement(), &arena_), 1, kUnlimited);
}

ExprId JsonSpelling::name(ExprId content) {
  if (is_json()) return quoted(content);
  const ExprId bare = bare_name();
  return arena_.either(arena_.both(content, bare), quoted(arena_.both(content, arena_.complement(bare))));
}

ExprId JsonSpelling::name_of(const std::string& text) {
  if (is_json()) return arena_.literal("\"" + string_content(text) + "\"");
  if (text.find(quote_text_) != text.npos) return kNothing;
  const bool is_bare = !text.empty() && text.find_first_of(kNotBare) == text.npos;
  return is_bare ? arena_.literal(text) : quoted(arena_.literal(text));
}

ExprId JsonSpelling::whole_number() {
  const ExprId natural = arena_.concat(digit('1', '9'), digits());
  return arena_.either({arena_.byte('0'), natural, negative(natural)});
}

ExprId JsonSpelling::any_fraction() {
  return arena_.optional(arena_.concat(arena_.byte('.'), arena_.repeat(digit('0', '9'), 1, kUnlimited)));
}

ExprId JsonSpelling::fractional_number() {
  const ExprId whole = arena_.either(arena_.byte('0'), arena_.concat(digit('1', '9'), digits()));
  const ExprId magnitude = arena_.concat(whole, arena_.concat(arena_.byte('.'), some_nonzero()));
  return arena_.either(magnitude, negative(magnitude));
}

ExprId JsonSpelling::number() {
  const Decimal zero;
  return arena_.either(larger(zero, false), negative(larger(zero, true)));
}

// Behind an equal whole part: what is larger than the digits `bound` behind the point.
ExprId JsonSpelling::larger_fraction(const std::string& bound, bool is_strict) {
  if (bound.empty()) return is_strict ? arena_.concat(arena_.byte('.'), some_nonzero()) : any_fraction();
  ExprId rest = is_strict ? some_nonzero() : digits();
  for (size_t i = bound.size(); i-- > 0;) {
    const ExprId equal = arena_.concat(digit(bound[i], bound[i]), rest);
    const ExprId more =
        bound[i] < '9' ? arena_.concat(digit(static_cast<char>(bound[i] + 1), '9'), digits()) : kNothing;
    rest = arena_.either(equal, more);
  }
  return arena_.concat(arena_.byte('.'), rest);
}

ExprId JsonSpelling::smaller_fraction(const std::string& bound, bool is_strict) {
  const ExprId zeros = arena_.star(arena_.byte('0'));
  if (bound.empty()) {
    const ExprId zero = arena_.optional(arena_.concat(arena_.byte('.'), arena_.concat(arena_.byte('0'), zeros)));
    return is_strict ? kNothing : zero;
  }
  ExprId rest = is_strict ? kNothing : zeros;
  for (size_t i = bound.size(); i-- > 0;) {
    const ExprId equal = arena_.concat(digit(bound[i], bound[i]), rest);
    const ExprId less =
        bound[i] > '0' ? arena_.concat(digit('0', static_cast<char>(bound[i] - 1)), digits()) : kNothing;
    rest = arena_.either({equal, less, i > 0 ? kEmptyString : kNothing});  // ends early: what is missing is not 0
  }
  return arena_.optional(arena_.concat(arena_.byte('.'), rest));
}

ExprId JsonSpelling::larger(const Decimal& bound, bool is_strict) {
  const std::string& whole = bound.whole;
  const auto length = static_cast<int32_t>(whole.size());
  std::vector<ExprId> parts;
  parts.push_back(arena_.concat(digit('1', '9'),
                                arena_.concat(arena_.repeat(digit('0', '9'), length, kUnlimited), any_fraction())));
  parts.push_back(arena_.literal(whole, larger_fraction(bound.fraction, is_strict)));
  for (int32_t i = 0; i < length; ++i) {
    if (whole[i] == '9') continue;
    const ExprId rest = arena_.concat(arena_.repeat(digit('0', '9'), length - i - 1, length - i - 1), any_fraction());
    parts.push_back(
        arena_.literal(whole.substr(0, i), arena_.concat(digit(static_cast<char>(whole[i] + 1), '9'), rest)));
  }
  return arena_.either(std::move(parts));
}

ExprId JsonSpelling::smaller(const Decimal& bound, bool is_strict) {
  const std::string& whole = bound.whole;
  const auto length = static_cast<int32_t>(whole.size());
  std::vector<ExprId> parts = {arena_.literal(whole, smaller_fraction(bound.fraction, is_strict))};
  if (length > 1) {
    const ExprId shorter = arena_.concat(digit('1', '9'), arena_.repeat(digit('0', '9'), 0, length - 2));
    parts.push_back(arena_.concat(arena_.either(arena_.byte('0'), shorter), any_fraction()));
  }
  for (int32_t i = 0; i < length; ++i) {
    const char lowest = i == 0 && length > 1 ? '1' : '0';
    if (whole[i] <= lowest) continue;
    const ExprId rest = arena_.concat(arena_.repeat(digit('0', '9'), length - i - 1, length - i - 1), any_fraction());
    parts.push_back(
        arena_.literal(whole.substr(0, i), arena_.concat(digit(lowest, static_cast<char>(whole[i] - 1)), rest)));
  }
  return arena_.either(std::move(parts));
}

ExprId JsonSpelling::at_least(const Decimal& bound, bool is_strict) {
  if (!bound.is_negative) return larger(bound, is_strict);
  const ExprId below_zero = arena_.both(smaller(bound, is_strict), larger(Decimal(), true));
  return arena_.either(larger(Decimal(), false), negative(below_zero));
}

ExprId JsonSpelling::at_most(const Decimal& bound, bool is_strict) {
  if (bound.is_negative) return negative(larger(bound, is_strict));
  return arena_.either(smaller(bound, is_strict), negative(larger(Decimal(), true)));
}

ExprId JsonSpelling::equal_to(const Decimal& value) {
  const ExprId zeros = arena_.star(arena_.byte('0'));
  if (!value.fraction.empty()) return arena_.literal(value.text(), zeros);
  return arena_.literal(value.text(), arena_.optional(arena_.concat(arena_.literal(".0"), zeros)));
}

Result<ExprId> JsonSpelling::multiple_of(const Decimal& divisor) {
  std::string digits = divisor.whole + divisor.fraction;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  if (digits.size() > 5 || divisor.fraction.size() > 20)
    return resource_exhausted("a divisor of more than 5 digits cannot be enforced");
  const ExprId magnitude = arena_.multiple_of(std::stoi(digits), static_cast<int32_t>(divisor.fraction.size()));
  return arena_.concat(arena_.optional(arena_.byte('-')), magnitude);
}

}  // namespace llmb::grammar
