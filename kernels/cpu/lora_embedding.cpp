// Some numbers of a row of each token: nothing beside the products that follow.
#include "kernels/cpu/lora_embedding.h"

#include <algorithm>

#include "base/float_formats.h"

namespace llmb::cpu {

void lora_look_up(const TokenId* tokens, LoraWork* work) {
  work->t_stride = 0;
  int32_t num_ids = 0;
  for (const LoraSegment& segment : work->segments) {
    num_ids = std::max(num_ids, segment.row_end);
    work->t_stride = std::max(work->t_stride, segment.matrices.front().rank);
  }
  if (const auto size = static_cast<size_t>(num_ids * work->t_stride); work->t.size() < size) work->t.resize(size);
  for (const LoraSegment& segment : work->segments) {
    const LoraMatrices& m = segment.matrices.front();
    for (int32_t i = segment.row_begin; i < segment.row_end; ++i) {
      const int64_t at = tokens[work->row_ids[i]] * m.rank;
      float* const t = work->t.data() + i * work->t_stride;
      for (int64_t r = 0; r < m.rank; ++r)
        t[r] = m.scale * (m.is_bf16 ? bf16_to_f32(reinterpret_cast<const uint16_t*>(m.a)[at + r])
                                    : reinterpret_cast<const float*>(m.a)[at + r]);
    }
  }
}

}  // namespace llmb::cpu
