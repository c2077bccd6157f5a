#include "backend/cuda/cuda_adapters.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cuda/cuda_weights.h"
#include "base/check.h"
#include "base/float_formats.h"

namespace llmb {

using cuda::check;
using cuda::LoraItem;
using cuda::LoraPart;
using cuda::LoraProduct;

namespace {

static_assert(3 * kMaxLoraRank <= cuda::kMaxLoraRanks);

int64_t whole_packs(int64_t bytes) { return ceil_div(bytes, 16) * 16; }

void store(float value, DType dtype, int64_t index, uint8_t* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to + index * 4, &value, 4);
    return;
  }
  const uint16_t half = dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
  std::memcpy(to + index * 2, &half, 2);
}

void store_a(const LoraModule& module, DType dtype, uint8_t* to) {
  std::vector<float> row(module.a.cols);
  for (int64_t r = 0; r < module.rank(); ++r) {
    read_floats(module.a, r, row.data());
    for (int64_t k = 0; k < module.a.cols; ++k) store(row[k], dtype, r * module.a.cols + k, to);
  }
}

void store_b_transposed(const LoraModule& module, DType dtype, uint8_t* to) {
  std::vector<float> row(module.rank());
  for (int64_t column = 0; column < module.b.rows; ++column) {
    read_floats(module.b, module.row_of_column(column), row.data());
    for (int64_t r = 0; r < module.rank(); ++r) store(row[r], dtype, r * module.b.rows + column, to);
  }
}

// An adapter as it lies on the device: the products, whose pointers are places in `bytes` until it is there, and behind
// them the matrices.
struct PackedForDevice final : PackedAdapter {
  std::vector<LoraProduct> products;  // [layers * kNumProjections]
  std::vector<uint8_t> bytes;
};

std::shared_ptr<const PackedAdapter> pack_for_device(const LoraAdapter& adapter, int32_t num_layers, DType dtype) {
  const auto made = std::make_shared<PackedForDevice>();
  PackedForDevice& packed = *made;
  packed.products.resize(int64_t{num_layers} * kNumProjections);
  auto end = whole_packs(static_cast<int64_t>(packed.products.size() * sizeof(LoraProduct)));
  const auto place = [&](int64_t count) {
    const auto* const at = reinterpret_cast<const uint8_t*>(end);
    end += whole_packs(count * dtype_bytes(dtype));
    return at;
  };
  const auto for_each_module = [&](const auto& body) {
    for (int64_t i = 0; i < static_cast<int64_t>(packed.products.size()); ++i) {
      const auto modules = adapter.modules(static_cast<int32_t>(i / kNumProjections), static_cast<Projection>(i % kNumProjections));
      LLMB_CHECK(modules.size() <= cuda::kMaxLoraParts);
      for (size_t m = 0; m < modules.size(); ++m) body(modules[m], packed.products[i], packed.products[i].parts[m]);
    }
  };
  for_each_module([&](const LoraModule& module, LoraProduct& product, LoraPart& part) {
    part.rank_begin = product.num_ranks;
    part.rank_end = product.num_ranks += static_cast<int32_t>(module.rank());
    part.out_column = static_cast<int32_t>(module.out_column);
    part.num_columns = static_cast<int32_t>(module.b.rows);
    part.scale = module.scale;
    part.a = place(module.rank() * module.a.cols);
    part.b = place(module.rank() * module.b.rows);
  });
  // Parts that an adapter lacks follow those it has, and have no ranks.
  for (LoraProduct& product : packed.products)
    for (LoraPart& part : product.parts)
      if (part.a == nullptr) part.rank_begin = part.rank_end = product.num_ranks;
  packed.bytes.resize(static_cast<size_t>(end));
  for_each_module([&](const LoraModule& module, LoraProduct&, LoraPart& part) {
    store_a(module, dtype, packed.bytes.data() + reinterpret_cast<uintptr_t>(part.a));
    store_b_transposed(module, dtype, packed.bytes.data() + reinterpret_cast<uintptr_t>(part.b));
  });
  return made;
}

class Packer final : public AdapterPacker {
 public:
  Packer(int32_t num_layers, DType dtype) : num_layers_(num_layers), dtype_(dtype) {}

  int64_t num_bytes(const LoraAdapter& adapter) const override {
    const int64_t num_products = int64_t{num_layers_} * kNumProjections;
    auto sum = whole_packs(num_products * static_cast<int64_t>(sizeof(LoraProduct)));
    for (int64_t i = 0; i < num_products; ++i)
      for (const LoraModule& module : adapter.modules(static_cast<int32_t>(i / kNumProjections),
                                                      static_cast<Projection>(i % kNumProjections)))
        for (const int64_t size : {module.a.cols, module.b.rows})
          sum += whole_packs(module.rank() * size * dtype_bytes(dtype_));
    return sum;
  }

  std::shared_ptr<const PackedAdapter> pack(const LoraAdapter& adapter) const override {
    return pack_for_device(adapter, num_layers_, dtype_);
  }

 private:
  const int32_t num_layers_;
  const DType dtype_;
};

// The products with their addresses behind `base`.
std::vector<LoraProduct> settled(std::vector<LoraProduct> products, const uint8_t* base) {
  for (LoraProduct& product : products) {
    for (LoraPart& part : product.parts) {
      if (part.a == nullptr) continue;
      part.a = base + reinterpret_cast<uintptr_t>(part.a);
      part.b = base + reinterpret_cast<uintptr_t>(part.b);
    }
  }
  return products;
}

}  // namespace

CudaAdapters::CudaAdapters(const ModelConfig& config, DType dtype, std::shared_ptr<AdapterLibrary> library,
                           int64_t max_bytes, const StepLimits& limits, cudaStream_t stream)
    : config_(config),
      dtype_(dtype),
      max_bytes_(max_bytes),
      stream_(stream),
      pool_(std::move(library), std::make_unique<Packer>(config.num_hidden_layers, dtype), max_bytes) {
  const int64_t bytes = layout({limits.max_num_tokens, 0, limits.max_num_samples}).end;
  device_ = cuda::DeviceMemory(bytes);
  for (auto& host : host_) host = cuda::PinnedMemory(bytes);
  const int64_t max_rows = std::max(limits.max_num_tokens, limits.max_num_samples);
  ranks_ = cuda::DeviceMemory(max_rows * cuda::kMaxLoraRanks * int64_t{sizeof(float)});
}

CudaAdapters::Layout CudaAdapters::layout(const StepShape& shape) {
  Layout at{};
  for (const int kind : {0, 1}) {
    const int64_t rows = kind == 0 ? shape.num_tokens : shape.num_samples;
    at.items[kind] = at.end;
    at.row_ids[kind] = at.end + rows * int64_t{sizeof(LoraItem)};
    at.end = whole_packs(at.row_ids[kind] + rows * int64_t{sizeof(int32_t)});
  }
  return at;
}

void CudaAdapters::set_shape(const StepShape& shape) {
  const Layout at = layout(shape);
  auto* const base = device_.data<uint8_t>();
  for (const int kind : {0, 1})
    by_kind_[kind] = {reinterpret_cast<const LoraItem*>(base + at.items[kind]),
                      reinterpret_cast<const int32_t*>(base + at.row_ids[kind]),
                      kind == 0 ? shape.num_tokens : shape.num_samples};
}

void CudaAdapters::record_step(const StepShape& shape, bool has_adapters) {
  has_any_ = has_adapters;
  set_shape(shape);
}

void CudaAdapters::begin_step(const StepPlan& plan, const StepShape& shape, bool is_recorded) {
  turn_ = (turn_ + 1) % kMaxPlansInFlight;
  rows_.lay_out(plan);
  has_any_ = !rows_.ids().empty();
  if (!has_any_) return;
  size_t num_of_step = 0;
  for (const int32_t id : rows_.ids()) {
    const auto found = on_device_.find(id);
    if (found == on_device_.end()) continue;
    uses_.splice(uses_.end(), uses_, found->second.use);
    ++num_of_step;
  }
  for (const int32_t id : rows_.ids())
    if (!on_device_.contains(id)) on_device_.emplace(id, send(id, num_of_step++));
  set_shape(shape);
  const Layout at = layout(shape);
  uint8_t* const host = host_[turn_].data<uint8_t>();
  pack_items(at, shape, is_recorded, host);
  check(cudaMemcpyAsync(device_.data(), host, at.end, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
}

// num_of_step: adapters of the step that are on the device: the latest used.
CudaAdapters::OnDevice CudaAdapters::send(int32_t id, size_t num_of_step) {
  const auto packed = std::static_pointer_cast<const PackedForDevice>(pool_.take(id));
  const auto bytes = static_cast<int64_t>(packed->bytes.size());
  if (num_bytes_ + bytes > max_bytes_ && uses_.size() > num_of_step)
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");  // a step in flight may use those that go
  while (num_bytes_ + bytes > max_bytes_ && uses_.size() > num_of_step) {
    const auto oldest = on_device_.find(uses_.front());
    num_bytes_ -= oldest->second.memory.bytes();
    uses_.pop_front();
    on_device_.erase(oldest);
  }
  OnDevice sent{cuda::DeviceMemory(bytes), {}};
  // From pageable memory, which a copy has left when the call returns.
  check(cudaMemcpyAsync(sent.memory.data(), packed->bytes.data(), packed->bytes.size(), cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");
  const auto products = settled(packed->products, sent.memory.data<uint8_t>());
  check(cudaMemcpyAsync(sent.memory.data(), products.data(), products.size() * sizeof(LoraProduct),
                        cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");
  num_bytes_ += bytes;
  sent.use = uses_.insert(uses_.end(), id);
  return sent;
}

void CudaAdapters::pack_items(const Layout& at, const StepShape& shape, bool is_recorded, uint8_t* out) {
  for (const int kind : {0, 1}) {
    const AdapterRows::OfKind& rows = rows_.of(kind == 0 ? RowKind::kTokens : RowKind::kSamples);
    auto* const items = reinterpret_cast<LoraItem*>(out + at.items[kind]);
    int32_t count = 0;
    for (size_t i = 0; i < rows_.ids().size(); ++i)
      for (int32_t row = rows.start[i]; row < rows.start[i + 1]; row += cuda::kLoraItemRows)
        items[count++] = {products(rows_.ids()[i]), row, std::min(row + cuda::kLoraItemRows, rows.start[i + 1])};
    const int32_t all = kind == 0 ? shape.num_tokens : shape.num_samples;
    std::fill(items + count, items + all, LoraItem());
    std::copy(rows.row_ids.begin(), rows.row_ids.end(), reinterpret_cast<int32_t*>(out + at.row_ids[kind]));
    if (!is_recorded) by_kind_[kind].num_items = count;
  }
}

// Whether the columns of every part of such a product begin at a multiple of a pack, and its k too.
bool CudaAdapters::can_pack(Projection projection) const {
  const auto all = [](std::initializer_list<int64_t> sizes) {
    return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size % 8 == 0; });
  };
  switch (projection) {
    case Projection::kQkv:
      return all({config_.hidden_size, config_.q_size(), config_.kv_size()});
    case Projection::kO:
      return all({config_.q_size(), config_.hidden_size});
    case Projection::kGateUp:
    case Projection::kDown:
      return all({config_.hidden_size, config_.intermediate_size});
  }
  return false;
}

void CudaAdapters::lora(const AdaptedProduct& product, Rows x, Rows out) {
  const auto index = product.layer * kNumProjections + static_cast<int32_t>(product.projection);
  with_type(dtype_, [&]<typename T>(T) {
    cuda::lora(by_kind_[product.kind == RowKind::kTokens ? 0 : 1], index, can_pack(product.projection),
               data<const T>(x), x.width, data<T>(out), out.width, ranks_.data<float>(), stream_);
  });
}

}  // namespace llmb
