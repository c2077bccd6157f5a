// Bound by the bytes of the weight with few rows; beside them, by the instructions that make numbers of codes: four for
// two numbers, five of MXFP4.
#include "kernels/cuda/linear_int4.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/int4_fragments.h"
#include "kernels/cuda/linear_codes.h"

namespace llmb::cuda {

LinearInt4::LinearInt4(const LinearInt4Options& options, cudaStream_t stream)
    : options_(options),
      codes_{options.num_sms, options.blocks_per_sm, options.ring_bytes},
      workspace_(codes_, stream),
      wgmma_({options.num_sms, std::min(options.wgmma_blocks_per_sm, options.blocks_per_sm), options.deterministic}) {}

bool LinearInt4::takes(int64_t out_features, int64_t in_features) {
  return in_features % 8 == 0 && int4::num_tiles(out_features) <= code_tiles::kMaxTiles;
}

template <class T, class Out>
void LinearInt4::run(const Int4View& weight, const T* x, int64_t rows, Out* out, cudaStream_t stream) {
  LLMB_CHECK(takes(weight.out_features, weight.in_features));
  const bool is_few = !options_.deterministic && rows <= tuning::kMaxInt4MmaRows;
  if (options_.hopper && !is_few && LinearInt4Wgmma::takes(weight.out_features, weight.in_features))
    return wgmma_.run(weight, x, rows, out, workspace_, stream);
  int4::with_codes(weight.meaning, [&]<class Codes>(Codes) {
    code_tiles::Args<T, Codes> args{};
    args.weight = weight.units;
    args.bias = static_cast<const T*>(weight.bias);
    args.out_features = weight.out_features;
    args.in_features = weight.in_features;
    code_tiles::run(args, x, rows, out, workspace_, codes_, stream);
  });
}

template void LinearInt4::run(const Int4View&, const __nv_bfloat16*, int64_t, __nv_bfloat16*, cudaStream_t);
template void LinearInt4::run(const Int4View&, const __nv_bfloat16*, int64_t, float*, cudaStream_t);
template void LinearInt4::run(const Int4View&, const __half*, int64_t, __half*, cudaStream_t);
template void LinearInt4::run(const Int4View&, const __half*, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
