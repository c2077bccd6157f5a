// How the weights of model_weights.h are found in a checkpoint. Private to src/model.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "model/architecture.h"
#include "model/model_weights.h"
#include "model/ops.h"
#include "model/weight_reader.h"

namespace llmb {

// Matrices that become one, with their biases.
struct Parts {
  std::vector<TensorView> weights, biases;

  void add(const TensorView& weight, const TensorView& bias, bool has_bias) {
    weights.push_back(weight);
    if (has_bias) biases.push_back(bias);
  }
};

// All experts of a layer in one tensor each; no rows where they are stored otherwise.
struct StackedExperts {
  TensorView gate_up, gate_up_bias, down, down_bias;

  bool is_used() const { return gate_up.rows > 0 || gate_up_bias.rows > 0; }
};

// Reads what weights are made of, where it is not read yet. Makes nothing after an error.
class ReadingMaker final : public WeightMaker {
 public:
  ReadingMaker(WeightMaker& maker, WeightReader& reader) : maker_(maker), reader_(reader) {}
  std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                            WeightRole role) override {
    std::vector<TensorView> read(parts.begin(), parts.end());
    for (TensorView& part : read) part = reader_.read(part);
    return reader_.status().ok() ? maker_.make_linear(read, biases, role) : nullptr;
  }
  // The table may be rounded or not.
  std::unique_ptr<LinearWeight> make_table_columns(std::span<const TensorView> parts, int64_t first,
                                                   int64_t count) override {
    const bool reads_whole_rows = maker_.rounds_rows_of_tables() && count < parts[0].cols;
    std::vector<TensorView> read;
    for (const TensorView& part : parts)
      read.push_back(reader_.read(reads_whole_rows ? part : reader_.columns(part, first, count)));
    if (!reader_.status().ok()) return nullptr;
    return reads_whole_rows ? maker_.make_table_columns(read, first, count)
                            : maker_.make_linear(read, {}, WeightRole::kVocabulary);
  }
  std::unique_ptr<ExpertsWeight> make_experts(std::vector<std::unique_ptr<LinearWeight>> gate_up,
                                              std::vector<std::unique_ptr<LinearWeight>> down) override {
    return maker_.make_experts(std::move(gate_up), std::move(down));
  }
  std::unique_ptr<DeviceBuffer> make_vector(const TensorView& values) override {
    const TensorView read = reader_.read(values);
    return reader_.status().ok() ? maker_.make_vector(read) : nullptr;
  }

 private:
  WeightMaker& maker_;
  WeightReader& reader_;
};

// Takes a model's weights from its checkpoint, layer by layer. One thread.
class Loader {
  struct Qkv {
    Parts q, k, v;
  };
  struct MlpNames {
    std::string prefix;
    const char *gate, *up, *gate_up, *down;  // gate_up: gate and up in one, or nullptr
  };

 public:
  // share: of a rank; null: all
  Loader(const ModelConfig& config, const WeightNames& names, WeightSource& source, WeightMaker& maker,
         const ModelShare* share)
      : c_(config),
        names_(names),
        reader_(source, share != nullptr),
        maker_(maker, reader_),
        is_rank_(share != nullptr),
        share_(is_rank_ ? *share : share_of(config, RankPart())) {
    if (!source.has_common_layout()) return;
    names_.is_transposed = false;
    names_.qkv_order = QkvOrder::kStacked;
    names_.is_interleaved = false;
    names_.experts_layout = ExpertsLayout::kStacked;
    names_.shared_gate_up = nullptr;
  }

  Result<ModelWeights> load();
  // weight_loader_mtp.cpp: a layer's checkpoint (eagle_layer.h); `config` is then the layer's.
  Status load_eagle(ModelWeights* weights);
  // head_tokens: of the head's rows; empty: all
  Status load_eagle3(int64_t num_head_rows, std::span<const TokenId> head_tokens, ModelWeights* weights);

 private:
  void load_layer(int32_t index, const std::string& prefix, LayerWeights* layer);
  void load_layer_inputs(const std::string& prefix, ModelWeights* weights);
  // weight_loader_mtp.cpp. head: of the model, also where that is its embedding
  void load_mtp(const std::string& prefix, const std::string& head, ModelWeights* weights);
  void load_mtp_project(const std::string& prefix, const char* name, MtpWeights* mtp);
  void load_eagle3_qkv(const std::string& prefix, ModelWeights* weights);
  void load_eagle3_head(int64_t num_rows, std::span<const TokenId> tokens, MtpWeights* mtp);
  std::unique_ptr<LinearWeight> load_positions(const std::string& prefix);
  void load_qk_norms(int32_t index, const std::string& prefix, LayerWeights* layer);
  TensorView head_vectors(const std::string& name, const char* suffix, int64_t num_heads);
  // columns: those of a rank
  void load_mlp(const MlpNames& names, int64_t intermediate, const Range& columns, LayerWeights* layer);
  void load_attention(int32_t index, const std::string& prefix, LayerWeights* layer);
  void load_latent(const std::string& prefix, LayerWeights* layer);  // weight_loader_latent.cpp
  void load_latent_heads(const std::string& prefix, LayerWeights* layer);
  void load_state_layer(const std::string& prefix, LayerWeights* layer);  // weight_loader_state.cpp
  void load_gated_qkv(const std::string& prefix, LayerWeights* layer);
  void load_delta_inputs(const std::string& prefix, LayerWeights* layer);
  void load_delta(const std::string& prefix, LayerWeights* layer);
  void load_mamba2(const std::string& prefix, LayerWeights* layer);
  void load_short_conv(const std::string& prefix, LayerWeights* layer);
  std::vector<TensorView> rows_in_order(const TensorView& xbc);
  Range state_columns() const;                                          // of a rank, among those of all values
  std::unique_ptr<DeviceBuffer> state_vector(const std::string& name);  // a number for each value head
  void load_conv(const std::string& name, LayerWeights* layer);
  void load_norms_beside_dense(const std::string& prefix, LayerWeights* layer);
  void load_router(const std::string& prefix, LayerWeights* layer);
  void load_shared_expert(const std::string& prefix, LayerWeights* layer);
  void load_experts(const std::string& prefix, LayerWeights* layer);
  std::string find_experts(const std::string& prefix) const;
  StackedExperts read_stacked(const std::string& name);
  void add_expert(const std::string& name, const StackedExperts& stacked, int32_t index, Parts* gate_up, Parts* down);
  void add_interleaved_expert(const std::string& name, const StackedExperts& stacked, int32_t index, Parts* gate_up,
                              Parts* down);

  void norm(const std::string& prefix, const char* names, NormWeights* out);
  std::unique_ptr<DeviceBuffer> vector(const std::string& name, int64_t size, double offset = 0);
  std::unique_ptr<DeviceBuffer> make_vector(const TensorView& values);  // null after an error
  std::unique_ptr<DeviceBuffer> ones(int64_t size);
  void add_projection(const std::string& prefix, const char* names, int64_t rows, int64_t cols, bool has_bias,
                      Parts* out);
  Qkv split_qkv(const Parts& all) const;
  Parts read_qkv(int32_t index, const std::string& prefix);
  TensorView pairs_apart(const TensorView& view);  // of q and k, where rope turns neighbouring channels together
  std::unique_ptr<LinearWeight> table(const std::string& name, int64_t rows, WeightRole role, bool has_bias = false);
  TensorView heads_of(const TensorView& vectors, const Range& heads) const;  // of head_dim each
  // A rank's rows of stacked matrices, and what it adds to a sum over ranks: some columns, biases on one rank.
  Parts rows_of(const Parts& parts, const Range& rows) const;
  std::unique_ptr<LinearWeight> make_sum(Parts parts, const Range& columns);
  Parts mlp_rows(const Parts& gate_up, int64_t intermediate, const Range& columns) const;
  // Null after an error.
  std::unique_ptr<LinearWeight> make(const Parts& parts, WeightRole role = WeightRole::kProjection);

  const ModelConfig& c_;
  WeightNames names_;
  WeightReader reader_;
  ReadingMaker maker_;
  const bool is_rank_;
  const ModelShare share_;
};

}  // namespace llmb
