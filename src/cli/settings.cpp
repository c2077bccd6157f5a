#include "cli/settings.h"

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "core/kv_room.h"

namespace llmb {

namespace {

std::string describe_pooling(const Pooling& pooling) {
  const char* const what = pooling.kind == PoolingKind::kMean    ? "the mean of all tokens' states"
                           : pooling.kind == PoolingKind::kFirst ? "the state of the first token"
                                                                 : "the state behind the last token";
  if (pooling.layers.empty()) return what;
  return what + std::string(" through ") + std::to_string(pooling.layers.size()) +
         (pooling.layers.size() == 1 ? " layer" : " layers");
}

std::string mib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / 1048576.0);
  return text;
}

std::string describe_speculation(const JobOptions& o, const BackendInfo& backend) {
  if (!o.speculation.any() || o.generation.task != Task::kGenerate) return "";
  std::string line = "drafts    " + escape_control(describe_drafters(o.speculation));
  if (!o.speculation.corpus.empty()) line += ", also in " + escape_control(o.speculation.corpus);
  line += "; at most " + std::to_string(o.speculation.max_tokens) + " tokens of a sequence in a step, where they pay";
  if (backend.lent_tokens > 0)
    line += "; the draft model's keys and values lie in the KV cache, " + std::to_string(backend.lent_tokens) +
            " tokens in a block that no request needs";
  else if (backend.draft_block_bytes > 0)
    line += "; the draft model's keys and values lie beside the KV cache, " +
            mib(backend.draft_block_bytes * backend.kv.num_blocks) + " at most";
  if (backend.kind == DeviceKind::kCuda && !o.load.cuda.deterministic)
    line += "; without --deterministic bytes may differ from those without drafts";
  return line + "\n";
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
                          : "the model has no end-of-sequence token; --stop and --stop-token-ids add ends") +
         "\n";
}

// The KV cache, in words. On the CPU memory is taken as blocks are used, which the forecast tells; elsewhere it is
// taken.
std::string describe_kv_cache(const ModelFiles& model, const BackendInfo& b) {
  const int32_t max_tokens = model.default_params.stop.max_tokens.value_or(kDefaultMaxTokens);
  const int64_t request_tokens = std::min<int64_t>(model.max_model_len, int64_t{2} * max_tokens);
  std::string out = std::string("KV cache ") + dtype_name(b.kv.dtype);
  if (b.kind != DeviceKind::kCpu) out += ", " + mib(b.kv.bytes_per_block() * b.kv.num_blocks);
  out += ", room for " + std::to_string(tokens_in_blocks(b.kv, b.kv.num_blocks, request_tokens)) +
         " tokens in blocks of " + std::to_string(b.kv.block_size);
  return out + (b.kind == DeviceKind::kCpu ? ", memory as rows take it" : "");
}

}  // namespace

std::string describe_drafters(const SpeculationOptions& speculation) {
  std::string kinds;
  const auto add = [&](const std::string& kind) { kinds += (kinds.empty() ? "" : ", ") + kind; };
  if (speculation.lookup) add("lookup");
  if (!speculation.draft_model.empty()) add("model " + speculation.draft_model);
  if (!speculation.medusa.empty()) add("the heads " + speculation.medusa);
  if (speculation.num_layers > 0) add("the first " + std::to_string(speculation.num_layers) + " layers");
  if (speculation.mtp) add("the layer behind the last one");
  if (!speculation.eagle.empty()) add("the layer " + speculation.eagle);
  if (speculation.lookahead) add("lookahead");
  if (speculation.trees) kinds += " (trees)";
  return kinds.empty() ? "none" : kinds;
}

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

const char* schedule_name(Schedule schedule) {
  switch (schedule) {
    case Schedule::kAuto:
      return "auto";
    case Schedule::kFile:
      return "file";
    case Schedule::kPrefix:
      return "prefix";
    case Schedule::kLongestFirst:
      return "longest-first";
  }
  return "";
}

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
  out += "device    " + b.device + ", " + describe_kv_cache(model, b) + "\n";
  std::snprintf(line, sizeof line, "batching  %s, max-num-seqs %d, max-num-batched-tokens %d, max-model-len %d%s\n",
                batching_name(o.scheduler.batching), o.scheduler.max_num_seqs, o.scheduler.max_num_batched_tokens,
                model.max_model_len, o.is_tuned ? "; these, threads and block size as --autotune found them" : "");
  return out + line + describe_speculation(o, b);
}

std::string describe_defaults(const JobOptions& o, const ModelFiles& model) {
  const GenerationParams& p = model.default_params;
  if (p.task == Task::kEmbed)
    return std::string("embeds    ") + describe_pooling(*model.pooling) +
           (p.embed.normalizes ? ", scaled to a length of 1\n" : ", as it is\n");
  if (p.task == Task::kClassify) {
    constexpr const char* kScores[] = {"as the model gives them", "by the logistic function", "by softmax",
                                       "the difference of two logits", "by the logistic function of their difference"};
    if (model.pooling->judges_pairs)
      return std::string("judges    pairs by the logits of one token or two, scores ") +
             kScores[static_cast<int>(model.pooling->scores)] + "\n";
    const size_t count = model.pooling->labels.size();
    return "classifies by " + std::to_string(count) + (count == 1 ? " label" : " labels") + ", scores " +
           kScores[static_cast<int>(model.pooling->scores)] + "\n";
  }
  if (p.task == Task::kScore) return "scores    prompts: log-probability, tokens, perplexity (lines with options: these)\n";
  const SamplingParams& s = p.sampling;
  const std::string max_tokens = p.stop.max_tokens ? std::to_string(*p.stop.max_tokens) : "default";
  char line[512];
  std::snprintf(line, sizeof line,
                "sampling  temperature %g, top-p %g, top-k %d, min-p %g, repetition-penalty %g, max-tokens %s, seed "
                "%llu (lines may override)\n",
                s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty, max_tokens.c_str(),
                static_cast<unsigned long long>(o.seed));
  std::string form;
  if (p.form) form = "answers   in the form of --" + p.form->field + " (lines may override)\n";
  std::replace(form.begin(), form.end(), '_', '-');
  return line + describe_ends(p.stop, *model.context) + form;
}

}  // namespace llmb
