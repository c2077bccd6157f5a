// Languages of strings by plain search, for tests of grammars: knows nothing of bytes, automata or tokens.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace llmb::test {

struct Naive {
  enum Kind { kOneOf, kSequence, kEither, kRepeat, kRule, kScan } kind = kOneOf;
  std::vector<std::string> texts;  // kOneOf
  std::vector<Naive> parts;        // kSequence, kEither; kRepeat: one
  int min = 0, max = -1;           // kRepeat; max -1: no end
  std::string rule;                // kRule
  // kScan: how many bytes from there on are of it; 0: none are, -1: the text ends where more is wanted.
  std::function<int(const std::string& text, size_t at)> scan = {};

  static Naive text(std::string t) { return {kOneOf, {std::move(t)}, {}, 0, -1, "", {}}; }
  static Naive one_of(std::vector<std::string> t) { return {kOneOf, std::move(t), {}, 0, -1, "", {}}; }
  static Naive sequence(std::vector<Naive> p) { return {kSequence, {}, std::move(p), 0, -1, "", {}}; }
  static Naive either(std::vector<Naive> p) { return {kEither, {}, std::move(p), 0, -1, "", {}}; }
  static Naive repeat(Naive p, int min, int max) { return {kRepeat, {}, {std::move(p)}, min, max, "", {}}; }
  static Naive call(std::string r) { return {kRule, {}, {}, 0, -1, std::move(r), {}}; }
  static Naive scanned(std::function<int(const std::string&, size_t)> f) {
    return {kScan, {}, {}, 0, -1, "", std::move(f)};
  }
};

// REQUIRES: every part has some string.
class NaiveLanguage {
 public:
  NaiveLanguage(Naive start, std::map<std::string, Naive> rules) : start_(std::move(start)), rules_(std::move(rules)) {}

  struct Verdict {
    bool is_complete = false;  // the text is in the language
    bool is_viable = false;    // some text of the language begins with it
  };
  Verdict judge(const std::string& text);

 private:
  struct Ends {
    std::set<size_t> ends;
    bool ran_out = false;  // the text ended where more was wanted
    bool operator==(const Ends&) const = default;
  };

  Ends match(const Naive& node, const std::string& text, size_t at);
  Ends match_repeat(const Naive& node, const std::string& text, size_t at);

  const Naive start_;
  const std::map<std::string, Naive> rules_;
  std::map<std::pair<std::string, size_t>, Ends> known_;  // of rules, so far
  std::set<std::pair<std::string, size_t>> open_;         // being matched in this round
  bool has_changed_ = false;
};

}  // namespace llmb::test
