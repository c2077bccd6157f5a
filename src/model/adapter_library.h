// The adapters that rows of a job may name: each a name and a folder, known from the start; files are opened when a row
// first names them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/adapter_names.h"
#include "core/model_config.h"
#include "model/lora_adapter.h"

namespace llmb {

// The folders right below `dir` that hold an adapter_config.json, by name. kNotFound, kIoError.
Result<std::vector<AdapterFolder>> adapters_below(const std::string& dir);

// Thread-safe. An adapter's id is its place in the order of names, from 0.
class AdapterLibrary final : public AdapterNames {
 public:
  // REQUIRES: names differ
  AdapterLibrary(std::vector<AdapterFolder> folders, const ModelConfig& model);

  int32_t size() const { return static_cast<int32_t>(folders_.size()); }
  const std::string& name(int32_t id) const { return folders_[id].name; }
  std::optional<int32_t> find(std::string_view name) const override;
  // Opens it and checks all its values, once. After an error the same error again. Each is opened by the first thread
  // that asks, and others wait for it.
  Status prepare(int32_t id) override;
  // REQUIRES: prepare(id).ok()
  std::shared_ptr<const LoraAdapter> adapter(int32_t id) const;

 private:
  struct Entry {
    std::mutex mutex;
    std::optional<Status> status;
    std::shared_ptr<const LoraAdapter> adapter;
  };

  const ModelConfig model_;
  std::vector<AdapterFolder> folders_;  // by name
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace llmb
