#include "backend/cuda/packed_for_device.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/float_formats.h"
#include "core/types.h"
#include "model/adapted_products.h"

namespace llmb {

using cuda::kMaxLoraParts;
using cuda::LoraMatrix;
using cuda::LoraPart;
using cuda::LoraProduct;

namespace {

static_assert(3 * kMaxLoraRank <= cuda::kMaxLoraRanks);

constexpr int64_t kLeastPageBytes = int64_t{64} << 10;

constexpr int64_t kSpareTableBytes = 4096;  // for the addresses of pages

int64_t whole_4_kib(int64_t bytes) { return ceil_div(bytes, int64_t{4096}) * 4096; }
int64_t whole_packs(int64_t bytes) { return ceil_div(bytes, 16) * 16; }

// Rows one behind the other, from page to page.
class PageWriter {
 public:
  explicit PageWriter(int64_t page_bytes) : page_bytes_(page_bytes) {}

  PagedRows place(int64_t rows, int64_t row_bytes, LoraMatrix* m) {
    LLMB_CHECK(row_bytes <= page_bytes_);
    at_ = whole_packs(at_);
    if (at_ + row_bytes > page_bytes_) ++page_, at_ = 0;
    const PagedRows placed{page_, at_};
    m->rows_per_page = static_cast<int32_t>(page_bytes_ / row_bytes);
    m->rows_in_first = static_cast<int32_t>(std::min(rows, (page_bytes_ - at_) / row_bytes));
    const int64_t rest = rows - m->rows_in_first, pages = ceil_div(rest, m->rows_per_page);
    page_ += static_cast<int32_t>(pages);
    at_ = pages == 0 ? at_ + rows * row_bytes : (rest - (pages - 1) * m->rows_per_page) * row_bytes;
    return placed;
  }
  int64_t num_pages() const { return page_ + 1; }

 private:
  const int64_t page_bytes_;
  int32_t page_ = 0;
  int64_t at_ = 0;
};

// A matrix as the host writes it, before it is sent.
class RowsInPages {
 public:
  RowsInPages(const LoraMatrix& m, PagedRows at, int64_t row_bytes, PackedForDevice& packed)
      : m_(m), at_(at), row_bytes_(row_bytes), packed_(packed) {}

  uint8_t* row(int64_t row) const {
    if (row < m_.rows_in_first)
      return packed_.bytes.data() + at_.page * packed_.page_bytes + at_.begin + row * row_bytes_;
    row -= m_.rows_in_first;
    const int64_t page = at_.page + 1 + row / m_.rows_per_page;
    return packed_.bytes.data() + page * packed_.page_bytes + row % m_.rows_per_page * row_bytes_;
  }

 private:
  const LoraMatrix& m_;
  const PagedRows at_;
  const int64_t row_bytes_;
  PackedForDevice& packed_;
};

void store(float value, DType dtype, int64_t index, uint8_t* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to + index * 4, &value, 4);
    return;
  }
  const uint16_t half = dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
  std::memcpy(to + index * 2, &half, 2);
}

// Rows of A by rank, or of an embedding by token.
void store_a(const LoraModule& module, bool is_table, DType dtype, const RowsInPages& to) {
  std::vector<float> row(static_cast<size_t>(module.a.cols));
  const float* const inputs = row.data() + module.a_columns.begin;
  for (int64_t r = 0; r < module.rank(); ++r) {
    read_floats(module.a, r, row.data());
    for (int64_t k = 0; k < module.in_features(); ++k) {
      if (is_table) store(inputs[k], dtype, r, to.row(k));
      else store(inputs[k], dtype, k, to.row(r));
    }
  }
}

void store_b_transposed(const LoraModule& module, DType dtype, const RowsInPages& to) {
  std::vector<float> row(static_cast<size_t>(module.rank()));
  for (int64_t column = 0; column < module.num_columns(); ++column) {
    read_b(module, module.row_of_column(column), row.data());
    for (int64_t r = 0; r < module.rank(); ++r) store(row[r], dtype, column, to.row(r));
  }
}

}  // namespace

int64_t PackedForDevice::num_plain() const { return num_lora_products(num_layers); }

int32_t PackedForDevice::num_expert_pages() const {
  if (expert_layers.empty()) return 0;
  return static_cast<int32_t>(ceil_div(static_cast<int64_t>(expert_layers.size()), tables_per_page()));
}

PagedRows PackedForDevice::place_of_table(size_t table) const {
  const auto index = static_cast<int64_t>(table), per_page = tables_per_page();
  return {static_cast<int32_t>(index / per_page), index % per_page * expert_table_bytes()};
}

int64_t PackedForDevice::expert_tables_begin() const {
  return num_plain() * int64_t{sizeof(LoraProduct)} + num_pages() * int64_t{sizeof(void*)};
}

int64_t PackedForDevice::table_bytes() const {
  return expert_tables_begin() + (expert_layers.empty() ? 0 : num_layers * int64_t{sizeof(void*)});
}

LoraProduct PackedForDevice::settled(size_t product, const std::vector<const void*>& pages, const uint8_t* at) const {
  const auto* const on_device = reinterpret_cast<const void* const*>(at + num_plain() * int64_t{sizeof(LoraProduct)});
  const auto settle = [&](LoraMatrix& m, const PagedRows& rows) {
    m.first = static_cast<const uint8_t*>(pages[static_cast<size_t>(rows.page)]) + rows.begin;
    m.pages = on_device + rows.page + 1;
  };
  LoraProduct out = products[product];
  for (size_t p = 0; p < kMaxLoraParts; ++p) {
    LoraPart& part = out.parts[p];
    if (part.rank_begin == part.rank_end) continue;
    settle(part.a, a[product * kMaxLoraParts + p]);
    settle(part.b, b[product * kMaxLoraParts + p]);
  }
  return out;
}

std::vector<uint8_t> PackedForDevice::tables(const std::vector<const void*>& pages, const uint8_t* at) const {
  std::vector<uint8_t> out(static_cast<size_t>(table_bytes()));
  uint8_t* to = out.data();
  const auto add = [&](const void* from, size_t size) {
    std::memcpy(to, from, size);
    to += size;
  };
  for (int64_t i = 0; i < num_plain(); ++i) {
    const LoraProduct product = settled(static_cast<size_t>(i), pages, at);
    add(&product, sizeof product);
  }
  add(pages.data(), static_cast<size_t>(num_pages()) * sizeof(void*));
  for (size_t table = 0; table < expert_layers.size(); ++table) {
    const PagedRows place = place_of_table(table);
    const void* const page = pages[static_cast<size_t>(num_pages() + place.page)];
    const auto* const address = static_cast<const uint8_t*>(page) + place.begin;
    std::memcpy(to + static_cast<size_t>(expert_layers[table]) * sizeof(void*), &address, sizeof(void*));
  }
  return out;
}

std::vector<uint8_t> PackedForDevice::expert_tables(const std::vector<const void*>& pages, const uint8_t* at) const {
  std::vector<uint8_t> out(static_cast<size_t>(num_expert_pages() * page_bytes));
  const auto of_table = static_cast<size_t>(2 * num_experts);
  for (size_t table = 0; table < expert_layers.size(); ++table) {
    const PagedRows place = place_of_table(table);
    uint8_t* const to = out.data() + place.page * page_bytes + place.begin;
    for (size_t i = 0; i < of_table; ++i) {
      const LoraProduct product = settled(static_cast<size_t>(num_plain()) + table * of_table + i, pages, at);
      std::memcpy(to + i * sizeof product, &product, sizeof product);
    }
  }
  return out;
}

int64_t adapter_page_bytes(const ModelConfig& config, DType dtype) {
  int64_t widest = std::max({int64_t{config.hidden_size}, int64_t{config.vocab_size}, int64_t{kMaxLoraRank}});
  for (int32_t i = 0; i < config.num_hidden_layers; ++i)
    for (int32_t p = 0; p < kNumProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      widest = std::max({widest, product_columns(config, i, projection), product_inputs(config, i, projection)});
    }
  const int64_t layers = config.num_hidden_layers, product = int64_t{sizeof(LoraProduct)};
  int64_t tables = num_lora_products(layers) * product + layers * int64_t{sizeof(void*)} + kSpareTableBytes;
  if (const ExpertsConfig& experts = config.experts; experts.num_experts > 0) {
    widest = std::max(widest, 2 * int64_t{experts.intermediate_size});
    tables = std::max(tables, 2 * int64_t{experts.num_experts} * product);
  }
  return std::max({kLeastPageBytes, whole_4_kib(widest * dtype_bytes(dtype)), whole_4_kib(tables)});
}

// A rank has its part of each product's, and the whole of the embedding's, which it adds behind the sum over ranks.
std::vector<LoraModule> PackerForDevice::modules_at(const LoraAdapter& adapter, int64_t product) const {
  if (product == num_adapted_products(num_layers_)) {
    if (adapter.embedding() == nullptr) return {};
    return {*adapter.embedding()};
  }
  const int64_t layer = product / kNumProjections;
  const auto projection = static_cast<Projection>(product % kNumProjections);
  if (rank_ && layer == num_layers_) return modules_of_rank(adapter, *rank_, layer - 1, Projection::kLmHead);
  if (rank_) return modules_of_rank(adapter, *rank_, layer, projection);
  const std::span<const LoraModule> modules = adapter.modules(layer, projection);
  return {modules.begin(), modules.end()};
}

std::span<const LoraModule> PackerForDevice::expert_modules(const LoraAdapter& adapter, int64_t layer, int64_t expert,
                                                            bool is_down) const {
  if (rank_) return expert_modules_of_rank(adapter, *rank_, layer, expert, is_down);
  return adapter.expert_modules(layer, expert, is_down);
}

// By product, in the order of PackedForDevice::products. Layers in which no expert has any have none of the experts'.
std::vector<std::vector<LoraModule>> PackerForDevice::modules_of(const LoraAdapter& adapter,
                                                                 PackedForDevice* packed) const {
  std::vector<std::vector<LoraModule>> modules;
  for (int64_t i = 0; i < num_lora_products(num_layers_); ++i) modules.push_back(modules_at(adapter, i));
  for (int32_t layer = 0; layer < num_layers_ && adapter.has_experts(); ++layer) {
    const size_t first = modules.size();
    bool has_any = false;
    for (int32_t expert = 0; expert < num_experts_; ++expert)
      for (const bool is_down : {false, true}) {
        const std::span<const LoraModule> own = expert_modules(adapter, layer, expert, is_down);
        modules.emplace_back(own.begin(), own.end());
        has_any = has_any || !own.empty();
      }
    if (has_any) packed->expert_layers.push_back(layer);
    else modules.resize(first);
  }
  return modules;
}

// Products, places and pages; addresses stay unset. Returns their modules.
std::vector<std::vector<LoraModule>> PackerForDevice::lay_out(const LoraAdapter& adapter, PackedForDevice* packed,
                                                              int64_t* num_pages) const {
  std::vector<std::vector<LoraModule>> all = modules_of(adapter, packed);
  packed->num_layers = num_layers_, packed->num_experts = num_experts_;
  packed->page_bytes = page_bytes_;
  packed->products.assign(all.size(), LoraProduct());
  packed->a.assign(all.size() * kMaxLoraParts, {});
  packed->b.assign(all.size() * kMaxLoraParts, {});
  PageWriter writer(page_bytes_);
  for (size_t i = 0; i < all.size(); ++i) {
    LoraProduct& product = packed->products[i];
    const std::vector<LoraModule>& modules = all[i];
    LLMB_CHECK(modules.size() <= kMaxLoraParts);
    for (size_t p = 0; p < kMaxLoraParts; ++p) {
      LoraPart& part = product.parts[p];
      part.rank_begin = part.rank_end = product.num_ranks;
      if (p >= modules.size()) continue;
      const LoraModule& module = modules[p];
      const int64_t rank = module.rank(), element = dtype_bytes(dtype_);
      const bool is_table = is_embedding(i);
      part.rank_end = product.num_ranks += static_cast<int32_t>(rank);
      part.out_column = static_cast<int32_t>(module.out_column);
      part.num_columns = static_cast<int32_t>(module.num_columns());
      part.scale = module.scale;
      const int64_t inputs = module.in_features(), rows = is_table ? inputs : rank, width = is_table ? rank : inputs;
      packed->a[i * kMaxLoraParts + p] = writer.place(rows, width * element, &part.a);
      packed->b[i * kMaxLoraParts + p] = writer.place(rank, module.num_columns() * element, &part.b);
    }
  }
  *num_pages = writer.num_pages();
  return all;
}

int64_t PackerForDevice::num_bytes(const LoraAdapter& adapter) const {
  PackedForDevice packed;
  int64_t num_pages = 0;
  lay_out(adapter, &packed, &num_pages);
  return num_pages * page_bytes_;
}

std::shared_ptr<const PackedAdapter> PackerForDevice::pack(const LoraAdapter& adapter) const {
  const auto packed = std::make_shared<PackedForDevice>();
  int64_t num_pages = 0;
  const std::vector<std::vector<LoraModule>> all = lay_out(adapter, packed.get(), &num_pages);
  packed->bytes.resize(static_cast<size_t>(num_pages * page_bytes_));
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t p = 0; p < all[i].size(); ++p) {
      const LoraModule& module = all[i][p];
      const LoraPart& part = packed->products[i].parts[p];
      const bool is_table = is_embedding(i);
      const int64_t element = dtype_bytes(dtype_), a_row = (is_table ? module.rank() : module.in_features()) * element;
      store_a(module, is_table, dtype_, RowsInPages(part.a, packed->a[i * kMaxLoraParts + p], a_row, *packed));
      store_b_transposed(
          module, dtype_,
          RowsInPages(part.b, packed->b[i * kMaxLoraParts + p], module.num_columns() * element, *packed));
    }
  return packed;
}

}  // namespace llmb
