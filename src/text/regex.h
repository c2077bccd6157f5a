// Regular expressions as tokenizer files write them (Oniguruma, Ruby syntax), run by PCRE2 with its JIT.
// Regex is immutable and thread-safe; a RegexScratch belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace llmb {

class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

// A stretch of a text that a pattern matches, or that lies between two matches.
struct Span {
  size_t begin;
  size_t end;
  bool is_match;
};

class Regex {
 public:
  // unsupported or invalid_argument, naming the pattern, where it cannot be run.
  static Result<Regex> compile(std::string_view oniguruma_pattern);
  // A pattern that matches `text` itself.
  static Result<Regex> compile_literal(std::string_view text);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // All matches in `text` (valid UTF-8) and the stretches between them, in order, into *spans. Matches may be empty; an
  // empty match right after a match does not count. A search that exceeds its step limit ends the search: bounded time.
  void find_all(std::string_view text, RegexScratch& scratch, std::vector<Span>* spans) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// The same pattern in PCRE2's syntax, for options UTF, UCP and MULTILINE. unsupported for repetition nested in a way
// that can take exponential time, such as (a+)+.
Result<std::string> translate_oniguruma(std::string_view pattern);

}  // namespace llmb
