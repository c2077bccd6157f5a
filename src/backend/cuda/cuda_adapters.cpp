#include "backend/cuda/cuda_adapters.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_weights.h"
#include "base/check.h"
#include "model/adapted_products.h"

namespace llmb {

using cuda::check;
using cuda::LoraItem;
using cuda::LoraProduct;

namespace {

int64_t whole_items(int64_t rows) { return ceil_div(rows, cuda::kLoraItemRows) * cuda::kLoraItemRows; }

}  // namespace

CudaAdapters::CudaAdapters(const ModelConfig& config, DType dtype, std::shared_ptr<AdapterLibrary> library,
                           int64_t max_bytes, const StepLimits& limits, cudaStream_t stream,
                           std::optional<LoraShare> rank)
    : config_(config),
      dtype_(dtype),
      num_pages_(static_cast<int32_t>(max_bytes / adapter_page_bytes(config, dtype))),
      stream_(stream),
      pool_(std::move(library), std::make_unique<PackerForDevice>(config, dtype, std::move(rank)), max_bytes) {
  const int64_t bytes = layout({limits.max_num_tokens, 0, limits.max_num_samples, {}}).end;
  device_ = cuda::DeviceMemory(bytes);
  for (int i = 0; i < limits.max_plans_in_flight; ++i) host_.emplace_back(bytes);
  const int64_t max_rows = std::max(limits.max_num_tokens, limits.max_num_samples);
  ranks_ = cuda::DeviceMemory(whole_items(max_rows) * cuda::kMaxLoraRanks * int64_t{sizeof(float)});
  const int64_t max_slots = config.experts.num_experts > 0 ? max_rows * config.experts.top_k : 0;
  products_of_slots_ = cuda::DeviceMemory(max_slots * int64_t{sizeof(const LoraProduct*)});
  items_of_slots_ = cuda::DeviceMemory(max_slots * int64_t{sizeof(LoraItem)});
}

CudaAdapters::Layout CudaAdapters::layout(const StepShape& shape) const {
  Layout at{};
  for (const int kind : {0, 1}) {
    const int64_t rows = kind == 0 ? shape.num_tokens : shape.num_samples;
    at.items[kind] = at.end;
    at.row_ids[kind] = at.end + rows * int64_t{sizeof(LoraItem)};
    at.experts[kind] = ceil_div(at.row_ids[kind] + rows * int64_t{sizeof(int32_t)}, int64_t{16}) * 16;
    const int64_t table_bytes = config_.experts.num_experts > 0 ? int64_t{sizeof(cuda::ExpertLoraTables)} : 0;
    at.end = ceil_div(at.experts[kind] + rows * table_bytes, int64_t{16}) * 16;
  }
  return at;
}

void CudaAdapters::set_shape(const StepShape& shape) {
  const Layout at = layout(shape);
  auto* const base = device_.data<uint8_t>();
  for (const int kind : {0, 1}) {
    by_kind_[kind] = {reinterpret_cast<const LoraItem*>(base + at.items[kind]),
                      reinterpret_cast<const int32_t*>(base + at.row_ids[kind]),
                      kind == 0 ? shape.num_tokens : shape.num_samples};
    experts_by_kind_[kind] = reinterpret_cast<const cuda::ExpertLoraTables*>(base + at.experts[kind]);
  }
  by_part_[0] = by_part_[1] = by_kind_[0];
  const int32_t second = shape.second.row;  // with which its items begin as well
  by_part_[0].num_items = second;
  by_part_[1].items += second, by_part_[1].num_items -= second;
}

void CudaAdapters::record_step(const StepShape& shape, AdapterUse use) {
  use_ = use;
  set_shape(shape);
}

AdapterUse CudaAdapters::use_of(const StepPlan& plan) {
  AdapterUse use = AdapterUse::kNone;
  for (const StepEntry& entry : plan.entries) {
    if (entry.adapter < 0 || use == AdapterUse::kExperts) continue;
    const auto found = on_device_.find(entry.adapter);
    const bool is_sent = found != on_device_.end();
    const bool has_experts = is_sent ? found->second.experts != nullptr : in_host(entry.adapter)->has_experts();
    use = has_experts ? AdapterUse::kExperts : AdapterUse::kDense;
  }
  return use;
}

void CudaAdapters::begin_step(const StepPlan& plan, const StepShape& shape, bool is_recorded) {
  turn_ = (turn_ + 1) % host_.size();
  rows_.lay_out(plan);
  use_ = use_of(plan);
  if (use_ == AdapterUse::kNone) return;
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
  if (use_ == AdapterUse::kExperts) pack_experts(at, shape, host);
  check(cudaMemcpyAsync(device_.data(), host, at.end, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
}

int64_t CudaAdapters::pool_bytes() const { return num_pages_ * adapter_page_bytes(config_, dtype_); }

void CudaAdapters::set_pool(uint8_t* begin) {
  LLMB_CHECK(on_device_.empty());
  pages_ = begin == nullptr ? DevicePages() : DevicePages(begin, num_pages_, adapter_page_bytes(config_, dtype_));
}

// Pages for an adapter, where it must be those of others that the step does not use. num_of_step: adapters of the step
// that are on the device: the latest used. nullopt: the step alone needs more than there are.
std::optional<std::vector<int32_t>> CudaAdapters::take_pages(int32_t count, size_t num_of_step) {
  while (count > pages_.num_free() && uses_.size() > num_of_step) {
    const auto oldest = on_device_.find(uses_.front());
    // Whoever gets pages writes them in this stream, behind the steps that read them; memory that is freed waits for
    // these.
    if (oldest->second.own.bytes() > 0) check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    pages_.give_back(oldest->second.pages);
    uses_.pop_front();
    on_device_.erase(oldest);
  }
  return pages_.take(count);
}

// The adapter's pages, and one more for its tables, or memory of its own for both.
CudaAdapters::OnDevice CudaAdapters::send(int32_t id, size_t num_of_step) {
  const std::shared_ptr<const PackedForDevice> packed = in_host(id);
  const int64_t page_bytes = packed->page_bytes, table_bytes = packed->table_bytes();
  const int32_t num_pages = packed->num_pages() + packed->num_expert_pages();
  OnDevice sent;
  std::vector<const void*> addresses;
  std::optional<std::vector<int32_t>> pages;
  if (table_bytes <= page_bytes) pages = take_pages(num_pages + 1, num_of_step);
  if (pages) {
    sent.pages = std::move(*pages);
    for (const int32_t page : sent.pages) addresses.push_back(pages_.address(page));
    sent.tables = pages_.address(sent.pages.back());
    addresses.pop_back();
  } else {
    sent.own = cuda::DeviceMemory(num_pages * page_bytes + table_bytes);
    for (int32_t i = 0; i < num_pages; ++i) addresses.push_back(sent.own.data<uint8_t>() + i * page_bytes);
    sent.tables = sent.own.data<uint8_t>() + num_pages * page_bytes;
  }
  // From pageable memory, which a copy has left when the call returns.
  const auto copy = [&](const void* to, const void* from, int64_t bytes) {
    check(cudaMemcpyAsync(const_cast<void*>(to), from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
  };
  const auto copy_pages = [&](size_t first, const std::vector<uint8_t>& bytes) {
    for (int64_t at = 0; at < std::ssize(bytes); at += page_bytes)
      copy(addresses[first++], bytes.data() + at, page_bytes);
  };
  copy_pages(0, packed->bytes);
  copy_pages(static_cast<size_t>(packed->num_pages()), packed->expert_tables(addresses, sent.tables));
  const std::vector<uint8_t> tables = packed->tables(addresses, sent.tables);
  copy(sent.tables, tables.data(), table_bytes);
  if (packed->has_experts())
    sent.experts = reinterpret_cast<cuda::ExpertLoraTables>(sent.tables + packed->expert_tables_begin());
  sent.use = uses_.insert(uses_.end(), id);
  return sent;
}

void CudaAdapters::pack_items(const Layout& at, const StepShape& shape, bool is_recorded, uint8_t* out) {
  for (const int kind : {0, 1}) {
    const AdapterRows::OfKind& rows = rows_.of(kind == 0 ? RowKind::kTokens : RowKind::kSamples);
    auto* const items = reinterpret_cast<LoraItem*>(out + at.items[kind]);
    const int32_t all = kind == 0 ? shape.num_tokens : shape.num_samples;
    // Items of rows [first_row, end_row), in as many places; returns how many these are.
    const auto pack = [&](int32_t first_row, int32_t end_row) {
      int32_t count = first_row;
      for (size_t i = 0; i < rows_.ids().size(); ++i) {
        const auto begin = rows.row_ids.begin(), of_adapter = begin + rows.start[i], end = begin + rows.start[i + 1];
        const auto first = static_cast<int32_t>(std::lower_bound(of_adapter, end, first_row) - begin);
        const auto last = static_cast<int32_t>(std::lower_bound(of_adapter, end, end_row) - begin);
        for (int32_t row = first; row < last; row += cuda::kLoraItemRows)
          items[count++] = {products(rows_.ids()[i]), row, std::min(row + cuda::kLoraItemRows, last)};
      }
      std::fill(items + count, items + end_row, LoraItem());
      return count - first_row;
    };
    std::copy(rows.row_ids.begin(), rows.row_ids.end(), reinterpret_cast<int32_t*>(out + at.row_ids[kind]));
    if (kind == 0 && shape.is_split()) {
      const int32_t counts[] = {pack(0, shape.second.row), pack(shape.second.row, all)};
      for (int part = 0; part < kMaxStepParts && !is_recorded; ++part) by_part_[part].num_items = counts[part];
    } else if (const int32_t count = pack(0, all); !is_recorded) {
      by_kind_[kind].num_items = count;
    }
  }
}

// Rows that a recorded step has beyond the plan's have no adapter.
void CudaAdapters::pack_experts(const Layout& at, const StepShape& shape, uint8_t* out) const {
  for (const int kind : {0, 1}) {
    const AdapterRows::OfKind& rows = rows_.of(kind == 0 ? RowKind::kTokens : RowKind::kSamples);
    auto* const of_row = reinterpret_cast<cuda::ExpertLoraTables*>(out + at.experts[kind]);
    std::fill_n(of_row, kind == 0 ? shape.num_tokens : shape.num_samples, nullptr);
    for (size_t i = 0; i < rows_.ids().size(); ++i)
      for (int32_t k = rows.start[i]; k < rows.start[i + 1]; ++k)
        of_row[rows.row_ids[static_cast<size_t>(k)]] = on_device_.at(rows_.ids()[i]).experts;
  }
}

std::optional<cuda::ExpertAdapters> CudaAdapters::of_experts(const AdaptedProduct& product, int64_t first_row) const {
  if (use_ != AdapterUse::kExperts) return std::nullopt;
  const int64_t turn = ranks_.bytes() / (cuda::kMaxLoraRanks * int64_t{sizeof(float)});
  return cuda::ExpertAdapters{experts_by_kind_[product.kind == RowKind::kTokens ? 0 : 1] + first_row,
                              product.layer,
                              config_.hidden_size % 8 == 0 && config_.experts.intermediate_size % 8 == 0,
                              products_of_slots_.data<const LoraProduct*>(),
                              items_of_slots_.data<LoraItem>(),
                              ranks_.data<float>(),
                              static_cast<int32_t>(turn)};
}

// Whether the columns of every part of such a product begin at a multiple of a pack, and its k too.
bool CudaAdapters::can_pack(int32_t layer, Projection projection) const {
  std::vector<int64_t> sizes = product_parts(config_, layer, projection);
  sizes.push_back(product_inputs(config_, layer, projection));
  return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size % 8 == 0; });
}

void CudaAdapters::lora(const AdaptedProduct& product, Rows x, int64_t rows, Rows out, cudaStream_t stream) {
  const auto index = static_cast<int32_t>(adapted_product_index(product.layer, product.projection));
  const bool is_of_part = product.kind == RowKind::kTokens && part_ >= 0;
  cuda::LoraRows of = is_of_part ? by_part_[part_] : by_kind_[product.kind == RowKind::kTokens ? 0 : 1];
  if (product.projection == Projection::kLmHead) {
    of.first_row = static_cast<int32_t>(product.first_row);
    of.end_row = static_cast<int32_t>(product.first_row + rows);
  }
  with_type(dtype_, [&]<typename T>(T) {
    const auto add = [&](auto* to) {
      cuda::lora(of, index, can_pack(product.layer, product.projection), data<const T>(x), x.width, to, out.width,
                 ranks_.data<float>(), stream);
    };
    if (out.dtype == DType::kF32) add(data<float>(out));
    else add(data<T>(out));
  });
}

void CudaAdapters::lora_embedding(const TokenId* tokens, Rows out) {
  const auto index = static_cast<int32_t>(num_lora_products(config_.num_hidden_layers) - 1);
  with_type(dtype_, [&]<typename T>(T) {
    cuda::lora_embedding<T>(by_kind_[0], index, config_.hidden_size % 8 == 0, tokens, data<float>(out), out.width,
                            ranks_.data<float>(), stream_);
  });
}

}  // namespace llmb
