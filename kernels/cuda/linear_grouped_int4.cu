#include "base/check.h"
#include "kernels/cuda/int4_fragments.h"
#include "kernels/cuda/linear_grouped_codes.h"
#include "kernels/cuda/linear_int4.h"

namespace llmb::cuda {

template <class T>
void linear_grouped_int4(const GroupedWeights& weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                         int32_t num_tiles, int32_t tile_rows, T* out, cudaStream_t stream) {
  LLMB_CHECK(weights.is_int4 && LinearInt4::takes(weights.out_features, weights.in_features));
  int4::with_four_bits(weights.meaning, [&]<class Codes>(Codes) {
    code_tiles::run_grouped<T, Codes>(weights, x, x_rows, tiles, num_tiles, tile_rows, out, stream);
  });
}

template void linear_grouped_int4(const GroupedWeights&, const __nv_bfloat16*, const int32_t*, const RowTile*, int32_t,
                                  int32_t, __nv_bfloat16*, cudaStream_t);
template void linear_grouped_int4(const GroupedWeights&, const __half*, const int32_t*, const RowTile*, int32_t,
                                  int32_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
