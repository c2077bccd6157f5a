#include "cli/settings.h"

#include <cstdio>

#include "base/log.h"

namespace llmb {

namespace {

const char* batching_name(BatchingMode mode) {
  switch (mode) {
    case BatchingMode::kNone:
      return "none";
    case BatchingMode::kStatic:
      return "static";
    case BatchingMode::kDynamic:
      return "dynamic";
    case BatchingMode::kContinuous:
      return "continuous";
  }
  return "";
}

// Tells in one line which tokens and texts end an answer.
std::string describe_ends(const StopParams& stop, const ModelContext& model) {
  std::string ends;
  const auto add = [&](TokenId id) {
    const std::string piece = model.tokenizer ? model.tokenizer->token_piece(id) : "";
    ends += (ends.empty() ? "" : ", ") + (piece.empty() ? "" : escape_control(piece) + " ") + std::to_string(id);
  };
  if (!stop.ignore_eos)
    for (const TokenId id : model.eos_token_ids) add(id);
  for (const TokenId id : stop.stop_token_ids) add(id);
  for (const std::string& text : stop.stop) ends += (ends.empty() ? "\"" : ", \"") + escape_control(text) + "\"";
  if (!ends.empty()) return "ends      at " + ends + ", or max-tokens\n";
  return std::string("ends      at max-tokens only: ") +
         (stop.ignore_eos ? "--ignore-eos"
                          : "the model names no end-of-sequence token; --stop and --stop-token-ids do") +
         "\n";
}

}  // namespace

std::string describe_model(const JobOptions& o, const ModelFiles& model, const BackendInfo& b) {
  const ModelConfig& m = model.config;
  char line[512];
  std::string out;
  out += "model     " + o.model.name + (o.model.commit.empty() ? "" : " at " + o.model.commit.substr(0, 12));
  std::snprintf(line, sizeof line,
                "%s: %s, %d layers, hidden %d, %d/%d heads, vocabulary %d, %.1f MiB, loaded in %.2f s\n",
                o.model.load_format == LoadFormat::kDummy ? " (random weights)" : "", m.model_type.c_str(),
                m.num_hidden_layers, m.hidden_size, m.num_attention_heads, m.num_key_value_heads, m.vocab_size,
                b.weight_bytes / 1048576.0, b.load_ms / 1000);
  out += line;
  std::snprintf(line, sizeof line, "device    %s, KV cache %d blocks of %d tokens (%s, %.1f MiB)\n", b.device.c_str(),
                b.kv.num_blocks, b.kv.block_size, dtype_name(b.kv.dtype),
                double(b.kv.bytes_per_block()) * b.kv.num_blocks / 1048576.0);
  out += line;
  std::snprintf(line, sizeof line, "batching  %s, max-num-seqs %d, max-num-batched-tokens %d, max-model-len %d\n",
                batching_name(o.scheduler.batching), o.scheduler.max_num_seqs, o.scheduler.max_num_batched_tokens,
                model.max_model_len);
  return out + line;
}

std::string describe_defaults(const JobOptions& o, const ModelFiles& model) {
  const GenerationParams& p = model.default_params;
  const SamplingParams& s = p.sampling;
  const std::string max_tokens = p.stop.max_tokens ? std::to_string(*p.stop.max_tokens) : "default";
  char line[512];
  std::snprintf(line, sizeof line,
                "sampling  temperature %g, top-p %g, top-k %d, min-p %g, repetition-penalty %g, max-tokens %s, seed "
                "%llu (lines may override)\n",
                s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty, max_tokens.c_str(),
                static_cast<unsigned long long>(o.seed));
  return line + describe_ends(p.stop, *model.context);
}

}  // namespace llmb
