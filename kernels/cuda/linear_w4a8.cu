// Bound by the bytes of the weight with few rows, 4.5 bits each; beside them by instructions: for 16 numbers of a lane six
// that part their codes, and two for each word of four.
#include "kernels/cuda/linear_w4a8.h"

#include "base/check.h"
#include "kernels/cuda/int8_output.h"
#include "kernels/cuda/linear_codes.h"
#include "kernels/cuda/w4a8_fragments.h"

namespace llmb::cuda {

namespace code_tiles {

using mma_tiles::Int8Pair;

template <class Out, class S>
__global__ void __launch_bounds__(kThreads, 2)
    linear_w4a8_kernel(const __grid_constant__ Args<Int8Pair, w4a8::Codes> args, const W4A8View weight,
                       const float* x_scales, Out* out) {
  multiply_tiles<Int8Pair, S>(args, [&](int tile, const Sums<Int8Pair, S>& sums) {
    sums.for_each([&](int row, int in_tile, int32_t sum) {
      const int64_t feature = int64_t{tile} * kTileFeatures + in_tile;
      if (row >= args.rows || feature >= args.out_features) return;
      const float* const bias = weight.bias == nullptr ? nullptr : weight.bias + feature;
      out[row * args.out_features + feature] =
          from_float<Out>(int8_output(sum, weight.scales[feature], x_scales[row], bias));
    });
  });
}

template <class Out, int kRows>
void launch_w4a8(Args<mma_tiles::Int8Pair, w4a8::Codes> args, const W4A8View& weight, const float* x_scales, Out* out,
                 const LinearCodesOptions& options, cudaStream_t stream) {
  using S = Shape<kRows, w4a8::Codes>;
  args.num_stages = num_stages<S>(options.ring_bytes);
  launch_ahead({dim3(static_cast<unsigned>(num_blocks(args.num_units, options))), dim3(kThreads),
                static_cast<size_t>(args.num_stages) * S::kStageBytes, stream},
               linear_w4a8_kernel<Out, S>, args, weight, x_scales, out);
}

}  // namespace code_tiles

LinearW4A8::LinearW4A8(const LinearCodesOptions& options, cudaStream_t stream)
    : options_(options), workspace_(options, stream) {}

bool LinearW4A8::takes(int64_t out_features, int64_t in_features) {
  return in_features <= kMaxInt8Features && w4a8::num_tiles(out_features) <= code_tiles::kMaxTiles;
}

template <class Out>
void LinearW4A8::run(const W4A8View& weight, const Int8Rows& x, int64_t rows, Out* out, cudaStream_t stream) {
  LLMB_CHECK(takes(weight.out_features, weight.in_features) && rows <= kMaxRows);
  if (rows == 0 || weight.out_features == 0) return;
  code_tiles::Args<mma_tiles::Int8Pair, w4a8::Codes> args{};
  args.weight = weight.units;
  args.x = reinterpret_cast<const mma_tiles::Int8Pair*>(x.values);
  args.out_features = weight.out_features;
  args.in_features = int8_row_bytes(weight.in_features) / 2;
  args.rows = static_cast<int32_t>(rows);
  code_tiles::share_out(&args, workspace_, options_);
  const auto launch = [&]<int kRows>() {
    code_tiles::launch_w4a8<Out, kRows>(args, weight, x.scales, out, options_, stream);
  };
  if (rows <= 8) return launch.template operator()<8>();
  if (rows <= 16) return launch.template operator()<16>();
  if (rows <= 32) return launch.template operator()<32>();
  if (rows <= 64) return launch.template operator()<64>();
  launch.template operator()<128>();
}

template void LinearW4A8::run(const W4A8View&, const Int8Rows&, int64_t, float*, cudaStream_t);
template void LinearW4A8::run(const W4A8View&, const Int8Rows&, int64_t, __nv_bfloat16*, cudaStream_t);
template void LinearW4A8::run(const W4A8View&, const Int8Rows&, int64_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
