// Reads what stands for one character in an Oniguruma pattern: escapes, properties and bracket expressions, which may
// nest and intersect.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace llmb {

// A set of characters: what may stand between brackets, or a pattern that matches exactly one character of it.
struct CharSet {
  std::string items;     // where simple
  bool negated = false;  // where simple: the complement of items
  std::string pattern;   // where not simple
  bool is_simple() const { return pattern.empty(); }
  std::string to_pattern() const { return is_simple() ? (negated ? "[^" : "[") + items + "]" : pattern; }
};

// Reads from `pattern` (valid UTF-8) at *pos and moves it; both belong to the caller and outlive the reader.
class CharSetReader {
 public:
  CharSetReader(std::string_view pattern, size_t* pos) : in_(pattern), pos_(*pos) {}

  // An escape that stands for a character or a set of characters, inside or outside brackets; *pos is at the backslash.
  Status read_escape(CharSet* set, char32_t* literal, bool* is_literal);

  // The rest of a bracket expression; *pos is behind its [.
  Result<CharSet> read_class(int depth);

 private:
  bool at(std::string_view s) const { return in_.substr(pos_).starts_with(s); }
  bool done() const { return pos_ >= in_.size(); }
  Status read_literal_escape(char32_t c, size_t from, char32_t* literal);
  Status read_hex(int min_digits, int max_digits, char32_t* value);
  Status read_property(bool negated, CharSet* set);
  Status read_member(int depth, CharSet* member);
  Status read_class_char(CharSet* set, char32_t* c, bool* is_literal);
  Status read_posix(CharSet* member);

  std::string_view in_;
  size_t& pos_;
};

}  // namespace llmb
