#include "job/model_inventory.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "base/directory.h"
#include "base/file_ops.h"
#include "model/gguf_model.h"
#include "model/lora_adapter.h"
#include "model/pooling.h"

namespace llmb {

namespace {

namespace fs = std::filesystem;

// Names in a directory that end so, in order.
Result<std::vector<std::string>> names_ending_in(const std::string& dir, const std::string& ending) {
  std::error_code error;
  if (!fs::exists(dir, error) && !error) return std::vector<std::string>();  // who loads it says so
  Result<std::vector<std::string>> names = directory_names(dir);
  if (names.ok()) std::erase_if(*names, [&](const std::string& name) { return !name.ends_with(ending); });
  return names;
}

using NamedPaths = std::vector<std::pair<std::string, std::string>>;

// (name in the fingerprint, path), in a fixed order.
Result<NamedPaths> model_file_names(const ModelSource& o) {
  NamedPaths names;
  const auto add = [&](const std::string& role, const std::string& dir, const std::string& name) {
    names.emplace_back(role + "/" + name, dir + "/" + name);
  };
  const auto add_gguf = [&](const std::string& role, const std::string& path) {
    for (const std::string& part : gguf_parts(path))
      names.emplace_back(role + "/" + fs::path(part).filename().string(), part);
  };
  const bool is_gguf = is_gguf_path(o.model);
  if (is_gguf) add_gguf("model", o.model);
  else
    for (const char* name : {"config.json", "generation_config.json"}) add("model", o.model, name);
  if (!is_gguf && o.load_format != LoadFormat::kDummy) {
    add("model", o.model, "model.safetensors.index.json");
    LLMB_ASSIGN_OR_RETURN(const std::vector<std::string> shards, names_ending_in(o.model, ".safetensors"));
    for (const std::string& shard : shards) add("model", o.model, shard);
    // Layers behind the pooling of a model that embeds.
    LLMB_ASSIGN_OR_RETURN(std::vector<std::string> layers, names_ending_in(o.model, "_Dense"));
    for (std::string& folder : pooling_layer_folders(o.model))
      if (std::find(layers.begin(), layers.end(), folder) == layers.end()) layers.push_back(std::move(folder));
    for (const std::string& layer : layers)
      for (const char* name : {"/config.json", "/model.safetensors"}) add("model", o.model, layer + name);
  }
  for (const AdapterFolder& adapter : o.adapters)
    for (const auto& [name, path] : adapter_files(adapter.dir))
      names.emplace_back("adapter/" + adapter.name + "/" + name, path);
  if (!o.chat_template.empty()) names.emplace_back("chat-template", o.chat_template);
  if (is_gguf_path(o.tokenizer)) {
    if (o.tokenizer != o.model) add_gguf("tokenizer", o.tokenizer);
    return names;
  }
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
        "merges.txt", "encoder.json", "vocab.bpe", "tokenizer.model", "tiktoken.model"})
    add("tokenizer", o.tokenizer, name);
  LLMB_ASSIGN_OR_RETURN(const std::vector<std::string> ranks, names_ending_in(o.tokenizer, ".tiktoken"));
  for (const std::string& name : ranks) add("tokenizer", o.tokenizer, name);
  if (!o.chat_template.empty()) return names;
  for (const char* name : {"chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja"})
    add("tokenizer", o.tokenizer, name);
  return names;
}

Result<std::optional<FileIdentity>> identify(const std::string& path) {
  struct stat st {};
  if (real_file_ops().stat(path.c_str(), &st) == 0) return std::optional(identity_of(st));
  if (errno == ENOENT || errno == ENOTDIR) return std::optional<FileIdentity>();
  return io_error(path + ": cannot stat it: " + std::strerror(errno));
}

bool is_regular_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

Result<ModelInventory> list_files(const ModelSource& source) {
  LLMB_ASSIGN_OR_RETURN(const NamedPaths names, model_file_names(source));
  ModelInventory inventory;
  for (const auto& [name, path] : names) {
    LLMB_ASSIGN_OR_RETURN(std::optional<FileIdentity> identity, identify(path));
    // An adapter of a directory or a pipe costs its rows, as one without files does.
    if (name.starts_with("adapter/") && identity && !is_regular_file(path)) identity.reset();
    inventory.push_back({name, path, identity});
  }
  return inventory;
}

}  // namespace

Result<ModelInventory> take_inventory(const ModelSource& source) {
  Result<ModelInventory> inventory = list_files(source);
  const auto is_changing = [](const ModelFile& file) {
    return file.identity && is_young(*file.identity, ChangeTimes::kAtOnce);
  };
  constexpr int kMaxTries = 100;  // who goes on writing is noticed by check_inventory
  for (int i = 0; i < kMaxTries && inventory.ok() && std::any_of(inventory->begin(), inventory->end(), is_changing);
       ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    inventory = list_files(source);
  }
  return inventory;
}

Status check_inventory(const ModelSource& source, const ModelInventory& inventory) {
  LLMB_ASSIGN_OR_RETURN(const ModelInventory now, list_files(source));
  if (inventory == now) return {};
  const auto only_in = [](const ModelInventory& one, const ModelInventory& other) {
    return std::find_if(one.begin(), one.end(), [&](const ModelFile& file) {
      return std::find(other.begin(), other.end(), file) == other.end();
    });
  };
  const auto changed = only_in(now, inventory);
  return data_loss((changed != now.end() ? changed : only_in(inventory, now))->path +
                   ": changed while the model was loaded; run again when nobody writes to the model");
}

}  // namespace llmb
