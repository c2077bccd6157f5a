// Bound by the bytes of the weight with few rows; beside them, by the instructions that widen its numbers: for four of
// them nine as bfloat16, three as float16 by devices that convert e4m3 themselves. Not timed yet.
#include "kernels/cuda/linear_fp8.h"

#include "base/check.h"
#include "kernels/cuda/fp8_fragments.h"
#include "kernels/cuda/linear_codes.h"

namespace llmb::cuda {

namespace {

constexpr int kCheckThreads = 128;

// A thread takes a feature of a row.
template <class T, class Out>
__global__ void __launch_bounds__(kCheckThreads)
    count_fp8_differences_kernel(Fp8View weight, Fp8Rows x, const Out* out, uint32_t* differences) {
  const int64_t row = blockIdx.x, feature = int64_t{blockIdx.y} * kCheckThreads + threadIdx.x;
  if (feature >= weight.out_features) return;
  const int64_t size = weight.row_bytes();
  const E4m3 *const w = weight.weight + feature * size, *const v = x.values + row * size;
  float sum = 0, magnitudes = 0;
  for (int64_t k = 0; k < size; ++k) {
    const float product = to_float(w[k]) * to_float(v[k]);
    sum += product;
    magnitudes += fabsf(product);
  }
  const float scale = weight.scales[feature] * x.scales[row];
  const float bias = weight.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(weight.bias)[feature]);
  const float expected = sum * scale + bias, actual = to_float(out[row * weight.out_features + feature]);
  if (!isfinite(to_float(from_float<Out>(expected)))) return;
  const float tolerance = (magnitudes * scale + fabsf(bias)) * 0x1p-8f;
  if (!(fabsf(actual - expected) <= tolerance)) atomicAdd(differences, 1u);
}

}  // namespace

LinearFp8::LinearFp8(const LinearCodesOptions& options, cudaStream_t stream)
    : options_(options), workspace_(options, stream) {}

bool LinearFp8::takes(int64_t out_features, int64_t in_features) {
  return in_features % 8 == 0 && code_tiles::num_tiles(out_features) <= code_tiles::kMaxTiles;
}

template <class T, class Out>
void LinearFp8::run(const Fp8View& weight, const T* x, int64_t rows, Out* out, cudaStream_t stream) {
  LLMB_CHECK(takes(weight.out_features, weight.in_features));
  code_tiles::Args<T, fp8::Codes> args{};
  args.weight = {weight.weight, weight.out_features};
  args.scales = weight.scales;
  args.bias = static_cast<const T*>(weight.bias);
  args.out_features = weight.out_features;
  args.in_features = weight.in_features;
  code_tiles::run(args, x, rows, out, workspace_, options_, stream);
}

template <class Out>
void count_fp8_differences(const Fp8View& weight, const Fp8Rows& x, int64_t rows, DType bias_dtype, const Out* out,
                           uint32_t* differences, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(weight.out_features, kCheckThreads)));
  launch({grid, dim3(kCheckThreads), 0, stream},
         bias_dtype == DType::kF16 ? count_fp8_differences_kernel<__half, Out>
                                   : count_fp8_differences_kernel<__nv_bfloat16, Out>,
         weight, x, out, differences);
}

template void count_fp8_differences(const Fp8View&, const Fp8Rows&, int64_t, DType, const float*, uint32_t*,
                                    cudaStream_t);
template void count_fp8_differences(const Fp8View&, const Fp8Rows&, int64_t, DType, const __nv_bfloat16*, uint32_t*,
                                    cudaStream_t);
template void count_fp8_differences(const Fp8View&, const Fp8Rows&, int64_t, DType, const __half*, uint32_t*,
                                    cudaStream_t);
template void LinearFp8::run(const Fp8View&, const __nv_bfloat16*, int64_t, __nv_bfloat16*, cudaStream_t);
template void LinearFp8::run(const Fp8View&, const __nv_bfloat16*, int64_t, float*, cudaStream_t);
template void LinearFp8::run(const Fp8View&, const __half*, int64_t, __half*, cudaStream_t);
template void LinearFp8::run(const Fp8View&, const __half*, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
