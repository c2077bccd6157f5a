// The adapters that rows of a job may name: each a name and a folder, known from the start. Files are looked at when a row
// first names them, and read when it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_identity.h"
#include "base/status.h"
#include "core/adapter_names.h"
#include "core/model_config.h"
#include "model/lora_adapter.h"

namespace llmb {

// The folders right below `dir` that hold an adapter_config.json, and the GGUF files, by their names without ".gguf".
// kNotFound, kIoError.
Result<std::vector<AdapterFolder>> adapters_below(const std::string& dir);

// Thread-safe. An adapter's id is its place in the order of names, from 0.
class AdapterLibrary final : public AdapterNames {
 public:
  // model_dir: whose weights adapters are made for. REQUIRES: names differ
  AdapterLibrary(std::vector<AdapterFolder> folders, const ModelConfig& model, std::string model_dir = "");

  int32_t size() const { return static_cast<int32_t>(folders_.size()); }
  const std::string& name(int32_t id) const { return folders_[id].name; }
  std::optional<int32_t> find(std::string_view name) const override;
  // Adapters that open() says are merged from now on. Before other threads use the library.
  void merge(int32_t id) { entries_[id]->is_merged = true; }
  // From now on prepare() reads all values too, for who will run nothing. Before the first prepare().
  void check_values() { checks_values_ = true; }
  // Makes sure, once, that its tensors are this model's. After an error the same error again. Each is looked at by the
  // first thread that asks, and others wait for it. Nothing stays open.
  Status prepare(int32_t id) override;
  // Opens it: kDataLoss where its files are not those that prepare() saw.
  Result<LoraAdapter> open(int32_t id) const;
  // Reads all values. kDataLoss, or kUnsupported: it was made for other weights than the model's.
  Status check(const LoraAdapter& adapter) const;

 private:
  using Identities = std::vector<std::optional<FileIdentity>>;
  struct Entry {
    std::mutex mutex;
    std::optional<Status> status;
    Identities files;  // that prepare() saw
    bool is_merged = false;
  };

  Identities identify(int32_t id) const;

  const ModelConfig model_;
  const std::string model_dir_;
  std::vector<AdapterFolder> folders_;  // by name
  std::vector<std::unique_ptr<Entry>> entries_;
  bool checks_values_ = false;
};

}  // namespace llmb
