#include "io/long_strings.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/utf8.h"

namespace llmb {

namespace {

constexpr size_t kLongString = 4096;
constexpr size_t kPiece = 64 << 10;

// Where the string that begins at `pos`, behind its quote, ends: at its other quote, or at the text's end.
size_t string_end(std::string_view text, size_t pos) {
  while (pos < text.size() && text[pos] != '"') pos += text[pos] == '\\' ? 2 : 1;
  return std::min(pos, text.size());
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The number of the \uXXXX at `pos`; nullopt where there is none.
std::optional<char32_t> code_unit(std::string_view text, size_t pos) {
  if (pos + 6 > text.size() || text[pos] != '\\' || text[pos + 1] != 'u') return std::nullopt;
  uint32_t unit = 0;
  const char* const end = text.data() + pos + 6;
  if (std::from_chars(text.data() + pos + 2, end, unit, 16).ptr != end) return std::nullopt;
  return unit;
}

// Appends the character of the escape sequence at `pos`; returns how long that is.
size_t unescape(std::string_view text, size_t pos, std::string* out) {
  constexpr std::string_view kNames = "\"\\/bfnrt", kCharacters = "\"\\/\b\f\n\r\t";
  const auto unit = code_unit(text, pos);
  if (!unit) {
    const size_t index = pos + 1 < text.size() ? kNames.find(text[pos + 1]) : kNames.npos;
    if (index != kNames.npos) *out += kCharacters[index];
    return 2;
  }
  const auto low = code_unit(text, pos + 6);
  const bool is_pair = *unit >= 0xD800 && *unit < 0xDC00 && low && *low >= 0xDC00 && *low < 0xE000;
  if (is_pair) append_utf8(out, 0x10000 + ((*unit - 0xD800) << 10) + (*low - 0xDC00));
  else if (*unit < 0xD800 || *unit >= 0xE000) append_utf8(out, *unit);
  return is_pair ? 12 : 6;
}

}  // namespace

std::optional<ShortenedLine> ShortenedLine::make(std::string_view line, uint64_t mark, size_t max_bytes) {
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof digits, mark, 16).ptr;
  ShortenedLine out;
  out.mark_ = "long string " + std::string(digits, end) + " ";
  size_t copied = 0;
  for (size_t pos = 0; pos < line.size();) {
    const void* const quote = std::memchr(line.data() + pos, '"', line.size() - pos);
    if (quote == nullptr) break;
    const size_t begin = static_cast<const char*>(quote) - line.data() + 1;
    const size_t end_of_string = string_end(line, begin);
    if (end_of_string - begin >= kLongString && end_of_string < line.size()) {
      if (out.text_.size() + begin - copied > max_bytes) return std::nullopt;
      out.text_.append(line, copied, begin - copied);
      out.text_ += out.mark_ + std::to_string(out.strings_.size());
      out.strings_.push_back(line.substr(begin, end_of_string - begin));
      copied = end_of_string;
    }
    pos = end_of_string + 1;
  }
  if (out.strings_.empty() || out.text_.size() + line.size() - copied > max_bytes) return std::nullopt;
  out.text_.append(line, copied);
  return out;
}

std::optional<std::string_view> ShortenedLine::string_for(std::string_view text) const {
  if (text.substr(0, mark_.size()) != mark_) return std::nullopt;
  size_t index = strings_.size();
  std::from_chars(text.data() + mark_.size(), text.data() + text.size(), index);
  if (index >= strings_.size()) return std::nullopt;
  return strings_[index];
}

void for_each_piece(std::string_view json_string, bool without_spaces,
                    const std::function<void(std::string_view)>& take) {
  std::string piece;
  for (size_t pos = 0; pos < json_string.size();) {
    if (piece.size() >= kPiece && !is_continuation(json_string[pos])) {
      take(piece);
      piece.clear();
    }
    const size_t size = piece.size();
    if (json_string[pos] == '\\') pos += unescape(json_string, pos, &piece);
    else piece += json_string[pos++];
    const std::string_view added = std::string_view(piece).substr(size);
    if (without_spaces && added.find_first_not_of(" \t\n\v\f\r") == added.npos) piece.resize(size);
  }
  if (!piece.empty()) take(piece);
}

}  // namespace llmb
