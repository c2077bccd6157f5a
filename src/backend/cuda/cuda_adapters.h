// The adapters that a GPU's steps use: converted in the host's memory before steps need them, sent to pages of the KV
// pool's memory when a step first does, kept there until others need the pages, and for each step which rows have
// which.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "backend/adapter_rows.h"
#include "backend/cuda/device_pages.h"
#include "backend/cuda/packed_for_device.h"
#include "backend/cuda/step_graphs.h"
#include "backend/cuda/step_stage.h"
#include "core/model_config.h"
#include "kernels/cuda/expert_lora.h"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/memory.h"
#include "model/adapter_pool.h"
#include "model/ops.h"

namespace llmb {

// One thread drives it, but for store(). Everything throws cuda::CudaError. Invariants:
//  1. Adapters lie in pages, max_bytes of them in all. Only where one step needs more, some lie in memory of their own.
//  2. Where a step's rows lie on the device depends on its shape alone, so that a step can be recorded.
class CudaAdapters {
 public:
  // config, rank: as PackerForDevice
  CudaAdapters(const ModelConfig& config, DType dtype, std::shared_ptr<AdapterLibrary> library, int64_t max_bytes,
               const StepLimits& limits, cudaStream_t stream, std::optional<LoraShare> rank = std::nullopt);

  AdapterStore& store() { return pool_; }

  // Memory for the pages, beside the KV pool's blocks; nullptr: there is none now. REQUIRES: no step had an adapter.
  int64_t pool_bytes() const;
  void set_pool(uint8_t* begin);  // aligned to 256 bytes

  // Queues the copies of what the plan names. is_recorded: lora() launches for all rows of the shape. As with
  // StepStage::upload(), the step so many before it must have run. Throws std::runtime_error where a file can
  // no longer be read.
  void begin_step(const StepPlan& plan, const StepShape& shape, bool is_recorded);
  // A step that is recorded: nothing is copied.
  void record_step(const StepShape& shape, AdapterUse use);
  // Which products the plan's adapters add to. As begin_step() it waits for those that are being read, and throws what that
  // throws.
  AdapterUse use_of(const StepPlan& plan);
  bool has_any() const { return use_ != AdapterUse::kNone; }

  // LM heads: rows of out from product.first_row on, `rows` of them. Others: x and out begin with the step's first row.
  void lora(const AdaptedProduct& product, Rows x, int64_t rows, Rows out, cudaStream_t stream);
  // Which part of the step lora() is for, where it is one of its tokens; -1: all of them.
  void set_part(int part) { part_ = part; }
  void lora_embedding(const TokenId* tokens, Rows out);
  // The rows' matrices for experts, of the product's kind, from first_row on; nullopt: none. For the calls that are queued
  // next.
  std::optional<cuda::ExpertAdapters> of_experts(const AdaptedProduct& product, int64_t first_row) const;

 private:
  struct OnDevice {
    std::vector<int32_t> pages;        // or
    cuda::DeviceMemory own;            // where the step had not enough of them
    uint8_t* tables = nullptr;         // PackedForDevice::tables()
    cuda::ExpertLoraTables experts = nullptr;  // in them; null: none
    std::list<int32_t>::iterator use;  // in uses_
  };
  struct Layout {
    int64_t items[2], row_ids[2], experts[2], end;  // by kind
  };
  Layout layout(const StepShape& shape) const;
  void set_shape(const StepShape& shape);
  std::shared_ptr<const PackedForDevice> in_host(int32_t id) {
    return std::static_pointer_cast<const PackedForDevice>(pool_.take(id));
  }
  OnDevice send(int32_t id, size_t num_of_step);
  std::optional<std::vector<int32_t>> take_pages(int32_t count, size_t num_of_step);
  const cuda::LoraProduct* products(int32_t id) const {
    return reinterpret_cast<const cuda::LoraProduct*>(on_device_.at(id).tables);
  }
  void pack_items(const Layout& at, const StepShape& shape, bool is_recorded, uint8_t* out);
  void pack_experts(const Layout& at, const StepShape& shape, uint8_t* out) const;
  bool can_pack(int32_t layer, Projection projection) const;

  const ModelConfig config_;
  const DType dtype_;
  const int32_t num_pages_;
  const cudaStream_t stream_;
  AdapterPool pool_;  // in the host's memory
  std::unordered_map<int32_t, OnDevice> on_device_;
  std::list<int32_t> uses_;  // ids of on_device_, the latest used last
  DevicePages pages_;

  AdapterRows rows_;                             // of the step in progress
  AdapterUse use_ = AdapterUse::kNone;
  cuda::LoraRows by_kind_[2];
  const cuda::ExpertLoraTables* experts_by_kind_[2] = {};  // ExpertAdapters::of_row
  cuda::LoraRows by_part_[kMaxStepParts];  // of the tokens, where the step has parts
  int part_ = -1;                          // in progress
  std::vector<cuda::PinnedMemory> host_;  // [max_plans_in_flight]  in turn
  cuda::DeviceMemory device_;             // items, row ids and, where the model has experts, rows' tables of these
  cuda::DeviceMemory ranks_;              // [rows, kMaxLoraRanks] fp32
  cuda::DeviceMemory products_of_slots_, items_of_slots_;  // ExpertAdapters
  size_t turn_ = 0;
};

}  // namespace llmb
