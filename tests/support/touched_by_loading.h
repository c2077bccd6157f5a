// How much of a file a rank reads while it loads its part of a model.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "backend/cpu/cpu_ops.h"
#include "core/rank_part.h"
#include "model/config_loader.h"
#include "model/model_weights.h"
#include "model/weight_files.h"
#include "tests/support/touched_pages.h"

namespace llmb::test {

// In bytes, whole pages. model: a directory or a GGUF file; file: of its weights.
inline int64_t touched_by_loading(const std::string& model, const std::string& file, const RankPart& part,
                                  WeightForm form = WeightForm::kNumbers) {
  const ModelConfig config = load_model_config(model).value();
  const ModelShare share = share_of(config, part);
  const ModelConfig own = config_of(config, share);
  const WeightFiles files = WeightFiles::open(model, config).value();
  ThreadPool pool(2);
  KvLayout kv = make_kv_layout(own, 16, DType::kF32, group_layers(own, 0));
  kv.num_blocks = 1;
  CpuOps ops(own, kv, KvPool(kv), 0, 128, Quantization::kNone, DType::kF32, pool);
  const TouchedPages pages(std::filesystem::canonical(file));
  const auto source = files.make_source(pool, WeightAccess::kValues, form);
  const auto weights = load_model_weights(config, *source, ops, part.num_ranks() > 1 ? &share : nullptr);
  REQUIRE_MESSAGE(weights.ok(), weights.status().message());
  return pages.bytes();
}

}  // namespace llmb::test
