// Oniguruma (Ruby syntax) to PCRE2. They agree on most of the language. What differs and is rewritten here: \h is a hex
// digit; \s \w \b follow Unicode properties that PCRE2 10.42 defines otherwise; \uHHHH; (?m) means dot-all; {n,m}+ is a
// repeated repetition, not a possessive one; {,n}; and classes may nest and intersect: [a-z&&[^aeiou]].
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <map>

#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_tables.h"

namespace llmb {

namespace {

constexpr int kMaxNesting = 50;

// Items for use between brackets.
constexpr const char* kSpaceItems =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr const char* kHexItems = "0-9A-Fa-f";

std::string hex_escape(char32_t c) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "\\x{%x}", static_cast<unsigned>(c));
  return buffer;
}

// The ranges of a table whose name begins with `name`, neighbours joined.
std::string new_items(const CategoryRange* ranges, size_t num_ranges, std::string_view name) {
  std::string items;
  for (size_t i = 0; i < num_ranges;) {
    if (!std::string_view(ranges[i].name).starts_with(name)) {
      ++i;
      continue;
    }
    const char32_t first = ranges[i].first;
    char32_t last = ranges[i].last;
    for (++i; i < num_ranges && ranges[i].first == last + 1 && std::string_view(ranges[i].name).starts_with(name); ++i) {
      last = ranges[i].last;
    }
    items += hex_escape(first) + "-" + hex_escape(last);
  }
  return items;
}

// A general category such as L or Lu, with the characters that Oniguruma's Unicode 16 has and PCRE2 10.42's 14 has not.
std::string category_items(const std::string& name) {
  return "\\p{" + name + "}" + new_items(kNewCharacters, kNumNewCharacters, name);
}

const std::string& word_items() {
  static const std::string items =
      category_items("L") + category_items("M") + category_items("Nd") + category_items("Nl") + category_items("Pc") +
      "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
  return items;
}

// Outside brackets Oniguruma counts the numerals of Latin-1 in.
std::string lone_word_items() { return word_items() + "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"; }

// Names as they are looked up: lower case, without what separates words.
std::string fold_name(std::string_view name) {
  std::string key;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return key;
}

// The POSIX classes, as properties. Between [: and :] punct has the symbols too.
std::string posix_items(const std::string& key) {
  if (key == "alpha") return "\\p{Alphabetic}" + new_items(kNewCharacters, kNumNewCharacters, "L");
  if (key == "alnum") return posix_items("alpha") + category_items("Nd");
  if (key == "upper") return "\\p{Uppercase}" + new_items(kNewCharacters, kNumNewCharacters, "Lu");
  if (key == "lower") return "\\p{Lowercase}" + new_items(kNewCharacters, kNumNewCharacters, "Ll");
  if (key == "digit") return category_items("Nd");
  if (key == "punct") return category_items("P");
  if (key == "space") return kSpaceItems;
  if (key == "word") return word_items();
  if (key == "xdigit") return kHexItems;
  if (key == "blank") return "\\t\\p{Zs}";
  if (key == "cntrl") return "\\p{Cc}";
  if (key == "ascii") return "\\x{0}-\\x{7f}";
  if (key == "any") return "\\x{0}-\\x{10ffff}";
  return "";
}

// Long names of general categories.
const std::map<std::string, std::string>& category_names() {
  static const std::map<std::string, std::string> table = {
      {"letter", "L"}, {"uppercaseletter", "Lu"}, {"lowercaseletter", "Ll"}, {"titlecaseletter", "Lt"},
      {"modifierletter", "Lm"}, {"otherletter", "Lo"}, {"mark", "M"}, {"nonspacingmark", "Mn"}, {"spacingmark", "Mc"},
      {"enclosingmark", "Me"}, {"number", "N"}, {"decimalnumber", "Nd"}, {"letternumber", "Nl"}, {"othernumber", "No"},
      {"punctuation", "P"}, {"connectorpunctuation", "Pc"}, {"dashpunctuation", "Pd"}, {"openpunctuation", "Ps"},
      {"closepunctuation", "Pe"}, {"initialpunctuation", "Pi"}, {"finalpunctuation", "Pf"}, {"otherpunctuation", "Po"},
      {"symbol", "S"}, {"mathsymbol", "Sm"}, {"currencysymbol", "Sc"}, {"modifiersymbol", "Sk"}, {"othersymbol", "So"},
      {"separator", "Z"}, {"spaceseparator", "Zs"}, {"lineseparator", "Zl"}, {"paragraphseparator", "Zp"},
      {"other", "C"}, {"control", "Cc"}, {"format", "Cf"}, {"privateuse", "Co"}};
  return table;
}

bool compiles(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &offset,
                                   nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// The items of \p{name}; a name that PCRE2 does not know either makes the pattern's compilation fail.
std::string property_items(const std::string& name) {
  const std::string key = fold_name(name);
  const std::string posix = posix_items(key);
  if (!posix.empty()) return posix;
  const auto known = category_names().find(key);
  if (known != category_names().end()) return category_items(known->second);
  if (key.size() <= 2 && std::string_view("lmnpszc").find(key[0]) != std::string_view::npos) {
    std::string category = key;
    category[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(category[0])));
    if (compiles("\\p{" + category + "}")) return category_items(category);
  }
  const std::string script = "\\p{sc:" + name + "}";  // PCRE2's plain name would be the script extensions
  if (compiles(script)) {
    std::string title = key;
    title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
    return script + new_items(kNewScriptCharacters, kNumNewScriptCharacters, title);
  }
  return "\\p{" + name + "}";
}

// A set of characters: what may stand between brackets, or a pattern that matches exactly one character of it.
struct CharSet {
  std::string items;         // where simple
  bool negated = false;      // where simple: the complement of items
  std::string pattern;       // where not simple
  bool is_simple() const { return pattern.empty(); }
  std::string to_pattern() const { return is_simple() ? (negated ? "[^" : "[") + items + "]" : pattern; }
};

// What the repetition check knows of the branch of a group that is being read.
struct Branch {
  bool has_required = false;   // an atom that takes a bounded, non-zero number of repetitions
  bool has_unbounded = false;  // an atom that can repeat without end
};

struct Group {
  size_t out_start = 0;   // where its text begins in the output
  Branch branch;
  bool can_loop = false;  // a finished branch is nothing but unbounded and optional atoms
  bool backtracks = true;  // neither atomic nor a lookaround
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    groups_.push_back({});
    while (pos_ < in_.size()) LLMB_RETURN_IF_ERROR(step());
    if (groups_.size() != 1) return invalid_argument("a ( has no )");
    return std::move(out_);
  }

 private:
  bool at(std::string_view s) const { return in_.substr(pos_).starts_with(s); }
  bool done() const { return pos_ >= in_.size(); }

  Status step() {
    switch (in_[pos_]) {
      case '[': {
        const size_t start = out_.size();
        ++pos_;
        auto set = read_class(0);
        if (!set.ok()) return set.status();
        out_ += set->to_pattern();
        return finish_atom(start, false);
      }
      case '(': return open_group();
      case ')': return close_group();
      case '|':
        end_branch();
        out_ += in_[pos_++];
        return {};
      case '\\': return escape();
      case '^':
      case '$': out_ += in_[pos_++]; return {};
      default: {
        const size_t start = out_.size();
        const size_t from = pos_;
        next_char(in_, &pos_);
        out_ += in_.substr(from, pos_ - from);
        return finish_atom(start, false);
      }
    }
  }

  Status open_group() {
    if (groups_.size() > kMaxNesting) return unsupported("groups nest too deeply");
    Group group;
    group.out_start = out_.size();
    if (at("(?#")) {
      const size_t close = in_.find(')', pos_);
      if (close == std::string_view::npos) return invalid_argument("a ( has no )");
      pos_ = close + 1;
      return {};
    }
    if (!at("(?")) {
      out_ += "(?:";  // captures are never read
      ++pos_;
      groups_.push_back(group);
      return {};
    }
    for (const std::string_view head : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (!at(head)) continue;
      group.backtracks = head == "(?:";
      out_ += head;
      pos_ += head.size();
      groups_.push_back(group);
      return {};
    }
    if (at("(?<") || at("(?'")) {
      const size_t close = in_.find_first_of(">'", pos_ + 3);
      if (close == std::string_view::npos) return invalid_argument("a group name does not end");
      out_ += "(";
      out_ += in_.substr(pos_ + 1, close - pos_);
      pos_ = close + 1;
      groups_.push_back(group);
      return {};
    }
    return open_options(group);
  }

  // (?imx-imx) and (?imx-imx:
  Status open_options(const Group& group) {
    out_ += "(?";
    pos_ += 2;
    while (!done() && in_[pos_] != ')' && in_[pos_] != ':') {
      const char c = in_[pos_++];
      if (c == 'm') out_ += 's';
      else if (c == 'i' || c == '-') out_ += c;
      else return unsupported(std::string("group option ") + c);
    }
    if (done()) return invalid_argument("a ( has no )");
    if (in_[pos_] == ':') groups_.push_back(group);
    out_ += in_[pos_++];
    return {};
  }

  void end_branch() {
    Group& group = groups_.back();
    if (group.branch.has_unbounded && !group.branch.has_required) group.can_loop = true;
    group.branch = {};
  }

  Status close_group() {
    if (groups_.size() == 1) return invalid_argument("a ) has no (");
    end_branch();
    const Group group = groups_.back();
    groups_.pop_back();
    out_ += in_[pos_++];
    return finish_atom(group.out_start, group.can_loop && group.backtracks);
  }

  // Reads the quantifier behind the atom that was written from `start` on. can_loop: the atom by itself matches a run of
  // any length in one piece or in several.
  Status finish_atom(size_t start, bool can_loop) {
    Branch& branch = groups_.back().branch;
    if (done()) {
      note(branch, 1, can_loop);
      return {};
    }
    std::string quantifier;
    int min = 1;
    bool unbounded = false, is_interval = false;
    const char c = in_[pos_];
    if (c == '*' || c == '+' || c == '?') {
      quantifier = c;
      min = c == '+' ? 1 : 0;
      unbounded = c != '?';
      ++pos_;
    } else if (c == '{' && read_interval(&quantifier, &min, &unbounded)) {
      is_interval = true;
    } else {
      note(branch, 1, can_loop);
      return {};
    }
    const bool lazy = !done() && in_[pos_] == '?';
    const bool plus = !done() && in_[pos_] == '+';
    const bool possessive = plus && !is_interval;
    if (unbounded && can_loop && !possessive) return unsupported("repetition nested in repetition can take exponential time");
    out_ += quantifier;
    if (lazy || possessive) out_ += in_[pos_++];
    if (plus && is_interval) {  // a repetition of the repetition
      if (unbounded) return unsupported("repetition nested in repetition can take exponential time");
      out_.insert(start, "(?:");
      out_ += ")+";
      unbounded = true;
      ++pos_;
    }
    note(branch, min, (unbounded || can_loop) && !possessive);
    return {};
  }

  static void note(Branch& branch, int min, bool unbounded) {
    if (unbounded) branch.has_unbounded = true;
    else if (min > 0) branch.has_required = true;
  }

  // {n}, {n,}, {n,m}, {,m} at pos_. Anything else is a literal brace.
  bool read_interval(std::string* quantifier, int* min, bool* unbounded) {
    const size_t close = in_.find('}', pos_);
    if (close == std::string_view::npos || close - pos_ > 12) return false;
    const std::string_view body = in_.substr(pos_ + 1, close - pos_ - 1);
    const size_t comma = body.find(',');
    const std::string_view low = body.substr(0, comma);
    const std::string_view high = comma == std::string_view::npos ? low : body.substr(comma + 1);
    const auto is_number = [](std::string_view s) { return s.find_first_not_of("0123456789") == std::string_view::npos; };
    if (!is_number(low) || !is_number(high) || (low.empty() && high.empty()) || low.size() > 5) return false;
    *min = low.empty() ? 0 : std::stoi(std::string(low));
    *unbounded = comma != std::string_view::npos && high.empty();
    *quantifier = "{" + std::to_string(*min) + (comma == std::string_view::npos ? "" : "," + std::string(high)) + "}";
    pos_ = close + 1;
    return true;
  }

  Status escape() {
    if (pos_ + 1 >= in_.size()) return invalid_argument("the pattern ends in a backslash");
    const size_t start = out_.size();
    const char c = in_[pos_ + 1];
    const std::string word = "[" + lone_word_items() + "]";
    switch (c) {
      case 'b':
        out_ += "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
        pos_ += 2;
        return {};
      case 'B':
        out_ += "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
        pos_ += 2;
        return {};
      case 'A':
      case 'Z':
      case 'z':
      case 'G':
        out_ += in_.substr(pos_, 2);
        pos_ += 2;
        return {};
      case 'R':
      case 'X':
        out_ += in_.substr(pos_, 2);
        pos_ += 2;
        return finish_atom(start, false);
      default: break;
    }
    if ((c >= '1' && c <= '9') || c == 'k' || c == 'g' || c == 'K') return unsupported(std::string("\\") + c);
    CharSet set;
    char32_t literal = 0;
    bool is_literal = false;
    LLMB_RETURN_IF_ERROR(read_escape(&set, &literal, &is_literal));
    if (c == 'w' || c == 'W') set.items = lone_word_items();
    out_ += is_literal ? hex_escape(literal) : set.to_pattern();
    return finish_atom(start, false);
  }

  // An escape that stands for a character or a set of characters, inside or outside brackets. pos_ is at the backslash.
  Status read_escape(CharSet* set, char32_t* literal, bool* is_literal) {
    ++pos_;
    if (done()) return invalid_argument("the pattern ends in a backslash");
    const size_t from = pos_;
    const char32_t c = next_char(in_, &pos_);
    *is_literal = false;
    switch (c) {
      case 's': *set = {kSpaceItems, false, ""}; return {};
      case 'S': *set = {kSpaceItems, true, ""}; return {};
      case 'w': *set = {word_items(), false, ""}; return {};
      case 'W': *set = {word_items(), true, ""}; return {};
      case 'd': *set = {category_items("Nd"), false, ""}; return {};
      case 'D': *set = {category_items("Nd"), true, ""}; return {};
      case 'h': *set = {kHexItems, false, ""}; return {};
      case 'H': *set = {kHexItems, true, ""}; return {};
      case 'p':
      case 'P': return read_property(c == 'P', set);
      default: break;
    }
    *is_literal = true;
    switch (c) {
      case 'n': *literal = '\n'; return {};
      case 'r': *literal = '\r'; return {};
      case 't': *literal = '\t'; return {};
      case 'f': *literal = '\f'; return {};
      case 'v': *literal = '\v'; return {};
      case 'a': *literal = '\a'; return {};
      case 'e': *literal = 0x1B; return {};
      case '0': *literal = 0; return {};
      case 'u': return read_hex(4, 4, literal);
      case 'x':
        if (!at("{")) return read_hex(1, 2, literal);
        ++pos_;
        LLMB_RETURN_IF_ERROR(read_hex(1, 8, literal));
        if (!at("}")) return invalid_argument("\\x{ does not end");
        ++pos_;
        return {};
      default: break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) {
      return unsupported("escape \\" + std::string(in_.substr(from, pos_ - from)));
    }
    *literal = c;
    return {};
  }

  Status read_hex(int min_digits, int max_digits, char32_t* value) {
    uint64_t v = 0;
    int digits = 0;
    for (; digits < max_digits && !done() && std::isxdigit(static_cast<unsigned char>(in_[pos_])); ++digits, ++pos_) {
      const char c = in_[pos_];
      v = v * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (digits < min_digits || v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) return invalid_argument("not a character code");
    *value = static_cast<char32_t>(v);
    return {};
  }

  // \p{Name}, \p{^Name}, \pL; pos_ is behind the p.
  Status read_property(bool negated, CharSet* set) {
    std::string name;
    if (at("{")) {
      const size_t close = in_.find('}', pos_);
      if (close == std::string_view::npos) return invalid_argument("\\p{ does not end");
      name = in_.substr(pos_ + 1, close - pos_ - 1);
      pos_ = close + 1;
      if (!name.empty() && name[0] == '^') {
        negated = !negated;
        name.erase(0, 1);
      }
    } else if (!done()) {
      name = in_[pos_++];
    }
    if (name.empty() || name.find_first_of("\\[](){}") != std::string::npos) return invalid_argument("\\p without a name");
    *set = {property_items(name), negated, ""};
    return {};
  }

  // The rest of a bracket expression; pos_ is behind its [.
  Result<CharSet> read_class(int depth) {
    if (depth > kMaxNesting) return unsupported("classes nest too deeply");
    bool negated = false;
    if (at("^")) {
      negated = true;
      ++pos_;
    }
    std::vector<CharSet> operands;        // of &&
    std::string items;                    // of the operand being read
    std::vector<std::string> patterns;    // its members that are not simple
    bool first = true;
    for (;; first = false) {
      if (done()) return invalid_argument("a [ has no ]");
      if (at("]") && !first) break;
      if (at("&&")) {
        pos_ += 2;
        operands.push_back(make_set(&items, &patterns));
        continue;
      }
      CharSet member;
      LLMB_RETURN_IF_ERROR(read_member(depth, &member));
      if (member.is_simple() && !member.negated) items += member.items;
      else patterns.push_back(member.to_pattern());
    }
    ++pos_;
    operands.push_back(make_set(&items, &patterns));
    CharSet result = operands.back();
    if (operands.size() > 1) {
      std::string all = "(?:";
      for (size_t i = 0; i + 1 < operands.size(); ++i) all += "(?=" + operands[i].to_pattern() + ")";
      result = {"", false, all + operands.back().to_pattern() + ")"};
    }
    if (!negated) return result;
    if (result.is_simple()) {
      result.negated = !result.negated;
      return result;
    }
    return CharSet{"", false, "(?:(?!" + result.pattern + ")(?s:.))"};
  }

  static CharSet make_set(std::string* items, std::vector<std::string>* patterns) {
    CharSet set;
    if (patterns->empty()) {
      set.items = *items;
      if (items->empty()) set.pattern = "(?!)";
    } else {
      set.pattern = "(?:";
      for (const std::string& p : *patterns) set.pattern += p + "|";
      if (!items->empty()) set.pattern += "[" + *items + "]";
      else set.pattern.pop_back();
      set.pattern += ")";
    }
    items->clear();
    patterns->clear();
    return set;
  }

  // One member of a class: a nested class, a property, a character or a range.
  Status read_member(int depth, CharSet* member) {
    if (at("[:")) return read_posix(member);
    if (at("[")) {
      ++pos_;
      auto nested = read_class(depth + 1);
      if (!nested.ok()) return nested.status();
      *member = *nested;
      return {};
    }
    char32_t low = 0;
    bool is_literal = true;
    LLMB_RETURN_IF_ERROR(read_class_char(member, &low, &is_literal));
    if (!is_literal) return {};
    member->items = hex_escape(low);
    if (!at("-") || pos_ + 1 >= in_.size() || in_[pos_ + 1] == ']' || in_[pos_ + 1] == '[') return {};
    const size_t before = pos_;
    ++pos_;
    CharSet set;
    char32_t high = 0;
    LLMB_RETURN_IF_ERROR(read_class_char(&set, &high, &is_literal));
    if (!is_literal) {  // [a-\d]: the hyphen stands for itself
      pos_ = before;
      return {};
    }
    if (high < low) return invalid_argument("a range in a class is empty");
    member->items += "-" + hex_escape(high);
    return {};
  }

  Status read_class_char(CharSet* set, char32_t* c, bool* is_literal) {
    if (done()) return invalid_argument("a [ has no ]");
    if (!at("\\")) {
      *c = next_char(in_, &pos_);
      *is_literal = true;
      return {};
    }
    if (at("\\b")) {
      pos_ += 2;
      *c = '\b';
      *is_literal = true;
      return {};
    }
    return read_escape(set, c, is_literal);
  }

  Status read_posix(CharSet* member) {
    const size_t close = in_.find(":]", pos_);
    if (close == std::string_view::npos) return invalid_argument("[: has no :]");
    std::string name(in_.substr(pos_ + 2, close - pos_ - 2));
    bool negated = false;
    if (!name.empty() && name[0] == '^') {
      negated = true;
      name.erase(0, 1);
    }
    std::string items = posix_items(fold_name(name));
    if (items.empty()) return unsupported("class [:" + name + ":]");
    if (fold_name(name) == "punct") items += category_items("S");
    pos_ = close + 2;
    *member = {items, negated, ""};
    return {};
  }

  std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  std::vector<Group> groups_;
};

}  // namespace

Result<std::string> translate_oniguruma(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace llmb
