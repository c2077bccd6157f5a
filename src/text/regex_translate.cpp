// Oniguruma (Ruby syntax) to PCRE2. They agree on most of the language. What differs and is rewritten here: \h is a hex
// digit; \s \w \b follow Unicode properties that PCRE2 10.42 defines otherwise; \uHHHH; (?m) means dot-all; {n,m}+ is a
// repeated repetition, not a possessive one; {,n}; and classes may nest and intersect: [a-z&&[^aeiou]].
#include "text/regex.h"
#include "text/regex_char_set.h"
#include "text/regex_properties.h"
#include "text/unicode.h"

namespace llmb {

namespace {

constexpr int kMaxNesting = 50;

// The repetition check's knowledge of the branch of a group that is being read.
struct Branch {
  bool has_required = false;   // an atom that takes a bounded, non-zero number of repetitions
  bool has_unbounded = false;  // an atom that can repeat without end
};

struct Group {
  size_t out_start = 0;  // where its text begins in the output
  Branch branch;
  bool can_loop = false;   // a finished branch is nothing but unbounded and optional atoms
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
        LLMB_ASSIGN_OR_RETURN(auto set, reader_.read_class(0));
        out_ += set.to_pattern();
        return finish_atom(start, false);
      }
      case '(':
        return open_group();
      case ')':
        return close_group();
      case '|':
        end_branch();
        out_ += in_[pos_++];
        return {};
      case '\\':
        return escape();
      case '^':
      case '$':
        out_ += in_[pos_++];
        return {};
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

  // Reads the quantifier behind the atom that was written from `start` on. can_loop: the atom by itself matches a run
  // of any length in one piece or in several.
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
    const bool question = !done() && in_[pos_] == '?', plus = !done() && in_[pos_] == '+';
    const bool is_exact = is_interval && quantifier.find(',') == std::string::npos;
    const bool lazy = question && !is_exact;
    const bool possessive = plus && !is_interval;
    if (unbounded && can_loop && !possessive)
      return unsupported("repetition nested in repetition can take exponential time");
    out_ += quantifier;
    if (lazy || possessive) out_ += in_[pos_++];
    if (plus && is_interval) {  // a repetition of the repetition
      if (unbounded) return unsupported("repetition nested in repetition can take exponential time");
      out_.insert(start, "(?:");
      out_ += ")+";
      unbounded = true;
      ++pos_;
    }
    if (question && is_exact) {  // {n}? is {n}, or nothing
      out_.insert(start, "(?:");
      out_ += ")?";
      min = 0;
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
    const auto is_number = [](std::string_view s) {
      return s.find_first_not_of("0123456789") == std::string_view::npos;
    };
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
      default:
        break;
    }
    if ((c >= '1' && c <= '9') || c == 'k' || c == 'g' || c == 'K') return unsupported(std::string("\\") + c);
    CharSet set;
    char32_t literal = 0;
    bool is_literal = false;
    LLMB_RETURN_IF_ERROR(reader_.read_escape(&set, &literal, &is_literal));
    if (c == 'w' || c == 'W') set.items = lone_word_items();
    out_ += is_literal ? hex_escape(literal) : set.to_pattern();
    return finish_atom(start, false);
  }

  std::string_view in_;
  size_t pos_ = 0;
  CharSetReader reader_{in_, &pos_};
  std::string out_;
  std::vector<Group> groups_;
};

}  // namespace

Result<std::string> translate_oniguruma(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace llmb
