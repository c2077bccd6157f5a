#include "grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/expr.h"
#include "text/unicode.h"

namespace llmb::grammar {

namespace {

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; }

class GbnfReader {
 public:
  explicit GbnfReader(std::string_view text) : in_(text) {}

  Result<Rules> read() {
    if (!is_valid_utf8(in_)) return invalid_argument("the grammar is not UTF-8");
    rule_named("root");
    for (skip_space(); !done(); skip_space()) LLMB_RETURN_IF_ERROR(read_rule());
    for (const auto& [name, rule] : rules_)
      if (bodies_[rule] < 0) return invalid_argument("grammar: there is no rule \"" + name + "\"");
    return Rules{std::move(arena_), std::move(bodies_)};
  }

 private:
  bool done() const { return at_ >= in_.size(); }
  bool sees(std::string_view s) const { return in_.substr(at_).starts_with(s); }
  bool take(std::string_view s) { return sees(s) ? (at_ += s.size(), true) : false; }
  Status error(const std::string& what) const {
    const auto line = 1 + std::count(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    return invalid_argument("grammar, line " + std::to_string(line) + ": " + what);
  }

  void skip_space() {
    while (!done()) {
      if (in_[at_] == '#') at_ = std::min(in_.find('\n', at_), in_.size());
      else if (std::isspace(static_cast<unsigned char>(in_[at_]))) ++at_;
      else break;
    }
  }

  RuleId rule_named(std::string_view name) {
    const auto [at, is_new] = rules_.emplace(name, static_cast<RuleId>(bodies_.size()));
    if (is_new) bodies_.push_back(-1);
    return at->second;
  }

  std::string_view read_name() {
    const size_t begin = at_;
    while (!done() && is_name_char(in_[at_])) ++at_;
    return in_.substr(begin, at_ - begin);
  }

  // A name with ::= behind it begins the next rule.
  bool sees_rule() {
    const size_t here = at_;
    const bool is_rule = !read_name().empty() && (skip_space(), sees("::="));
    at_ = here;
    return is_rule;
  }

  Status read_rule() {
    const std::string_view name = read_name();
    if (name.empty()) return error("a rule's name is missing");
    skip_space();
    if (!take("::=")) return error("::= is missing behind \"" + std::string(name) + "\"");
    const RuleId rule = rule_named(name);
    if (bodies_[rule] >= 0) return error("rule \"" + std::string(name) + "\" is there twice");
    LLMB_ASSIGN_OR_RETURN(bodies_[rule], read_alternatives(0));
    if (!done() && !sees_rule()) return error("this is no part of a rule");
    return {};
  }

  Result<ExprId> read_alternatives(int32_t depth) {
    if (depth > kMaxNestedGroups) return error("more than " + std::to_string(kMaxNestedGroups) + " nested groups");
    std::vector<ExprId> alternatives;
    do {
      std::vector<ExprId> parts;
      for (skip_space(); !done() && !sees("|") && !sees(")") && !sees_rule(); skip_space()) {
        LLMB_ASSIGN_OR_RETURN(ExprId part, read_atom(depth));
        LLMB_ASSIGN_OR_RETURN(part, read_quantifiers(part));
        parts.push_back(part);
      }
      alternatives.push_back(arena_.sequence(parts));
    } while (take("|"));
    return arena_.either(std::move(alternatives));
  }

  Result<ExprId> read_quantifiers(ExprId e) {
    while (!done()) {
      if (take("*")) {
        e = arena_.star(e);
      } else if (take("+")) {
        e = arena_.repeat(e, 1, kUnlimited);
      } else if (take("?")) {
        e = arena_.optional(e);
      } else if (take("{")) {
        int32_t min = 0, max = kUnlimited;
        LLMB_RETURN_IF_ERROR(read_number(&min));
        if (!take(",")) max = min;
        else if (!sees("}")) LLMB_RETURN_IF_ERROR(read_number(&max));
        if (!take("}")) return error("a { without its }");
        if (max != kUnlimited && max < min) return error("a count that ends before it begins");
        e = arena_.repeat(e, min, max);
      } else {
        break;
      }
    }
    return e;
  }

  Status read_number(int32_t* value) {
    const size_t begin = at_;
    while (!done() && in_[at_] >= '0' && in_[at_] <= '9') ++at_;
    if (at_ == begin) return error("a number is missing");
    *value = at_ - begin > 6 ? kMaxRepeats + 1 : std::stoi(std::string(in_.substr(begin, at_ - begin)));
    return *value > kMaxRepeats ? error("a count above " + std::to_string(kMaxRepeats)) : Status();
  }

  Result<ExprId> read_atom(int32_t depth) {
    if (take("(")) {
      LLMB_ASSIGN_OR_RETURN(const ExprId e, read_alternatives(depth + 1));
      if (!take(")")) return error("a ( without its )");
      return e;
    }
    if (take(".")) return utf8_char(CharSet::all(), &arena_);
    if (take("\"")) return read_literal();
    if (take("[")) return read_class();
    const std::string_view name = read_name();
    if (name.empty()) return error("\"" + std::string(1, in_[at_]) + "\" begins nothing that is known");
    return arena_.call(rule_named(name));
  }

  Result<ExprId> read_literal() {
    std::string text;
    while (!take("\"")) {
      if (done()) return error("a literal without its closing quote");
      char32_t c = 0;
      LLMB_RETURN_IF_ERROR(read_char(&c));
      append_utf8(&text, c);
    }
    return arena_.literal(text);
  }

  Result<ExprId> read_class() {
    const bool is_negated = take("^");
    std::vector<CharRange> ranges;
    while (!take("]")) {
      if (done()) return error("a [ without its ]");
      char32_t first = 0, last = 0;
      LLMB_RETURN_IF_ERROR(read_char(&first));
      last = first;
      if (sees("-") && !sees("-]")) {
        ++at_;
        if (done()) return error("a [ without its ]");
        LLMB_RETURN_IF_ERROR(read_char(&last));
      }
      if (last < first) return error("a range that ends before it begins");
      ranges.push_back({first, last});
    }
    const CharSet set(std::move(ranges));
    return utf8_char(is_negated ? set.complement() : set, &arena_);
  }

  Status read_char(char32_t* c) {
    *c = next_char(in_, &at_);
    if (*c != '\\') return {};
    if (done()) return error("a \\ at the end");
    const char32_t escaped = next_char(in_, &at_);
    const size_t num_digits = escaped == 'x' ? 2 : escaped == 'u' ? 4 : escaped == 'U' ? 8 : 0;
    if (num_digits == 0) {
      *c = escaped == 'n' ? '\n' : escaped == 'r' ? '\r' : escaped == 't' ? '\t' : escaped;
      return {};
    }
    const std::string digits(in_.substr(at_, num_digits));
    if (digits.size() != num_digits || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
      return error("a number of " + std::to_string(num_digits) + " hex digits is missing");
    at_ += num_digits;
    const unsigned long value = std::stoul(digits, nullptr, 16);
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return error("\\" + digits + " is no character");
    *c = static_cast<char32_t>(value);
    return {};
  }

  const std::string_view in_;
  size_t at_ = 0;
  ExprArena arena_;
  std::map<std::string, RuleId, std::less<>> rules_;
  std::vector<ExprId> bodies_;
};

}  // namespace

Result<Rules> read_gbnf(std::string_view text) {
  if (text.size() > kMaxGrammarBytes) return resource_exhausted("grammar: it has more than 256 KiB");
  return within_budget([&]() -> Result<Rules> {
    LLMB_ASSIGN_OR_RETURN(Rules rules, GbnfReader(text).read());
    rules.arena.fold_rules(&rules.bodies);
    return rules;
  });
}

}  // namespace llmb::grammar
