// Where tensors of a Hugging Face checkpoint stand in a GGUF file (gguf_names.cpp), and what llama.cpp's converter does
// not keep of them as it is: layers with a state, Gemma 4 and encoders. Private to src/model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/model_config.h"
#include "model/gguf_model.h"

namespace llmb {

// The numbers of a tensor of the checkpoint in the file. Empty functions: as they are.
struct GgufLayout {
  enum class Value { kSame, kMinusOne, kLogOfNegated };

  std::function<int64_t(int64_t)> row;    // the file's row of a row, or its number of a vector's number
  std::function<int64_t(int64_t)> piece;  // the file's piece of a row's piece, each piece_cols columns
  int64_t piece_cols = 0;
  int64_t stored_rows = 0;     // > 0: the file's tensor has so many rows, of which these are some
  bool moves_numbers = false;  // of a matrix whose rows are of heads: `row` is of its numbers
  Value value = Value::kSame;
};

// `name`: of the checkpoint, `stored`: in the file.
GgufLayout gguf_layout(std::string_view name, std::string_view stored, bool is_vector,
                       const GgufArchitecture& architecture, const ModelConfig& config);

// Where a tensor of the checkpoint stands.
struct GgufPlace {
  std::string name;
  std::optional<int64_t> index;  // of a matrix in a 3-dimensional tensor, or of a vector in a matrix
};

// nullopt: it has no name in a GGUF file. The shared MLP of a model without experts is its MLP.
std::optional<GgufPlace> gguf_place(const GgufFile& file, const std::string& name, const GgufArchitecture& architecture,
                                    const ModelConfig& config);

// A tensor of the file, or rows of one that holds several tensors, one behind the other.
struct GgufStored {
  const GgufTensor* tensor = nullptr;   // nullptr: the file has none
  int64_t first_row = 0, num_rows = 0;  // num_rows: of all of them together; 0: it holds nothing else
};
GgufStored gguf_stored(const GgufFile& file, const ModelConfig& config, const std::string& name);

}  // namespace llmb
