#include "job/generation_defaults.h"

#include <algorithm>

namespace llmb {

namespace {

template <typename T, typename Given, typename Model>
void choose(T& target, const std::optional<Given>& given, const std::optional<Model>& model) {
  if (model) target = static_cast<T>(*model);
  if (given) target = static_cast<T>(*given);
}

SamplingParams sampling_params(const GenerationDefaults& d, const GenerationConfig& g) {
  SamplingParams s;
  // "do_sample": false says greedy whatever temperature stands beside it, as in transformers.
  const std::optional<float> model_temperature = g.do_sample == false ? std::optional<float>(0.0f) : g.temperature;
  choose(s.temperature, d.temperature, model_temperature);
  choose(s.top_p, d.top_p, g.top_p);
  choose(s.top_k, d.top_k, g.top_k);
  s.top_k = std::max(s.top_k, 0);
  choose(s.min_p, d.min_p, g.min_p);
  choose(s.repetition_penalty, d.repetition_penalty, g.repetition_penalty);
  choose(s.presence_penalty, d.presence_penalty, std::optional<float>());
  choose(s.frequency_penalty, d.frequency_penalty, std::optional<float>());
  s.num_logprobs = d.logprobs;
  s.logit_bias = d.logit_bias;
  s.n = d.n.value_or(1);
  s.best_of = d.best_of;
  return s;
}

}  // namespace

Result<GenerationParams> generation_params(const GenerationDefaults& d, const GenerationConfig& g,
                                           const ModelConfig& model) {
  const auto is_token = [&](TokenId token) { return token >= 0 && token < model.vocab_size; };
  const std::string vocabulary = "[0, " + std::to_string(model.vocab_size - 1) + "]";
  for (const auto& [token, bias] : d.logit_bias)
    if (!is_token(token))
      return invalid_argument("`logit_bias`: '" + std::to_string(token) + "' is not a token id in " + vocabulary);
  for (const TokenId token : d.stop_token_ids)
    if (!is_token(token))
      return invalid_argument("`stop_token_ids`: " + std::to_string(token) + " is not in " + vocabulary);
  for (const std::string& stop : d.stop)
    if (stop.empty()) return invalid_argument("`stop`: a stop string is empty");
  GenerationParams params;
  params.sampling = sampling_params(d, g);
  params.stop.min_tokens = d.min_tokens.value_or(0);
  params.stop.max_tokens = d.max_tokens;
  if (!d.max_tokens && g.max_new_tokens) params.stop.max_tokens = std::max(*g.max_new_tokens, params.stop.min_tokens);
  params.stop.stop = d.stop;
  params.stop.stop_token_ids = d.stop_token_ids;
  params.stop.repetition_tokens = d.repetition_tokens;
  params.stop.ignore_eos = d.ignore_eos;
  params.stop.include_stop_str_in_output = d.include_stop_str_in_output;
  params.prompt.truncate = d.truncate;
  params.form = d.form;
  params.output.skip_special_tokens = d.skip_special_tokens;
  params.output.return_token_ids = d.return_token_ids;
  params.task = d.task;
  params.embed.dimensions = d.dimensions;
  return params;
}

}  // namespace llmb
