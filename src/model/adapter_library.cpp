#include "model/adapter_library.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/directory.h"
#include "base/file_ops.h"
#include "base/whole_file.h"

namespace llmb {

Result<std::vector<AdapterFolder>> adapters_below(const std::string& dir) {
  LLMB_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory_names(dir));
  std::vector<AdapterFolder> folders;
  for (const std::string& name : names)
    if (file_exists(dir + "/" + name + "/adapter_config.json")) folders.push_back({name, dir + "/" + name});
  const size_t num_folders = folders.size();
  const auto is_folder = [&](const std::string& name) {
    return std::any_of(folders.begin(), folders.begin() + static_cast<int64_t>(num_folders),
                       [&](const AdapterFolder& folder) { return folder.name == name; });
  };
  for (const std::string& name : names) {
    if (!name.ends_with(".gguf")) continue;
    const std::string stem = name.substr(0, name.size() - 5);
    if (!stem.empty() && !is_folder(stem)) folders.push_back({stem, dir + "/" + name});
  }
  return folders;
}

AdapterLibrary::AdapterLibrary(std::vector<AdapterFolder> folders, const ModelConfig& model, std::string model_dir)
    : model_(model), model_dir_(std::move(model_dir)), folders_(std::move(folders)) {
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
  entry.files = identify(id);
  const Result<LoraAdapter> opened = LoraAdapter::open(folders_[id].dir, model_);
  entry.status = opened.status();
  if (opened.ok() && checks_values_) entry.status = check(*opened);
  return *entry.status;
}

Result<LoraAdapter> AdapterLibrary::open(int32_t id) const {
  Entry& entry = *entries_[id];
  std::lock_guard lock(entry.mutex);
  if (entry.status && identify(id) != entry.files)
    return data_loss(folders_[id].dir + ": its files have changed since the job began");
  LLMB_ASSIGN_OR_RETURN(LoraAdapter adapter, LoraAdapter::open(folders_[id].dir, model_));
  adapter.is_merged_ = entry.is_merged;
  return adapter;
}

Status AdapterLibrary::check(const LoraAdapter& adapter) const {
  LLMB_RETURN_IF_ERROR(adapter.check_values());
  LLMB_RETURN_IF_ERROR(adapter.check_base_tables(model_dir_));
  return adapter.still_readable();
}

AdapterLibrary::Identities AdapterLibrary::identify(int32_t id) const {
  Identities files;
  for (const auto& [name, path] : adapter_files(folders_[id].dir)) {
    struct stat st {};
    const bool is_there = real_file_ops().stat(path.c_str(), &st) == 0;
    files.push_back(is_there ? std::optional(identity_of(st)) : std::nullopt);
  }
  return files;
}

}  // namespace llmb
