// Bound by the bytes of the weight with few rows, 9 bits for each; with 128 by reads of shared memory, 82 KiB for a
// unit of 128 features and 64 k, of which a multiprocessor has 128 bytes a cycle.
#include "kernels/cuda/linear_sparse24.h"

#include "base/check.h"
#include "kernels/cuda/linear_codes.h"
#include "kernels/cuda/sparse24_fragments.h"

namespace llmb::cuda {

LinearSparse24::LinearSparse24(const LinearCodesOptions& options, cudaStream_t stream)
    : options_(options), workspace_(options, stream) {}

bool LinearSparse24::takes(int64_t out_features, int64_t in_features) {
  return in_features % sparse24::kBlock == 0 && sparse24::num_tiles(out_features) <= code_tiles::kMaxTiles;
}

template <class T, class Out>
void LinearSparse24::run(const Sparse24View& weight, const T* x, int64_t rows, Out* out, cudaStream_t stream) {
  LLMB_CHECK(takes(weight.out_features, weight.in_features));
  code_tiles::Args<T, sparse24::Codes> args{};
  args.weight = weight.units;
  args.bias = static_cast<const T*>(weight.bias);
  args.out_features = weight.out_features;
  args.in_features = weight.in_features;
  code_tiles::run(args, x, rows, out, workspace_, options_, stream);
}

template void LinearSparse24::run(const Sparse24View&, const __nv_bfloat16*, int64_t, __nv_bfloat16*, cudaStream_t);
template void LinearSparse24::run(const Sparse24View&, const __nv_bfloat16*, int64_t, float*, cudaStream_t);
template void LinearSparse24::run(const Sparse24View&, const __half*, int64_t, __half*, cudaStream_t);
template void LinearSparse24::run(const Sparse24View&, const __half*, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
