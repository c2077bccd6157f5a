#include "grammar/lark.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/expr.h"
#include "grammar/gbnf.h"
#include "grammar/regex_expr.h"
#include "text/unicode.h"

namespace llmb::grammar {

namespace {

const std::map<std::string, std::string, std::less<>>& common_terminals() {
  static const std::map<std::string, std::string, std::less<>> kPatterns = {
      {"DIGIT", "[0-9]"},
      {"HEXDIGIT", "[0-9a-fA-F]"},
      {"INT", "[0-9]+"},
      {"SIGNED_INT", "[+-]?[0-9]+"},
      {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
      {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
      {"NUMBER", "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
      {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
      {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\.)*\""},
      {"LCASE_LETTER", "[a-z]"},
      {"UCASE_LETTER", "[A-Z]"},
      {"LETTER", "[a-zA-Z]"},
      {"WORD", "[a-zA-Z]+"},
      {"CNAME", "[a-zA-Z_][a-zA-Z0-9_]*"},
      {"WS_INLINE", "[ \\t]+"},
      {"WS", "[ \\t\\f\\r\\n]+"},
      {"CR", "\\r"},
      {"LF", "\\n"},
      {"NEWLINE", "(?:\\r?\\n)+"},
  };
  return kPatterns;
}

bool is_word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Terminals have names in capitals.
bool is_terminal(std::string_view name) {
  return std::none_of(name.begin(), name.end(), [](char c) { return std::islower(static_cast<unsigned char>(c)); });
}

class LarkReader {
 public:
  explicit LarkReader(std::string_view text) : in_(text) {}

  Result<Rules> read() {
    if (!is_valid_utf8(in_)) return invalid_argument("the grammar is not UTF-8");
    arena_.spend(static_cast<int64_t>(in_.size()) / 4);
    rule_named("start");
    ignored_ = rule_named("%ignored");
    for (skip_space(true); !done(); skip_space(true)) LLMB_RETURN_IF_ERROR(sees("%") ? read_directive() : read_rule());
    bodies_[ignored_] = arena_.star(arena_.either(std::move(ignored_terminals_)));
    for (const auto& [name, rule] : rules_)
      if (bodies_[rule] < 0) return invalid_argument("grammar: there is no rule \"" + name + "\"");
    // Ignored text may also come first of all.
    bodies_[0] = arena_.concat(arena_.call(ignored_), bodies_[0]);
    return Rules{std::move(arena_), std::move(bodies_)};
  }

 private:
  bool done() const { return at_ >= in_.size(); }
  bool sees(std::string_view s) const { return in_.substr(at_).starts_with(s); }
  bool take(std::string_view s) { return sees(s) ? (at_ += s.size(), true) : false; }
  int64_t line() const {
    return 1 + std::count(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, in_.size())), '\n');
  }
  Status error(const std::string& what) const {
    return invalid_argument("grammar, line " + std::to_string(line()) + ": " + what);
  }
  Status refuse(const std::string& what) const {
    return unsupported("grammar, line " + std::to_string(line()) + ": " + what + " cannot be enforced");
  }

  void skip_space(bool lines_too) {
    while (!done()) {
      const char c = in_[at_];
      if (c == '#' || sees("//")) at_ = std::min(in_.find('\n', at_), in_.size());
      else if (c == ' ' || c == '\t' || c == '\r' || (lines_too && c == '\n')) ++at_;
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
    while (!done() && is_word_char(in_[at_])) ++at_;
    return in_.substr(begin, at_ - begin);
  }

  Status read_directive() {
    ++at_;
    const std::string_view word = read_name();
    skip_space(false);
    if (word == "import") return read_import();
    if (word != "ignore") return refuse("%" + std::string(word));
    in_terminal_ = true;
    LLMB_ASSIGN_OR_RETURN(const ExprId terminal, read_alternatives(0));
    ignored_terminals_.push_back(terminal);
    return {};
  }

  Status read_import() {
    if (read_name() != "common") return refuse("an import from elsewhere than common");
    if (take(".")) {
      const std::string_view name = read_name();
      skip_space(false);
      if (!take("->")) return import_terminal(name, name);
      skip_space(false);
      return import_terminal(name, read_name());
    }
    skip_space(false);
    if (!take("(")) return error("%import common without a name");
    for (skip_space(true); !take(")"); skip_space(true)) {
      const std::string_view name = read_name();
      LLMB_RETURN_IF_ERROR(import_terminal(name, name));
      skip_space(true);
      if (!take(",") && !sees(")")) return error("a list of imports without its )");
    }
    return {};
  }

  Status import_terminal(std::string_view name, std::string_view as) {
    const auto known = common_terminals().find(name);
    if (known == common_terminals().end()) return refuse("common." + std::string(name));
    LLMB_ASSIGN_OR_RETURN(const ExprId body, pattern(known->second));
    return define(as, body);
  }

  Status define(std::string_view name, ExprId body) {
    const RuleId rule = rule_named(name);
    if (bodies_[rule] >= 0) return error("\"" + std::string(name) + "\" is there twice");
    bodies_[rule] = body;
    return {};
  }

  Status read_rule() {
    if (!take("?")) take("!");
    const std::string_view name = read_name();
    if (name.empty()) return error("a rule's name is missing");
    if (sees("{")) return refuse("a template");
    if (take(".")) read_name();  // its priority
    skip_space(false);
    if (!take(":")) return error(": is missing behind \"" + std::string(name) + "\"");
    in_terminal_ = is_terminal(name);
    LLMB_ASSIGN_OR_RETURN(const ExprId body, read_alternatives(0));
    skip_space(false);
    if (!done() && in_[at_] != '\n') return error("this is no part of a rule");
    return define(name, body);
  }

  // Lines that begin with | go on.
  bool takes_bar() {
    const size_t here = at_;
    skip_space(true);
    if (take("|")) return true;
    at_ = here;
    return false;
  }

  Result<ExprId> read_alternatives(int32_t depth) {
    if (depth > kMaxNestedGroups) return error("more than " + std::to_string(kMaxNestedGroups) + " nested groups");
    std::vector<ExprId> alternatives;
    do {
      std::vector<ExprId> parts;
      for (skip_space(depth > 0); !done() && in_[at_] != '\n' && !sees("|") && !sees(")") && !sees("]") && !sees("->");
           skip_space(depth > 0)) {
        LLMB_ASSIGN_OR_RETURN(ExprId part, read_atom(depth));
        LLMB_ASSIGN_OR_RETURN(part, read_quantifier(part));
        parts.push_back(part);
      }
      if (take("->")) skip_space(false), read_name();
      alternatives.push_back(arena_.sequence(parts));
    } while (takes_bar());
    if (depth > 0) skip_space(true);
    return arena_.either(std::move(alternatives));
  }

  Result<ExprId> read_quantifier(ExprId e) {
    if (take("*")) return arena_.star(e);
    if (take("+")) return arena_.repeat(e, 1, kUnlimited);
    if (take("?")) return arena_.optional(e);
    const size_t here = at_;
    skip_space(false);
    if (!take("~")) return at_ = here, e;
    skip_space(false);
    int32_t min = 0, max = 0;
    LLMB_RETURN_IF_ERROR(read_number(&min));
    max = min;
    if (take("..")) LLMB_RETURN_IF_ERROR(read_number(&max));
    if (max < min) return error("a count that ends before it begins");
    return arena_.repeat(e, min, max);
  }

  Status read_number(int32_t* value) {
    const size_t begin = at_;
    while (!done() && in_[at_] >= '0' && in_[at_] <= '9') ++at_;
    if (at_ == begin) return error("a number is missing");
    *value = at_ - begin > 6 ? kMaxRepeats + 1 : std::stoi(std::string(in_.substr(begin, at_ - begin)));
    return *value > kMaxRepeats ? error("a count above " + std::to_string(kMaxRepeats)) : Status();
  }

  Result<ExprId> read_atom(int32_t depth) {
    const bool is_optional = sees("[");
    if (take("(") || take("[")) {
      LLMB_ASSIGN_OR_RETURN(const ExprId e, read_alternatives(depth + 1));
      if (!take(is_optional ? "]" : ")")) return error(is_optional ? "a [ without its ]" : "a ( without its )");
      return is_optional ? arena_.optional(e) : e;
    }
    if (sees("\"")) return read_string();
    if (take("/")) return read_pattern();
    const std::string_view name = read_name();
    if (name.empty()) return error("\"" + std::string(1, in_[at_]) + "\" begins nothing that is known");
    if (sees("{")) return refuse("a template");
    const ExprId call = arena_.call(rule_named(name));
    return is_terminal(name) ? terminal(call) : call;
  }

  // In a rule, with what is ignored behind it.
  ExprId terminal(ExprId e) { return in_terminal_ ? e : arena_.concat(e, arena_.call(ignored_)); }

  Result<ExprId> read_string() {
    std::string text;
    LLMB_RETURN_IF_ERROR(read_quoted(&text));
    if (take("..")) {
      std::string last;
      LLMB_RETURN_IF_ERROR(read_quoted(&last));
      size_t a = 0, b = 0;
      const char32_t from = text.empty() ? 0 : next_char(text, &a), to = last.empty() ? 0 : next_char(last, &b);
      if (text.empty() || last.empty() || a != text.size() || b != last.size() || to < from)
        return error("a range that is not from one character to a later one");
      return terminal(utf8_char(CharSet{{from, to}}, &arena_));
    }
    if (!done() && in_[at_] == 'i' && (at_ + 1 == in_.size() || !is_word_char(in_[at_ + 1]))) {
      ++at_;
      std::vector<ExprId> parts;
      for (const char c : text) {
        const auto lower = static_cast<uint8_t>(std::tolower(static_cast<unsigned char>(c)));
        const auto upper = static_cast<uint8_t>(std::toupper(static_cast<unsigned char>(c)));
        if (static_cast<uint8_t>(c) >= 0x80) return refuse("the flag i of letters beyond ASCII");
        parts.push_back(arena_.bytes(ByteSet().set(lower).set(upper)));
      }
      return terminal(arena_.sequence(parts));
    }
    return terminal(arena_.literal(text));
  }

  Status read_quoted(std::string* text) {
    if (!take("\"")) return error("a string is missing");
    while (!take("\"")) {
      if (done() || in_[at_] == '\n') return error("a string without its closing quote");
      char32_t c = next_char(in_, &at_);
      if (c == '\\') {
        if (done()) return error("a \\ at the end");
        const char32_t escaped = next_char(in_, &at_);
        const size_t num_digits = escaped == 'x' ? 2 : escaped == 'u' ? 4 : 0;
        c = escaped == 'n' ? '\n' : escaped == 'r' ? '\r' : escaped == 't' ? '\t' : escaped == 'f' ? '\f' : escaped;
        if (num_digits > 0) {
          const std::string digits(in_.substr(at_, num_digits));
          if (digits.size() != num_digits || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
            return error("a number of " + std::to_string(num_digits) + " hex digits is missing");
          at_ += num_digits;
          c = static_cast<char32_t>(std::stoul(digits, nullptr, 16));
          if (c >= 0xD800 && c < 0xE000) return error("\\u" + digits + " is no character");
        }
      }
      append_utf8(text, c);
    }
    return {};
  }

  Result<ExprId> read_pattern() {
    const size_t begin = at_;
    for (bool in_class = false; !done() && in_[at_] != '\n' && (in_class || in_[at_] != '/'); ++at_) {
      if (in_[at_] == '\\') ++at_;
      else if (in_[at_] == '[') in_class = true;
      else if (in_[at_] == ']') in_class = false;
    }
    if (done() || in_[at_] != '/') return error("a pattern without its closing /");
    const std::string_view text = in_.substr(begin, at_++ - begin);
    if (!done() && std::islower(static_cast<unsigned char>(in_[at_]))) return refuse("a pattern's flag");
    LLMB_ASSIGN_OR_RETURN(const ExprId e, pattern(text));
    return terminal(e);
  }

  Result<ExprId> pattern(std::string_view text) {
    const auto spelling = [this](const CharSet& set) { return utf8_char(set, &arena_); };
    auto e = regex_expr(text, RegexScope::kWhole, spelling, &arena_);
    if (!e.ok()) return e.status().with_context("grammar, line " + std::to_string(line()));
    return *e;
  }

  const std::string_view in_;
  size_t at_ = 0;
  ExprArena arena_;
  std::map<std::string, RuleId, std::less<>> rules_;
  std::vector<ExprId> bodies_;
  std::vector<ExprId> ignored_terminals_;
  RuleId ignored_ = 0;
  bool in_terminal_ = false;  // what is being read
};

}  // namespace

bool is_lark(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (std::isspace(static_cast<unsigned char>(text[at]))) ++at;
    else if (text[at] == '#' || text.substr(at).starts_with("//")) at = std::min(text.find('\n', at), text.size());
    else break;
  }
  if (at < text.size() && (text[at] == '%' || text[at] == '?' || text[at] == '!')) return true;
  while (at < text.size() && is_word_char(text[at])) ++at;
  if (at < text.size() && text[at] == '.') ++at;
  while (at < text.size() && (is_word_char(text[at]) || text[at] == ' ' || text[at] == '\t')) ++at;
  return at < text.size() && (text[at] == '{' || (text[at] == ':' && !text.substr(at).starts_with("::=")));
}

Result<Rules> read_lark(std::string_view text) {
  if (text.size() > kMaxGrammarBytes) return resource_exhausted("grammar: it has more than 256 KiB");
  return within_budget([&]() -> Result<Rules> {
    LLMB_ASSIGN_OR_RETURN(Rules rules, LarkReader(text).read());
    rules.arena.fold_rules(&rules.bodies);
    return rules;
  });
}

}  // namespace llmb::grammar
