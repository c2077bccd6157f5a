#include "model/adapter_library.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/directory.h"
#include "base/whole_file.h"

namespace llmb {

Result<std::vector<AdapterFolder>> adapters_below(const std::string& dir) {
  LLMB_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory_names(dir));
  std::vector<AdapterFolder> folders;
  for (const std::string& name : names)
    if (file_exists(dir + "/" + name + "/adapter_config.json")) folders.push_back({name, dir + "/" + name});
  return folders;
}

AdapterLibrary::AdapterLibrary(std::vector<AdapterFolder> folders, const ModelConfig& model)
    : model_(model), folders_(std::move(folders)) {
  std::sort(folders_.begin(), folders_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 0; i < folders_.size(); ++i) {
    LLMB_CHECK(i == 0 || folders_[i - 1].name != folders_[i].name);
    entries_.push_back(std::make_unique<Entry>());
  }
}

std::optional<int32_t> AdapterLibrary::find(std::string_view name) const {
  const auto at = std::lower_bound(folders_.begin(), folders_.end(), name,
                                   [](const AdapterFolder& folder, std::string_view n) { return folder.name < n; });
  if (at == folders_.end() || at->name != name) return std::nullopt;
  return static_cast<int32_t>(at - folders_.begin());
}

Status AdapterLibrary::prepare(int32_t id) {
  Entry& entry = *entries_[id];
  std::lock_guard lock(entry.mutex);
  if (entry.status) return *entry.status;
  Result<LoraAdapter> opened = LoraAdapter::open(folders_[id].dir, model_);
  entry.status = opened.ok() ? opened->check_values() : opened.status();
  if (entry.status->ok()) entry.adapter = std::make_shared<const LoraAdapter>(std::move(*opened));
  return *entry.status;
}

std::shared_ptr<const LoraAdapter> AdapterLibrary::adapter(int32_t id) const {
  Entry& entry = *entries_[id];
  std::lock_guard lock(entry.mutex);
  LLMB_CHECK(entry.adapter != nullptr);
  return entry.adapter;
}

}  // namespace llmb
