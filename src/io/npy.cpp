#include "io/npy.h"

#include <charconv>

#include "base/check.h"

namespace llmb {

namespace {

constexpr std::string_view kBeforeShape = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
constexpr size_t kTextBegin = 10;  // behind the magic, the version and the text's length

}  // namespace

std::string npy_header(const NpyShape& shape) {
  std::string header(kNpyMagic);
  header += {'\x01', '\x00', static_cast<char>(kNpyHeaderBytes - kTextBegin), '\x00'};
  header += kBeforeShape;
  header += std::to_string(shape.num_rows) + ", " + std::to_string(shape.width) + "), }";
  LLMB_CHECK(header.size() < kNpyHeaderBytes);
  header.resize(kNpyHeaderBytes - 1, ' ');
  return header + '\n';
}

std::optional<NpyShape> parse_npy_header(std::string_view header) {
  constexpr size_t kNumbersBegin = kTextBegin + kBeforeShape.size();
  if (header.size() != kNpyHeaderBytes) return std::nullopt;
  const char* const end = header.data() + header.size();
  NpyShape shape;
  const auto rows = std::from_chars(header.data() + kNumbersBegin, end, shape.num_rows);
  if (rows.ec != std::errc() || end - rows.ptr < 2) return std::nullopt;
  const auto width = std::from_chars(rows.ptr + 2, end, shape.width);
  constexpr int64_t kMost = int64_t{1} << 40;
  if (width.ec != std::errc() || shape.num_rows < 0 || shape.width < 0 || shape.num_rows >= kMost ||
      shape.width >= kMost || npy_header(shape) != header)
    return std::nullopt;
  return shape;
}

}  // namespace llmb
