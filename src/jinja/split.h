// Cutting text as str.split, rsplit, splitlines and replace do. Pieces are views of the text.
#pragma once

#include "jinja/text.h"
#include "jinja/value.h"

namespace llmb::jinja {

// Calls add(piece) for the pieces between separators, at most max_splits + 1; from the right, the last piece first.
template <typename Add>
void split_on(std::string_view text, std::string_view separator, int64_t max_splits, bool from_right, const Add& add) {
  while (max_splits-- > 0) {
    const size_t at = from_right ? find_last_text(text, separator) : find_text(text, separator);
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at), after = text.substr(at + separator.size());
    add(from_right ? after : before);
    text = from_right ? before : after;
  }
  add(text);
}

// The same at runs of white space, which also go at both ends.
template <typename Add>
void split_on_space(std::string_view text, int64_t max_splits, bool from_right, const Add& add) {
  const Side outer = from_right ? Side::kRight : Side::kLeft;
  text = strip(text, outer);
  while (!text.empty()) {
    if (max_splits-- <= 0) return add(text);
    size_t edge = from_right ? text.size() : 0;
    for (;;) {  // to the end of this word
      size_t at = edge;
      if (from_right ? at == 0 : at == text.size()) break;
      if (is_space(from_right ? previous_char(text, &at) : next_char(text, &at))) break;
      edge = at;
    }
    add(from_right ? text.substr(edge) : text.substr(0, edge));
    text = strip(from_right ? text.substr(0, edge) : text.substr(edge), outer);
  }
}

// Calls visit(line, line_end) for each line, as str.splitlines sees lines; line_end follows line in the text.
template <typename Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const uint32_t c = next_char(text, &at);
    const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    visit(text.substr(begin, end - begin), text.substr(end, at - end));
    begin = at;
  }
  if (begin < text.size()) visit(text.substr(begin), text.substr(text.size()));
}

// str.replace: `text` may be safe text, then `replacement` is escaped. count < 0: all.
Value replace_text(Heap& heap, const Value& text, const Value& old, const Value& replacement, int64_t count);

}  // namespace llmb::jinja
