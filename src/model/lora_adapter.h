// A LoRA adapter (Hu et al. 2021, arXiv:2106.09685) as PEFT publishes it, a folder with adapter_config.json and
// adapter_model.safetensors, or as llama.cpp's converter writes it, a GGUF file. To the output of a projection or of
// the LM head it adds scale * B (A x), with A [rank, in_features] and B [out_features, rank]; to a token's embedding
// scale * B A[token], with A [rank, vocab_size].
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "core/rank_part.h"
#include "core/tensor_view.h"
#include "formats/gguf_file.h"
#include "formats/safetensors.h"
#include "model/ops.h"

namespace llmb {

inline constexpr int64_t kMaxLoraRank = 256;

// The matrices that an adapter has for a product, or for a part of it (q of q, k and v).
struct LoraModule {
  std::string name;  // its path in the model
  TensorView a, b;  // [rank, in_features], [out_features, rank]
  float scale = 1;
  int64_t out_column = 0;         // of the fused projection's output, to which row_of_column(0) is added
  std::vector<int32_t> b_rows;    // [num_columns], for the columns in order; empty: B's rows in order
  Range a_columns;                // of A that are used, for so much of the input; empty: all
  int64_t b_column = 0, b_stride = 1;  // of B's columns, every so many from that one on are used: one for each rank
  bool is_first = true;           // where its matrices belong to several products, in the first of these

  int64_t rank() const { return a.rows; }
  int64_t in_features() const { return a_columns.count() > 0 ? a_columns.count() : a.cols; }
  int64_t num_columns() const { return b_rows.empty() ? b.rows : static_cast<int64_t>(b_rows.size()); }
  int64_t row_of_column(int64_t column) const { return b_rows.empty() ? column : b_rows[column]; }
};

// The files that it is made of, whether they are there or not: paths by their names.
std::vector<std::pair<std::string, std::string>> adapter_files(const std::string& path);

// A row of a matrix of F32, F16 or BF16.
void read_floats(const TensorView& matrix, int64_t row, float* out);
// A row of B: a number for each rank.
void read_b(const LoraModule& module, int64_t row, float* out);

// Immutable once opened.
class LoraAdapter {
 public:
  // Every tensor belongs to a projection of this model and has its shape. Values are not looked at. kNotFound (no such
  // file), kDataLoss (damaged), kInvalidArgument (another model's, wrong ranks), kUnsupported (what is not plain LoRA;
  // the message names it).
  static Result<LoraAdapter> open(const std::string& path, const ModelConfig& model);

  // kUnsupported: it brings a vocabulary's weights that are not those of the model in this folder, or it cannot be
  // told.
  Status check_base_tables(const std::string& model_dir) const;
  // Reads all values: kDataLoss where one is not finite or cannot be read.
  Status check_values() const;
  // kDataLoss: the file was cut short, or its disk failed, while it was read.
  Status still_readable() const;

  std::span<const LoraModule> modules(int64_t layer, Projection projection) const {
    return modules_[adapted_product_index(layer, projection)];
  }
  // Modules of one of the experts that a router chooses: of gate and up, or of down.
  std::span<const LoraModule> expert_modules(int64_t layer, int64_t expert, bool is_down) const {
    if (!has_experts()) return {};
    return expert_modules_[static_cast<size_t>(expert_product_index(layer, expert, is_down))];
  }
  bool has_experts() const { return !expert_modules_.empty(); }
  // Whether the job runs it with weights merged for it (AdapterLibrary::merge).
  bool is_merged() const { return is_merged_; }
  const LoraModule* embedding() const { return embedding_ ? &*embedding_ : nullptr; }
  int64_t num_modules() const;
  int64_t num_left_out() const { return num_left_out_; }  // tensors of a part that sees or hears, which no text reaches
  int64_t num_parameters() const;
  int64_t max_rank() const;

 private:
  friend class AdapterLibrary;
  friend class LoraReader;
  // A copy of a table of the model's, by the tensor's possible names there.
  struct BaseTable {
    std::vector<std::string> names;
    TensorView values;
  };
  LoraAdapter(int32_t num_layers, int32_t num_experts)
      : num_layers_(num_layers), num_experts_(num_experts), modules_(num_adapted_products(num_layers)) {}
  int64_t expert_product_index(int64_t layer, int64_t expert, bool is_down) const {
    return 2 * (layer * num_experts_ + expert) + (is_down ? 1 : 0);
  }
  template <typename Function>
  void for_each_module(const Function& f) const;

  int32_t num_layers_, num_experts_;
  std::optional<Checkpoint> checkpoint_;  // one of the two
  std::optional<GgufFile> gguf_;
  std::vector<std::vector<LoraModule>> modules_;  // by adapted_product_index()
  std::vector<std::vector<LoraModule>> expert_modules_;  // by expert_product_index(); or empty
  std::vector<LoraModule> stacked_;  // matrices of all experts of a layer, of which the ones above are parts
  std::optional<LoraModule> embedding_;
  std::vector<BaseTable> base_tables_;
  int64_t num_left_out_ = 0;
  bool is_merged_ = false;
};

}  // namespace llmb
