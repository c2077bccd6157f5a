// An adapter as it lies in pages of the device's memory (S-LoRA, Sheng et al. 2023, arXiv:2311.03285, "unified
// paging"): rows of its matrices, each whole in a page, one behind the other, so that ranks of any size leave nothing
// between them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/model_config.h"
#include "core/types.h"
#include "kernels/cuda/lora.h"
#include "model/adapter_pool.h"
#include "model/lora_share.h"

namespace llmb {

// Where a matrix's rows begin: byte `begin` of the adapter's page `page`; then the pages behind it.
struct PagedRows {
  int32_t page = 0;
  int64_t begin = 0;
};

// Where an adapter has experts' products, a layer's stand together in a page of their own kind (cuda::ExpertLoraTables),
// which no step reads where rows have no such adapter.
struct PackedForDevice final : PackedAdapter {
  // By adapted_product_index(), then the embedding, then for each of expert_layers [num_experts, 2]; addresses are not set
  std::vector<cuda::LoraProduct> products;
  std::vector<PagedRows> a, b;         // [products * kMaxLoraParts]
  std::vector<int32_t> expert_layers;  // that have experts' products
  int32_t num_layers = 0, num_experts = 0;
  int64_t page_bytes = 0;
  std::vector<uint8_t> bytes;  // whole pages

  int32_t num_pages() const { return static_cast<int32_t>(static_cast<int64_t>(bytes.size()) / page_bytes); }
  bool has_experts() const { return !expert_layers.empty(); }
  int32_t num_expert_pages() const;
  int64_t table_bytes() const;
  // The products with their addresses, and behind them the pages' addresses and those of the layers' tables of experts, as
  // they lie at `at` on the device. pages: of num_pages(), then of num_expert_pages().
  std::vector<uint8_t> tables(const std::vector<const void*>& pages, const uint8_t* at) const;
  std::vector<uint8_t> expert_tables(const std::vector<const void*>& pages, const uint8_t* at) const;  // whole pages
  int64_t expert_tables_begin() const;  // where those addresses stand in tables(); [num_layers]

 private:
  int64_t num_plain() const;  // products but for experts'
  int64_t expert_table_bytes() const { return 2 * int64_t{num_experts} * int64_t{sizeof(cuda::LoraProduct)}; }
  int64_t tables_per_page() const { return page_bytes / expert_table_bytes(); }
  PagedRows place_of_table(size_t table) const;  // among the experts' pages
  cuda::LoraProduct settled(size_t product, const std::vector<const void*>& pages, const uint8_t* at) const;
};

// Products of a model that an adapter may have: those by adapted_product_index(), then the embedding.
constexpr int64_t num_lora_products(int64_t num_layers) { return num_adapted_products(num_layers) + 1; }

// The size of a page, which has room for some rows of any matrix, and for the tables of most adapters.
int64_t adapter_page_bytes(const ModelConfig& config, DType dtype);

class PackerForDevice final : public AdapterPacker {
 public:
  // config: of what this one computes. rank: of several; none: it computes the whole model.
  PackerForDevice(const ModelConfig& config, DType dtype, std::optional<LoraShare> rank = std::nullopt)
      : num_layers_(config.num_hidden_layers),
        num_experts_(config.experts.num_experts),
        dtype_(dtype),
        page_bytes_(adapter_page_bytes(config, dtype)),
        rank_(std::move(rank)) {}

  int64_t num_bytes(const LoraAdapter& adapter) const override;
  std::shared_ptr<const PackedAdapter> pack(const LoraAdapter& adapter) const override;

 private:
  bool is_embedding(size_t product) const { return std::cmp_equal(product, num_adapted_products(num_layers_)); }
  std::vector<LoraModule> modules_at(const LoraAdapter& adapter, int64_t product) const;
  std::span<const LoraModule> expert_modules(const LoraAdapter& adapter, int64_t layer, int64_t expert,
                                             bool is_down) const;
  std::vector<std::vector<LoraModule>> modules_of(const LoraAdapter& adapter, PackedForDevice* packed) const;
  std::vector<std::vector<LoraModule>> lay_out(const LoraAdapter& adapter, PackedForDevice* packed,
                                               int64_t* num_pages) const;

  const int32_t num_layers_, num_experts_;
  const DType dtype_;
  const int64_t page_bytes_;
  const std::optional<LoraShare> rank_;
};

}  // namespace llmb
