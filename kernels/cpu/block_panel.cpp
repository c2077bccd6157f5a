#include "kernels/cpu/block_panel.h"

#include <cstring>

#include "core/block_scales.h"
#include "kernels/cpu/interleave.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kWidth = PackedLinear::kPanelWidth;

// The scales of a block's parts, a byte each.
void part_scales(BlockFormat format, const uint8_t* block, uint8_t* out) {
  switch (format) {
    case BlockFormat::kQ2_K:
      std::memcpy(out, block, 16);
      return;
    case BlockFormat::kQ3_K:
      for (int j = 0; j < 16; ++j) out[j] = static_cast<uint8_t>(q3_k_scale(block + 96, j));
      return;
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K:
      for (int j = 0; j < 8; ++j) out[j] = static_cast<uint8_t>(q4_k_scale(block + 4, j));
      for (int j = 0; j < 8; ++j) out[8 + j] = static_cast<uint8_t>(q4_k_min(block + 4, j));
      return;
    case BlockFormat::kQ6_K:
      std::memcpy(out, block + 192, 16);
      return;
    case BlockFormat::kIQ4_XS:
      for (int j = 0; j < 8; ++j) out[j] = static_cast<uint8_t>(iq4_xs_scale(block, j));
      return;
    case BlockFormat::kMXFP4:
      out[0] = block[0];
      return;
    case BlockFormat::kInt4F16:
    case BlockFormat::kInt4BF16:
    case BlockFormat::kInt8F16:
    case BlockFormat::kInt8BF16:
      out[0] = block[2];
      return;
    case BlockFormat::kNVFP4:
      std::memcpy(out, block + 36, 4);
      return;
    default:
      return;
  }
}

// Fills a panel of an indexed format behind its sections. stored: [kWidth]  of each row the bytes behind its blocks.
void pack_groups(const uint8_t* const* stored, int64_t num_k, const ColumnGroups& groups, uint8_t* to) {
  std::memcpy(to, groups.of, static_cast<size_t>(num_k) * sizeof(uint16_t));
  to += num_k * int64_t{sizeof(uint16_t)};
  for (int64_t g = 0; g < groups.count; ++g, to += kPanelGroupBytes)
    for (int64_t c = 0; c < kWidth; ++c) {
      std::memcpy(to + 2 * c, stored[c] + 2 * g, 2);
      to[2 * kWidth + c] = stored[c][2 * groups.count + g];
    }
}

}  // namespace

void pack_block_panel(BlockFormat format, const uint8_t* const* rows, int64_t num_k, const ColumnGroups& groups,
                      uint8_t* panel) {
  const BlockSection& section = block_section(format);
  const BlockSize& block = block_size(format);
  const uint8_t* codes[kWidth];
  for (int64_t b = 0; b < num_k / block.size; ++b, panel += section.size()) {
    for (int64_t c = 0; c < kWidth; ++c) codes[c] = rows[c] + b * block.bytes + section.codes_at;
    interleave_words(codes, 0, section.num_words, reinterpret_cast<uint32_t*>(panel));
    uint8_t* const halves = panel + section.halves();
    uint8_t* const bytes = panel + section.scale_bytes();
    for (int64_t c = 0; c < kWidth; ++c) {
      const uint8_t* const stored = rows[c] + b * block.bytes;
      for (int64_t h = 0; h < section.num_halves; ++h)
        std::memcpy(halves + (h * kWidth + c) * 2, stored + block_scales(format).at[h], 2);
      uint8_t scales[16];
      part_scales(format, stored, scales);
      for (int64_t i = 0; i < section.num_bytes; ++i) bytes[i * kWidth + c] = scales[i];
    }
  }
  if (!is_indexed(format)) return;
  for (int64_t c = 0; c < kWidth; ++c) codes[c] = rows[c] + num_k / block.size * block.bytes;
  pack_groups(codes, num_k, groups, panel);
}

}  // namespace llmb::cpu
