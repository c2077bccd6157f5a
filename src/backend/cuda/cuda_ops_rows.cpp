// The residual stream: sums over ranks, and norms. Of many rows each rank sums, adds and norms its own, and gives the
// others what comes out (divided_rows.h). A row's arithmetic is the same whoever does it.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_weights.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/layer_norm.h"
#include "kernels/cuda/norm.h"

namespace llmb {

void CudaOps::sum_over_ranks(Rows x, int64_t rows) {
  if (ranks_ == nullptr) return;
  if (ranks_->divides_rows(rows)) ranks_->sum_own_rows(x, rows);
  else ranks_->sum(x, rows);
}

// body(first row, number of rows) for those of this rank; then all have all rows of `out`, where it has data.
template <typename Body>
void CudaOps::make_rows(int64_t rows, Rows out, const Body& body) {
  if (ranks_ == nullptr || !ranks_->divides_rows(rows)) return body(0, rows);
  const Range own = ranks_->own_rows(rows);
  body(own.begin, own.count());
  if (out.data != nullptr) ranks_->share_rows(out, rows);
}

void CudaOps::complete_rows(Rows residual, int64_t rows) {
  make_rows(rows, residual, [](int64_t, int64_t) {});
}

void CudaOps::add(Rows residual, Rows delta, float factor, int64_t rows, Rows out) {
  make_rows(rows, out, [&](int64_t first, int64_t count) {
    with_type(options_.dtype, [&]<typename T>(T) {
      cuda::add(data<float>(residual.from(first)), data<const T>(delta.from(first)), factor, count * residual.width,
                data<T>(out.from(first)), stream_);
    });
  });
}

void CudaOps::add_columns(Rows x, Rows y, int64_t first_column, float factor, int64_t rows) {
  make_rows(rows, Rows(), [&](int64_t first, int64_t count) {
    with_type(options_.dtype, [&]<typename T>(T) {
      cuda::add_columns(data<float>(x.from(first)), data<const T>(y.from(first)) + first_column, y.width, factor, count,
                        x.width, stream_);
    });
  });
}

void CudaOps::add_rms_norm(Rows residual, Rows delta, const DeviceBuffer& weight, float eps, int64_t rows, Rows out) {
  make_rows(rows, out, [&](int64_t first, int64_t count) {
    with_type(options_.dtype, [&]<typename T>(T) {
      cuda::add_rms_norm(data<float>(residual.from(first)), data<const T>(delta.from(first)),
                         data<const float>(weight.rows()), eps, count, residual.width, data<T>(out.from(first)),
                         stream_);
    });
  });
}

void CudaOps::add_layer_norm(Rows residual, Rows delta, const DeviceBuffer& weight, const DeviceBuffer* bias, float eps,
                             int64_t rows, Rows out) {
  const auto* const b = bias != nullptr ? data<const float>(bias->rows()) : nullptr;
  make_rows(rows, out, [&](int64_t first, int64_t count) {
    with_type(options_.dtype, [&]<typename T>(T) {
      const auto run = [&](auto* to) {
        cuda::add_layer_norm(data<float>(residual.from(first)), data<const T>(delta.from(first)),
                             data<const float>(weight.rows()), b, eps, count, residual.width, to, stream_);
      };
      if (out.dtype == DType::kF32) run(data<float>(out.from(first)));
      else run(data<T>(out.from(first)));
    });
  });
}

}  // namespace llmb
