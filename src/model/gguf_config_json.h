// How the values of a GGUF file become a config.json. Private to src/model.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "formats/gguf_file.h"
#include "model/gguf_model.h"

namespace llmb {

inline constexpr int64_t kMaxGgufBlocks = 1024;  // layers that a list may have numbers for

// Collects config.json from the values under "<architecture>.".
class GgufConfigJson {
 public:
  GgufConfigJson(const GgufFile& file, const GgufArchitecture& architecture)
      : file_(file), architecture_(architecture.name), prefix_(std::string(architecture.name) + ".") {
    out["model_type"] = architecture.model_type;
  }

  void integer(const char* field, const char* key) { integer(field, key, &out); }
  void integer(const char* field, const char* key, nlohmann::json* to) {
    if (const auto value = file_.integer(prefix_ + key)) (*to)[field] = *value;
    else check_absent(key);
  }
  void number(const char* field, const char* key) { number(field, key, &out); }
  void number(const char* field, const char* key, nlohmann::json* to) {
    const auto value = file_.number(prefix_ + key);
    if (!value) return check_absent(key);
    if (!std::isfinite(*value)) fail(data_loss("\"" + prefix_ + key + "\" is not a finite number"));
    (*to)[field] = *value;
  }
  // The largest of one number for each layer.
  void largest(const char* field, const char* key) {
    const std::vector<int64_t> values = of_layers(key, 1);
    if (!values.empty()) out[field] = *std::max_element(values.begin(), values.end());
  }
  // A number for each of at least `count` layers, of which the file has one for each or one for all; none: it has none.
  std::vector<int64_t> of_layers(const char* key, int64_t count);
  std::optional<int64_t> integer_of(const char* key) const { return file_.integer(prefix_ + key); }
  std::optional<double> number_of(const char* key) const { return file_.number(prefix_ + key); }
  std::optional<bool> boolean_of(const char* key) const { return file_.boolean(prefix_ + key); }
  std::string text(const char* key) const { return std::string(file_.text(prefix_ + key).value_or("")); }
  const GgufValue* find(const char* key) const { return file_.find(prefix_ + key); }
  std::string_view architecture() const { return architecture_; }
  bool has(const char* tensor) const { return file_.tensor(tensor) != nullptr; }
  const GgufFile& file() const { return file_; }

  void fail(Status first) {
    if (status.ok()) status = std::move(first);
  }

  nlohmann::json out = nlohmann::json::object();
  Status status;

 private:
  void check_absent(const char* key) {
    if (file_.find(prefix_ + key) != nullptr)
      fail(unsupported("\"" + prefix_ + key +
                       "\" is not one number; models whose layers differ in it are not supported"));
  }

  const GgufFile& file_;
  const std::string_view architecture_;
  const std::string prefix_;
};

// gguf_config.cpp: takes those that predict further tokens, which stand behind the last one, from the number of layers,
// and returns it. 0 after an error.
int64_t count_layers(GgufConfigJson& c);

// gguf_config_experts.cpp: mixtures of experts, and latent attention.
void read_expert_particulars(GgufConfigJson& c);
bool knows_gguf_experts(const std::string& model_type);  // whether its experts are read

// gguf_config_decoders.cpp: single architectures of plain decoders.
void read_decoder_particulars(GgufConfigJson& c);

// gguf_config_layers.cpp: models whose layers are of several kinds, and gguf_config_encoders.cpp. Nothing is read of
// other models.
bool has_unlike_gguf_layers(const std::string& model_type);  // sizes may be lists, one number for each layer
bool has_own_gguf_ropes(const std::string& model_type);      // they are not one rope for all layers
void read_layer_particulars(GgufConfigJson& c);
void read_encoder_particulars(GgufConfigJson& c);

}  // namespace llmb
