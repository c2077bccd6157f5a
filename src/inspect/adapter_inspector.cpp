#include "inspect/adapter_inspector.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/whole_file.h"
#include "formats/gguf_file.h"
#include "formats/safetensors.h"
#include "model/config_loader.h"
#include "model/gguf_model.h"
#include "model/lora_adapter.h"
#include "model/lora_config.h"

namespace llmb {

namespace {

struct StoredMatrix {
  std::string name, dtype;
  std::vector<int64_t> shape;
};

// An adapter as its files have it, whatever model it is for.
struct StoredAdapter {
  std::string made_for;
  LoraConfig config;    // of a folder
  double alpha = 0;     // of a GGUF file
  bool is_gguf = false;
  std::vector<StoredMatrix> matrices;  // by name
};

Result<StoredAdapter> read_gguf(const std::string& path) {
  LLMB_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
  StoredAdapter stored;
  stored.is_gguf = true;
  stored.made_for = std::string(file.text("general.architecture").value_or("?"));
  stored.alpha = file.number("adapter.lora.alpha").value_or(0);
  for (const GgufTensor& t : file.tensors()) stored.matrices.push_back({std::string(t.name), t.type->name, t.shape});
  std::sort(stored.matrices.begin(), stored.matrices.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return stored;
}

Result<StoredAdapter> read_folder(const std::string& dir) {
  StoredAdapter stored;
  LLMB_ASSIGN_OR_RETURN(stored.config, LoraConfig::read(dir));
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(dir + "/adapter_config.json", kMaxTextFileBytes));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto base = json.find("base_model_name_or_path");
  stored.made_for = base != json.end() && base->is_string() ? base->get<std::string>() : "not said";
  LLMB_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open_file(dir, "adapter_model.safetensors"));
  for (const std::string& name : checkpoint.names()) {
    const StoredTensor t = *checkpoint.find(name);
    stored.matrices.push_back({name, std::string(t.dtype), {t.shape.begin(), t.shape.end()}});
  }
  return stored;
}

// The module whose matrix this is, and which: 'A', 'B' or none.
std::pair<std::string, char> module_of(const std::string& name) {
  for (const auto& [end, factor] : {std::pair{".lora_A.weight", 'A'}, {".lora_B.weight", 'B'}, {".weight.lora_a", 'A'},
                                    {".weight.lora_b", 'B'}}) {
    if (!name.ends_with(end)) continue;
    std::string module = name.substr(0, name.size() - std::string(end).size());
    if (module.starts_with("base_model.model.")) module = module.substr(17);
    return {module, factor};
  }
  return {name, ' '};
}

std::string joined(const std::set<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ", ") + text;
  return out;
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

void print_adapter(const std::string& path, const StoredAdapter& stored) {
  std::set<std::string> targets, alphas;
  std::set<int64_t> ranks;
  int64_t num_parameters = 0;
  std::string lines;
  for (const StoredMatrix& matrix : stored.matrices) {
    const auto [module, factor] = module_of(matrix.name);
    int64_t count = 1;
    for (const int64_t size : matrix.shape) count *= size;
    num_parameters += count;
    std::string what = "not computed";
    if (factor == 'A' && !matrix.shape.empty()) {
      const int64_t rank = matrix.shape[0];
      const double alpha = stored.is_gguf ? stored.alpha : stored.config.alpha_of(module);
      const double scale = !stored.is_gguf ? stored.config.scale_of(module, rank)
                           : alpha == 0    ? 1
                                           : alpha / static_cast<double>(rank);
      ranks.insert(rank);
      alphas.insert(number_text(alpha));
      targets.insert(module.substr(module.rfind('.') + 1));
      what = "A, of rank " + std::to_string(rank) + ", scale " + number_text(scale);
    } else if (factor == 'B') {
      what = "B";
    }
    char line[512];
    std::snprintf(line, sizeof line, "  %-64s %-5s %-12s %s\n", escape_control(matrix.name).c_str(), matrix.dtype.c_str(),
                  shape_string(matrix.shape).c_str(), what.c_str());
    lines += line;
  }
  std::set<std::string> rank_texts;
  for (const int64_t rank : ranks) rank_texts.insert(std::to_string(rank));
  std::printf("adapter       %s: LoRA, %s\n", escape_control(path).c_str(), stored.is_gguf ? "GGUF" : "PEFT");
  std::printf("made for      %s\n", escape_control(stored.made_for).c_str());
  std::printf("rank          %s\n", joined(rank_texts).c_str());
  std::printf("alpha         %s\n", joined(alphas).c_str());
  std::printf("targets       %s\n", escape_control(joined(targets)).c_str());
  std::printf("tensors       %zu, %lld parameters\n%s", stored.matrices.size(), static_cast<long long>(num_parameters),
              lines.c_str());
}

}  // namespace

Status inspect_adapter(const std::string& path, const std::string& model) {
  const auto stored = is_gguf_path(path) ? read_gguf(path) : read_folder(path);
  LLMB_RETURN_IF_ERROR(stored.status());
  print_adapter(path, *stored);
  if (model.empty()) return {};
  LLMB_ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(model));
  LLMB_ASSIGN_OR_RETURN(const LoraAdapter adapter, LoraAdapter::open(path, config));
  LLMB_RETURN_IF_ERROR(adapter.check_values());
  std::printf("fits          %s: %lld modules\n", escape_control(model).c_str(),
              static_cast<long long>(adapter.num_modules()));
  if (adapter.num_left_out() > 0)
    std::printf("left out      %lld tensors of a part that sees or hears, which no text reaches\n",
                static_cast<long long>(adapter.num_left_out()));
  return {};
}

bool is_adapter(const std::string& path) {
  if (!is_gguf_path(path)) return file_exists(path + "/adapter_config.json");
  const auto file = GgufFile::open(path);
  return file.ok() && file->text("general.type") == "adapter";
}

}  // namespace llmb
