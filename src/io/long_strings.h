// Long strings of a line, cut out of it, so that a line that can only be refused is not copied by the parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmb {

// A line in which other text stands for each string of more than a few thousand bytes.
class ShortenedLine {
 public:
  // For any line. nullopt: no string is long, or what remains has more than `max_bytes`. `mark` makes the stand-ins
  // unlike anything that the line holds: a hash of it.
  static std::optional<ShortenedLine> make(std::string_view line, uint64_t mark, size_t max_bytes);

  const std::string& text() const { return text_; }
  // The JSON between the quotes of the string that `text` stands for; nullopt: it stands for itself.
  std::optional<std::string_view> string_for(std::string_view text) const;

 private:
  std::string mark_;
  std::string text_;
  std::vector<std::string_view> strings_;  // into the line
};

// Takes the text that a long string of JSON stands for apart, in pieces that are valid UTF-8 where the text is. Faulty
// escape sequences are left out; with `without_spaces` ASCII's white space is, too.
void for_each_piece(std::string_view json_string, bool without_spaces,
                    const std::function<void(std::string_view)>& take);

}  // namespace llmb
