// Each rank reads its part of a checkpoint and what all ranks have, and no more: pages of the file are counted as they
// are touched. Rows are so long that parts of them are whole pages.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/touched_by_loading.h"

namespace llmb::test {
namespace {

class Checkpoint {
 public:
  explicit Checkpoint(std::string dir) : dir_(std::move(dir)) {}
  void add(const std::string& name, std::vector<int64_t> shape) {
    int64_t size = 1;
    for (const int64_t dimension : shape) size *= dimension;
    tensors_.push_back({name, "BF16", std::move(shape), std::string(static_cast<size_t>(2 * size), '\0')});
  }
  // Matrices begin with pages: the header is filled up, and vectors come last.
  void write(const std::string& config) {
    std::stable_partition(tensors_.begin(), tensors_.end(), [](const RawTensor& t) { return t.bytes.size() >= kPage; });
    write_file(dir_ + "/config.json", config);
    write_file(dir_ + "/model.safetensors", on_pages(raw_safetensors(tensors_)));
  }

 private:
  const std::string dir_;
  std::vector<RawTensor> tensors_;
};

constexpr int64_t kHidden = 64, kWide = 16384, kVocab = 8192, kLayers = 2;

void add_around_layers(Checkpoint* checkpoint) {
  checkpoint->add("model.embed_tokens.weight", {kVocab, kHidden});
  checkpoint->add("lm_head.weight", {kVocab, kHidden});
  checkpoint->add("model.norm.weight", {kHidden});
}

std::string add_attention(Checkpoint* checkpoint, int64_t layer) {
  const std::string name = "model.layers." + std::to_string(layer) + ".";
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
    checkpoint->add(name + norm + ".weight", {kHidden});
  checkpoint->add(name + "self_attn.q_proj.weight", {kWide, kHidden});
  checkpoint->add(name + "self_attn.k_proj.weight", {kWide / 8, kHidden});
  checkpoint->add(name + "self_attn.v_proj.weight", {kWide / 8, kHidden});
  checkpoint->add(name + "self_attn.o_proj.weight", {kHidden, kWide});
  return name;
}

const std::string kCommonConfig = R"("torch_dtype":"bfloat16","hidden_size":64,"head_dim":256,"num_attention_heads":64,
"num_key_value_heads":8,"vocab_size":8192,"num_hidden_layers":2,"max_position_embeddings":128,"rms_norm_eps":1e-6,
"rope_theta":10000,"hidden_act":"silu","tie_word_embeddings":false)";

void write_dense(const std::string& dir) {
  Checkpoint checkpoint(dir);
  add_around_layers(&checkpoint);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = add_attention(&checkpoint, layer);
    checkpoint.add(name + "mlp.gate_proj.weight", {kWide, kHidden});
    checkpoint.add(name + "mlp.up_proj.weight", {kWide, kHidden});
    checkpoint.add(name + "mlp.down_proj.weight", {kHidden, kWide});
  }
  checkpoint.write(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","intermediate_size":16384,)" +
                   kCommonConfig + "}");
}

void write_experts(const std::string& dir) {
  constexpr int64_t kExperts = 8, kIntermediate = 2048;
  Checkpoint checkpoint(dir);
  add_around_layers(&checkpoint);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = add_attention(&checkpoint, layer) + "block_sparse_moe.";
    checkpoint.add(name + "gate.weight", {kExperts, kHidden});
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::string expert = name + "experts." + std::to_string(e) + ".";
      checkpoint.add(expert + "w1.weight", {kIntermediate, kHidden});
      checkpoint.add(expert + "w3.weight", {kIntermediate, kHidden});
      checkpoint.add(expert + "w2.weight", {kHidden, kIntermediate});
    }
  }
  checkpoint.write(
      R"({"architectures":["MixtralForCausalLM"],"model_type":"mixtral","intermediate_size":2048,)"
      R"("num_local_experts":8,"num_experts_per_tok":2,)" + kCommonConfig + "}");
}

// A table of inputs of layers as large as the layers; parts of its rows are whole pages.
void write_layer_inputs(const std::string& dir) {
  constexpr int64_t kInputs = 2048;
  Checkpoint checkpoint(dir);
  add_around_layers(&checkpoint);
  checkpoint.add("model.embed_tokens_per_layer.weight", {kVocab, kLayers * kInputs});
  checkpoint.add("model.per_layer_model_projection.weight", {kLayers * kInputs, kHidden});
  checkpoint.add("model.per_layer_projection_norm.weight", {kInputs});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = add_attention(&checkpoint, layer);
    for (const char* norm : {"pre_feedforward_layernorm", "post_feedforward_layernorm", "post_per_layer_input_norm"})
      checkpoint.add(name + norm + ".weight", {kHidden});
    checkpoint.add(name + "self_attn.q_norm.weight", {256});
    checkpoint.add(name + "self_attn.k_norm.weight", {256});
    checkpoint.add(name + "mlp.gate_proj.weight", {kWide, kHidden});
    checkpoint.add(name + "mlp.up_proj.weight", {kWide, kHidden});
    checkpoint.add(name + "mlp.down_proj.weight", {kHidden, kWide});
    checkpoint.add(name + "per_layer_input_gate.weight", {kInputs, kHidden});
    checkpoint.add(name + "per_layer_projection.weight", {kHidden, kInputs});
    checkpoint.add(name + "layer_scalar", {1});
  }
  checkpoint.write(R"({"architectures":["Gemma4ForCausalLM"],"model_type":"gemma4_text","intermediate_size":16384,)"
                   R"("global_head_dim":256,"num_kv_shared_layers":0,"vocab_size_per_layer_input":8192,)"
                   R"("hidden_size_per_layer_input":2048,"layer_types":["sliding_attention","full_attention"],)" +
                   kCommonConfig + "}");
}

// Bytes of the file that are read to make the weights of one rank, and these as they are stored, with what all have.
struct Reads {
  int64_t touched = 0, stored = 0, file = 0;
};

int64_t stored_bytes(const ModelConfig& c, const ModelShare& share) {
  const int64_t attention = 2 * (share.q_heads.count() + share.kv_heads.count()) * c.head_dim;
  const ExpertsConfig& experts = c.experts;
  const int64_t mlp = experts.num_experts > 0
                          ? experts.num_experts + share.experts.count() * 3 * experts.intermediate_size
                          : 3 * share.mlp.count();
  const int64_t layer = (2 + attention + mlp) * kHidden;
  const int64_t around = (share.embeds + share.draws) * share.vocab.count() * kHidden + share.draws * kHidden;
  return 2 * (share.layers.count() * layer + around);
}

Reads load_rank(const std::string& dir, const RankPart& part) {
  const std::string path = dir + "/model.safetensors";
  const ModelConfig config = load_model_config(dir).value();
  return {touched_by_loading(dir, path, part), stored_bytes(config, share_of(config, part)),
          static_cast<int64_t>(std::filesystem::file_size(path))};
}

}  // namespace

TEST_CASE("tensor parallel and pipeline ranks read their part of a checkpoint, and what all have") {
  for (const auto& write : {write_dense, write_experts}) {
    const TemporaryDirectory dir;
    write(dir.path());
    const Reads all = load_rank(dir.path(), {});
    CHECK(all.touched >= 0.99 * static_cast<double>(all.file));
    for (const auto& [tensor_size, num_stages] : {std::pair(2, 1), {4, 1}, {1, 2}, {2, 2}}) {
      int64_t sum = 0;
      for (RankPart part = {0, tensor_size, num_stages}; part.rank < part.num_ranks(); ++part.rank) {
        CAPTURE(tensor_size);
        CAPTURE(num_stages);
        CAPTURE(part.rank);
        const Reads rank = load_rank(dir.path(), part);
        CHECK(rank.touched >= rank.stored);
        CHECK(static_cast<double>(rank.touched) <= 1.02 * static_cast<double>(rank.stored));
        CHECK(static_cast<double>(rank.touched) <= 1.1 * static_cast<double>(all.touched) / part.num_ranks());
        sum += rank.touched;
      }
      CHECK(static_cast<double>(sum) <= 1.05 * static_cast<double>(all.touched));
    }
  }
}

TEST_CASE("stages read their layers' columns of the table of inputs of layers") {
  const TemporaryDirectory dir;
  write_layer_inputs(dir.path());
  const Reads all = load_rank(dir.path(), {});
  CHECK(all.touched >= 0.99 * static_cast<double>(all.file));
  int64_t sum = 0;
  for (RankPart part = {0, 1, 2}; part.rank < 2; ++part.rank) {
    CAPTURE(part.rank);
    const int64_t touched = load_rank(dir.path(), part).touched;
    CHECK(static_cast<double>(touched) <= 1.1 * static_cast<double>(all.touched) / 2);
    sum += touched;
  }
  CHECK(static_cast<double>(sum) <= 1.05 * static_cast<double>(all.touched));
}

}  // namespace llmb::test
