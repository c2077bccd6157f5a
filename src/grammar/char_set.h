// Sets of Unicode characters, and their UTF-8 as expressions.
#pragma once

#include <string_view>
#include <vector>

#include "grammar/expr.h"

namespace llmb::grammar {

struct CharRange {
  char32_t first = 0, last = 0;
};

// Characters are scalar values: surrogates are in no set.
class CharSet {
 public:
  CharSet() = default;
  CharSet(std::initializer_list<CharRange> ranges);
  explicit CharSet(std::vector<CharRange> ranges) : ranges_(std::move(ranges)) { normalise(); }
  static CharSet all() { return {{0, 0x10FFFF}}; }
  static CharSet of(std::u32string_view characters);

  void add(char32_t first, char32_t last);
  void add(const CharSet& other);
  CharSet complement() const;
  CharSet intersect(const CharSet& other) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<CharRange>& ranges() const { return ranges_; }  // in order, apart

 private:
  void normalise();
  std::vector<CharRange> ranges_;
};

// One character of the set.
ExprId utf8_char(const CharSet& set, ExprArena* arena);

}  // namespace llmb::grammar
