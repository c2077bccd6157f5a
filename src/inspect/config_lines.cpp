#include "inspect/config_lines.h"

#include <cstdio>
#include <map>
#include <utility>

#include "model/classifier.h"
#include "model/pooling.h"

namespace llmb {

namespace {

std::string describe_positions(const ModelConfig& c) {
  if (!c.alibi_slopes.empty()) return "ALiBi";
  if (c.learned_positions) return "learned";
  if (c.ropes.empty()) return "none in attention";
  std::string out;
  static constexpr const char* kKinds[] = {"", ", linear", ", llama3", ", dynamic", ", yarn", ", longrope", ""};
  for (size_t i = 0; i < c.ropes.size(); ++i) {
    const RopeConfig& rope = c.ropes[i];
    int32_t layer = 0;
    while (layer + 1 < c.num_hidden_layers && c.layer(layer).rope != static_cast<int32_t>(i)) ++layer;
    char text[96];
    std::snprintf(text, sizeof text, "%srope theta %g%s, %d of %d channels", out.empty() ? "" : "; ", rope.theta,
                  kKinds[static_cast<int>(rope.scaling.kind)],
                  static_cast<int32_t>(c.rotary_dim(rope) * rope.scaling.rotated_share), c.head_dim_of(layer));
    out += text;
  }
  return out;
}

std::string describe_layers(const ModelConfig& c) {
  std::map<int32_t, int> windows;
  std::map<std::pair<int32_t, int32_t>, int> heads;  // those that are not the model's
  int num_experts = 0, num_unrotated = 0, num_sharing = 0, num_states = 0, num_mlps = 0;
  for (int32_t i = 0; i < c.num_hidden_layers; ++i) {
    windows[c.layer(i).window]++;
    num_experts += c.layer(i).has_experts;
    num_unrotated += c.layer(i).rope < 0;
    num_sharing += c.layer(i).kv_layer >= 0;
    num_states += c.layer(i).has_state;
    num_mlps += !c.layer(i).has_mixer;
    if (c.layer(i).head_dim > 0 || c.layer(i).num_key_value_heads > 0)
      heads[{c.num_kv_heads_of(i), c.head_dim_of(i)}]++;
  }
  std::string out;
  for (const auto& [window, count] : windows)
    if (window > 0) out += ", " + std::to_string(count) + " with a window of " + std::to_string(window);
  for (const auto& [size, count] : heads)
    out += ", " + std::to_string(count) + " with " + std::to_string(size.first) + " KV heads of " +
           std::to_string(size.second);
  if (num_states > 0) out += ", " + std::to_string(num_states) + " with a recurrent state";
  if (num_mlps > 0) out += ", " + std::to_string(num_mlps) + " an MLP alone";
  if (num_sharing > 0) out += ", " + std::to_string(num_sharing) + " that use earlier layers' keys and values";
  if (num_unrotated > 0) out += ", " + std::to_string(num_unrotated) + " without rope";
  if (num_experts > 0)
    out += ", " + std::to_string(num_experts) + " with " + std::to_string(c.experts.num_experts) + " experts (" +
           std::to_string(c.experts.top_k) + " of them for a token)";
  return out;
}

// By a head of its own, or by words that it says.
bool classifies(const std::string& path, const ModelConfig& config) {
  const auto tokens = load_judge_tokens(path, config);
  const auto words = load_judge_words(path);
  return (tokens.ok() && *tokens) || (words.ok() && !words->empty()) || load_classifier(path, config).ok();
}

}  // namespace

std::string tasks_of_texts(const std::string& path, const ModelConfig& config) {
  const bool embeds = load_pooling(path, config, {}).ok();
  if (!classifies(path, config)) return embeds ? "--task embed" : "";
  return embeds ? "--task embed, --task classify" : "--task classify";
}

void print_config(const std::string& path, const ModelConfig& c) {
  std::string tasks = tasks_of_texts(path, c);
  if (tasks.empty() && c.is_encoder) tasks = "--task embed with --pooling";
  std::printf("architecture  %s%s%s\n", c.model_type.c_str(), c.is_encoder ? ", an encoder" : "",
              tasks.empty() ? "" : (" (" + tasks + ")").c_str());
  std::printf("layers        %d%s\n", c.num_hidden_layers, describe_layers(c).c_str());
  std::printf("sizes         hidden %d, %d heads over %d KV heads of %d, MLP %d%s, vocabulary %d%s\n", c.hidden_size,
              c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.intermediate_size,
              c.activation.gated ? " gated" : "", c.vocab_size, c.tie_word_embeddings ? " (tied)" : "");
  if (c.has_latent())
    std::printf("latents       keys of %d channels, %d of them values; heads' queries of %d, values of %d\n",
                c.head_dim, c.latent.rank, c.latent.query_dim(), c.latent.value_dim);
  if (c.hidden_size_per_layer_input > 0)
    std::printf("layer inputs  %d numbers of each token for each layer\n", c.hidden_size_per_layer_input);
  std::printf("positions     %d, %s\n", c.max_position_embeddings, describe_positions(c).c_str());
}

}  // namespace llmb
