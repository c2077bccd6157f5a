// The header of a .npy file (numpy's format, version 1.0) of fp32 rows. They follow it, one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llmb {

struct NpyShape {
  int64_t num_rows = 0, width = 0;
  int64_t row_bytes() const { return width * 4; }
};

inline constexpr size_t kNpyHeaderBytes = 128;
inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

// kNpyHeaderBytes, whatever the shape. REQUIRES: both are below 2^40.
std::string npy_header(const NpyShape& shape);

// nullopt: not as npy_header() writes it.
std::optional<NpyShape> parse_npy_header(std::string_view header);

}  // namespace llmb
