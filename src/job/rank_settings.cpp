// Settings that ranks must agree on, and how rank 0 tells the others.
#include "base/packed_bytes.h"
#include "core/arithmetic.h"
#include "job/fingerprint.h"
#include "job/rank_team.h"
#include "model/adapter_library.h"

namespace llmb {

namespace {

std::string dtype_text(const std::optional<DType>& dtype) { return dtype ? dtype_name(*dtype) : "auto"; }

}  // namespace

// Bindings name every member, so that one more does not compile until it is here.
RankSettings rank_settings(const std::string& build, const ModelConfig& config, const LoadOptions& load) {
  const auto& [model_dir, load_format, dummy_seed, block_size, kv_cache_bytes, num_blocks, draft_block_bytes, lent_tokens, swap_gib, receives_prompts,
               max_seqs, max_tokens, max_drafts, max_group_drafts, verifies_trees, max_model_len, pooling, drafting_layers,
               adapters, adapter_bytes, heads_dir, eagle_dir, groups_layers, num_threads, dtype, kv_cache_dtype, cpu, cuda] = load;
  static_cast<void>(num_threads);  // each rank's own, as are a GPU's, but for what follows
  static_cast<void>(cpu.weight_cache_dir);  // no byte depends on it
  static_cast<void>(adapter_bytes);
  RankSettings s;
  const auto number = [&](const char* name, auto value) { s.emplace_back(name, std::to_string(value)); };
  s.emplace_back("build", build + ", answers_version " + std::to_string(kAnswersVersion));
  s.emplace_back("model", model_dir + ", " + config.model_type);
  number("load_format", static_cast<int>(load_format)), number("seed", dummy_seed);
  number("num_hidden_layers", config.num_hidden_layers), number("hidden_size", config.hidden_size);
  number("vocab_size", config.vocab_size), number("num_attention_heads", config.num_attention_heads);
  number("block_size", block_size), number("kv_cache_memory_bytes", kv_cache_bytes), number("num_blocks", num_blocks);
  number("draft_block_bytes", draft_block_bytes), number("lent_tokens", lent_tokens);
  number("swap_space", swap_gib), number("receives_prompts", receives_prompts), number("max_num_seqs", max_seqs);
  number("max_num_batched_tokens", max_tokens);
  number("max_num_drafts", max_drafts), number("max_drafts_per_group", max_group_drafts), number("verifies_trees", verifies_trees);
  number("max_model_len", max_model_len), number("drafting_layers", drafting_layers), number("mtp", config.mtp.is_used);
  s.emplace_back("pooling", pooling ? pooling_name(pooling->kind) : "");
  number("pooling_layers", pooling ? pooling->layers.size() : 0);
  s.emplace_back("heads", heads_dir), s.emplace_back("eagle", eagle_dir);
  number("adapters", adapters ? adapters->size() : 0);
  number("groups_layers", groups_layers), number("quantization", static_cast<int>(cpu.quantization));
  number("gguf_activations", cpu.rounds_block_activations), number("deterministic", cuda.deterministic);
  s.emplace_back("dtype", dtype_text(dtype)), s.emplace_back("kv_cache_dtype", dtype_text(kv_cache_dtype));
  s.emplace_back("arithmetic", cpu.arithmetic ? arithmetic_name(*cpu.arithmetic) : "auto");
  return s;
}

Status check_settings(const RankSettings& own, const RankSettings& of_rank_0) {
  if (own.size() != of_rank_0.size()) return conflict("it is of another build than rank 0");
  for (size_t i = 0; i < own.size(); ++i)
    if (own[i] != of_rank_0[i])
      return conflict(own[i].first + " is " + own[i].second + ", on rank 0 " + of_rank_0[i].first + " is " +
                      of_rank_0[i].second);
  return {};
}

std::string pack_rank_order(const RankOrder& order) {
  PackedBytes bytes;
  bytes.add(pack_message(order.order));
  bytes.add(order.settings);
  bytes.add(order.num_blocks);
  return bytes.bytes();
}

RankOrder unpack_rank_order(std::string_view bytes) {
  RankOrder order;
  std::string packed;
  PackedReader reader(bytes);
  reader.read(packed);
  reader.read(order.settings);
  reader.read(order.num_blocks);
  order.order = unpack_message<WorkerOrder>(packed);
  return order;
}

}  // namespace llmb
