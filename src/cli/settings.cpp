#include "cli/settings.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace llmb {

namespace {

Result<std::vector<std::pair<TokenId, float>>> parse_logit_bias(const std::string& text, const ModelConfig& model) {
  std::vector<std::pair<TokenId, float>> bias;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return invalid_argument("--logit-bias: not a JSON object such as {\"50256\": -100}");
  for (const auto& [key, value] : json.items()) {
    char* end = nullptr;
    const long token = std::strtol(key.c_str(), &end, 10);
    if (key.empty() || *end != '\0' || token < 0 || token >= model.vocab_size)
      return invalid_argument("--logit-bias: '" + key + "' is not a token id in [0, " +
                              std::to_string(model.vocab_size - 1) + "]");
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100))
      return invalid_argument("--logit-bias: the bias of token " + key + " is not a number in [-100, 100]");
    bias.emplace_back(static_cast<TokenId>(token), value.get<float>());
  }
  std::sort(bias.begin(), bias.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (std::adjacent_find(bias.begin(), bias.end(), same) != bias.end())  // "7" and "07"
    return invalid_argument("--logit-bias: a token is named twice");
  return bias;
}

template <typename T, typename Flag, typename Model>
void choose(T& target, const std::optional<Flag>& flag, const std::optional<Model>& model) {
  if (model) target = static_cast<T>(*model);
  if (flag) target = static_cast<T>(*flag);
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

// What ends an answer, in one line.
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

Result<GenerationParams> default_generation_params(const Options& o, const GenerationConfig& g,
                                                   const ModelConfig& model) {
  GenerationParams params;
  SamplingParams& s = params.sampling;
  // "do_sample": false says greedy whatever temperature stands beside it, as in transformers.
  const std::optional<float> model_temperature = g.do_sample == false ? std::optional<float>(0.0f) : g.temperature;
  choose(s.temperature, o.temperature, model_temperature);
  choose(s.top_p, o.top_p, g.top_p);
  choose(s.top_k, o.top_k, g.top_k);
  s.top_k = std::max(s.top_k, 0);
  choose(s.min_p, o.min_p, g.min_p);
  choose(s.repetition_penalty, o.repetition_penalty, g.repetition_penalty);
  choose(s.presence_penalty, o.presence_penalty, std::optional<float>());
  choose(s.frequency_penalty, o.frequency_penalty, std::optional<float>());
  s.num_logprobs = o.logprobs;
  if (!o.logit_bias_json.empty()) {
    auto bias = parse_logit_bias(o.logit_bias_json, model);
    if (!bias.ok()) return bias.status();
    s.logit_bias = std::move(*bias);
  }
  params.stop.min_tokens = o.min_tokens.value_or(0);
  params.stop.max_tokens = o.max_tokens;
  if (!o.max_tokens && g.max_new_tokens) params.stop.max_tokens = std::max(*g.max_new_tokens, params.stop.min_tokens);
  params.stop.stop = o.stop;
  params.stop.stop_token_ids = o.stop_token_ids;
  for (const TokenId token : o.stop_token_ids)
    if (token < 0 || token >= model.vocab_size)
      return invalid_argument("--stop-token-ids: " + std::to_string(token) + " is not in [0, " +
                              std::to_string(model.vocab_size - 1) + "]");
  for (const std::string& stop : o.stop)
    if (stop.empty()) return invalid_argument("--stop: an empty stop string");
  params.stop.ignore_eos = o.ignore_eos;
  params.stop.include_stop_str_in_output = o.include_stop_str_in_output;
  params.prompt.truncate = o.truncate;
  params.output.skip_special_tokens = !o.no_skip_special_tokens;
  params.output.return_token_ids = o.return_token_ids;
  return params;
}

Result<int32_t> effective_max_model_len(const Options& o, const ModelConfig& model) {
  if (!o.max_model_len) return model.max_position_embeddings;
  if (*o.max_model_len > model.max_position_embeddings)
    return invalid_argument("--max-model-len " + std::to_string(*o.max_model_len) +
                            " is more than the model's context of " + std::to_string(model.max_position_embeddings) +
                            " tokens");
  return *o.max_model_len;
}

std::string describe_model(const Options& o, const ModelFiles& model, const BackendInfo& b) {
  const ModelConfig& m = model.config;
  char line[512];
  std::string out;
  out += "model     " + o.model_name + (o.model_commit.empty() ? "" : " at " + o.model_commit.substr(0, 12));
  std::snprintf(
      line, sizeof line, "%s: %s, %d layers, hidden %d, %d/%d heads, vocabulary %d, %.1f MiB, loaded in %.2f s\n",
      o.load_format == "dummy" ? " (random weights)" : "", m.model_type.c_str(), m.num_hidden_layers, m.hidden_size,
      m.num_attention_heads, m.num_key_value_heads, m.vocab_size, b.weight_bytes / 1048576.0, b.load_ms / 1000);
  out += line;
  std::snprintf(line, sizeof line, "device    %s, KV cache %d blocks of %d tokens (%s, %.1f MiB)\n", b.device.c_str(),
                b.kv.num_blocks, b.kv.block_size, dtype_name(b.kv.dtype),
                double(b.kv.bytes_per_block()) * b.kv.num_blocks / 1048576.0);
  out += line;
  std::snprintf(line, sizeof line, "batching  %s, max-num-seqs %d, max-num-batched-tokens %d, max-model-len %d\n",
                batching_name(o.batching), o.max_num_seqs, o.max_num_batched_tokens, model.max_model_len);
  return out + line;
}

std::string describe_defaults(const Options& o, const ModelFiles& model) {
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
