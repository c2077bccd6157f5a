// FAULTS 32 for GGUF files of models whose layers are of several kinds, and of encoders: values with which nobody can
// compute are refused before a weight is read.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/refused_gguf.h"

namespace llmb::test {
namespace {

using Lists = std::map<std::string, std::vector<int32_t>>;

// Two layers, the second with attention. A key of `changed` has these values in place of its own, a list where they are
// several, and is missing where there are none.
GgufWriter model(const std::string& architecture, Lists changed) {
  Lists values = {
      {"context_length", {64}},          {"embedding_length", {8}},        {"block_count", {2}},
      {"feed_forward_length", {16}},     {"attention.head_count", {2}},    {"attention.key_length", {4}},
      {"attention.key_length_swa", {4}}, {"attention.head_count_kv", {1}}, {"attention.sliding_window_pattern", {1, 0}},
      {"full_attention_interval", {2}},  {"shortconv.l_cache", {3}},       {"ssm.group_count", {1}},
      {"ssm.time_step_rank", {2}},       {"ssm.state_size", {4}},          {"ssm.conv_kernel", {4}},
      {"ssm.inner_size", {16}}};
  if (architecture == "lfm2" || architecture == "granitehybrid" || architecture == "nemotron_h")
    values["attention.head_count_kv"] = {0, 1};
  for (const char* name : {"gemma4", "modern-bert", "gemma-embedding"})
    if (architecture == name) values["attention.sliding_window"] = {8};
  if (architecture == "modern-bert") values["attention.sliding_window_pattern"] = {3};
  for (auto& [key, numbers] : changed) values[key] = numbers;
  GgufWriter w;
  w.text("general.architecture", architecture);
  for (const auto& [key, numbers] : values) {
    const std::string name = architecture + "." + key;
    if (numbers.size() > 1) w.ints(name, numbers);
    else if (!numbers.empty()) w.entry(name, 5, GgufWriter::raw(numbers[0]));
  }
  w.f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  w.f32(architecture + ".attention.layer_norm_epsilon", 1e-5f);
  w.f32_tensor("token_embd.weight", {16, 8}, std::vector<float>(128, 0.5f));
  return w;
}

void check(const std::string& architecture, const Lists& changed, const std::string& part) {
  CAPTURE(architecture);
  check_model_refused(model(architecture, changed), part);
}

TEST_CASE("FAULTS 32: layers with a state") {
  for (const char* name : {"qwen35", "lfm2", "granitehybrid", "nemotron_h"}) {
    check(name, {}, "is missing, expected shape");  // good values: the first tensor that is not there is named
    check(name, {{"block_count", {0}}}, "block_count");
    check(name, {{"block_count", {1'000'000}}}, "block_count");
    check(name, {{"block_count", {-1}}}, "block_count");
    check(name, {{"nextn_predict_layers", {2}}}, "nextn_predict_layers");
    check(name, {{"nextn_predict_layers", {-1}}}, "nextn_predict_layers");
  }
  for (const char* name : {"qwen35", "granitehybrid", "nemotron_h"}) {
    for (const char* key : {"ssm.group_count", "ssm.state_size", "ssm.conv_kernel"}) {
      check(name, {{key, {}}}, key);
      check(name, {{key, {0}}}, "expected an integer from");
      check(name, {{key, {-5}}}, "expected an integer from");
      check(name, {{key, {1 << 30}}}, "expected an integer from");
    }
    for (const int bad : {0, -1, 3}) check(name, {{"ssm.time_step_rank", {bad}}}, "ssm.time_step_rank");
    check(name, {{"ssm.inner_size", {}}}, "ssm.inner_size");
    check(name, {{"ssm.inner_size", {15}}}, "ssm.inner_size");
  }
  check("qwen35", {{"ssm.group_count", {4}}}, "not a multiple");
  check("granitehybrid", {{"ssm.inner_size", {12}}}, "embedding_length");
  check("qwen35", {{"attention.recurrent_layers", {1, 1}}}, "no layer has attention");
  check("qwen35", {{"attention.recurrent_layers", {1, 0}}, {"block_count", {3}}}, "recurrent_layers");
  for (const char* name : {"lfm2", "granitehybrid", "nemotron_h"}) {
    check(name, {{"attention.head_count_kv", {0, 0}}}, "num_key_value_heads");
    check(name, {{"attention.head_count_kv", {0, 3}}}, "num_key_value_heads");
    check(name, {{"attention.head_count_kv", {0, 1}}, {"block_count", {3}}}, "head_count_kv");
  }
  check("lfm2", {{"attention.sliding_window", {8}}}, "attention.sliding_window");
  check("lfm2", {{"shortconv.l_cache", {}}}, "shortconv.l_cache");
  check("lfm2", {{"shortconv.l_cache", {0}}}, "conv_L_cache");
}

TEST_CASE("FAULTS 32: Gemma 4") {
  check("gemma4", {}, "is missing, expected shape");
  for (const char* key : {"attention.sliding_window_pattern", "attention.head_count_kv", "feed_forward_length"})
    check("gemma4", {{key, {}}}, key);
  check("gemma4", {{"attention.sliding_window_pattern", {0, 1}}}, "the last layer");
  check("gemma4", {{"feed_forward_length", {16, 17}}}, "feed_forward_length");
  check("gemma4", {{"feed_forward_length", {0, 0}}}, "feed_forward_length");
  check("gemma4", {{"feed_forward_length", {INT32_MAX, 16}}}, "feed_forward_length");
  check("gemma4", {{"attention.key_length", {}}}, "attention.key_length");
  check("gemma4", {{"attention.key_length", {5}}}, "odd");
  check("gemma4", {{"attention.key_length", {-4}}}, "global_head_dim");
  check("gemma4", {{"attention.key_length", {1 << 30}}}, "global_head_dim");
  check("gemma4", {{"attention.shared_kv_layers", {2}}}, "num_kv_shared_layers");
  check("gemma4", {{"attention.shared_kv_layers", {-1}}}, "num_kv_shared_layers");
  check("gemma4", {{"attention.head_count_kv", {1, 3}}}, "KV heads");
  check("gemma4", {{"embedding_length_per_layer_input", {-1}}}, "hidden_size_per_layer_input");
  for (const std::vector<float>& factors : {std::vector<float>{1, 2}, {NAN, 1e30f}, {1e30f, 1}, {1}, {1, 1, 1}}) {
    GgufWriter w = model("gemma4", {});
    w.f32_tensor("rope_freqs.weight", {static_cast<int64_t>(factors.size())}, factors);
    check_model_refused(w, "rope_freqs.weight");
  }
}

TEST_CASE("FAULTS 32: encoders") {
  check("modern-bert", {}, "is missing, expected shape");
  check("bert", {}, "type_vocab_size");
  check("nomic-bert", {{"moe_every_n_layers", {2}}}, "moe_every_n_layers");
  check("modern-bert", {{"attention.sliding_window", {0}}}, "local_attention");
  check("modern-bert", {{"attention.sliding_window_pattern", {0}}}, "global_attn_every_n_layers");
  check("modern-bert", {{"attention.head_count", {3}}}, "num_attention_heads");
  check("gemma-embedding", {{"attention.sliding_window", {1}}}, "sliding_window");
}

}  // namespace
}  // namespace llmb::test
