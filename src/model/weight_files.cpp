#include "model/weight_files.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/content_hash.h"
#include "formats/safetensors.h"
#include "model/gguf_model.h"
#include "model/model_weights.h"
#include "model/packed_weights.h"

namespace llmb {

namespace {

// Where times tell of every change, of the content only its header and its end.
std::string describe(const MappedFile& file) {
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  const FileIdentity& is = file.identity();
  ContentHash hash;
  std::string text = std::to_string(is.size) + " bytes, ";
  if (file.change_times() == ChangeTimes::kUnknown) {
    hash.update(bytes);
  } else {
    constexpr size_t kSampleBytes = 1 << 20;
    const std::string_view first = bytes.substr(0, kSampleBytes), rest = bytes.substr(first.size());
    hash.update(first);
    hash.update(rest.substr(rest.size() - std::min(rest.size(), kSampleBytes)));
    text += "times " + std::to_string(is.mtime_ns) + " and " + std::to_string(is.ctime_ns) + ", inode " +
            std::to_string(is.inode) + ", ";
  }
  file.release_pages(file.data(), file.size());
  return text + "hash " + std::to_string(hash.digest()) + "\n";
}

}  // namespace

struct WeightFiles::Parts {
  std::string model_path;
  ModelConfig config;
  std::variant<Checkpoint, GgufFile> files;
  StoredQuantization quantization;  // of a checkpoint
};

WeightFiles::WeightFiles(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
WeightFiles::WeightFiles(WeightFiles&&) noexcept = default;
WeightFiles::~WeightFiles() = default;

Result<WeightFiles> WeightFiles::open(const std::string& model_path, const ModelConfig& config) {
  LLMB_ASSIGN_OR_RETURN(WeightFiles files, open_files(model_path, config));
  ThreadPool pool(1);
  const Status status = check_model_weights(config, *files.make_source(pool, WeightAccess::kShapes));
  if (!status.ok()) return status.with_context(model_path);
  return files;
}

Result<WeightFiles> WeightFiles::open_part(const std::string& path, const ModelConfig& config) {
  return open_files(path, config);
}

Result<WeightFiles> WeightFiles::open_files(const std::string& model_path, const ModelConfig& config) {
  if (is_gguf_path(model_path)) {
    LLMB_ASSIGN_OR_RETURN(GgufFile file, GgufFile::open(model_path));
    Status status = gguf_architecture(file).status();
    if (status.ok()) status = check_gguf_tensors(file);
    if (!status.ok()) return status.with_context(model_path);
    return WeightFiles(std::make_unique<const Parts>(Parts{model_path, config, std::move(file), {}}));
  }
  LLMB_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(model_path));
  LLMB_ASSIGN_OR_RETURN(const StoredQuantization quantization, load_stored_quantization(model_path));
  return WeightFiles(std::make_unique<const Parts>(Parts{model_path, config, std::move(checkpoint), quantization}));
}

Result<std::optional<std::string>> WeightFiles::identity() const {
  std::string text;
  bool has_young = false;
  const auto add = [&](const MappedFile& file) {
    text += describe(file);
    has_young = has_young || is_young(file.identity(), file.change_times());
  };
  if (const auto* gguf = std::get_if<GgufFile>(&parts_->files)) {
    for (const MappedFile& file : gguf->files()) add(file);
  } else {
    LLMB_ASSIGN_OR_RETURN(const MappedFile config, MappedFile::open(parts_->model_path + "/config.json"));
    add(config);
    for (const MappedFile& file : std::get<Checkpoint>(parts_->files).files()) add(file);
  }
  return has_young ? std::nullopt : std::optional(text);
}

Status WeightFiles::still_readable() const {
  if (const auto* gguf = std::get_if<GgufFile>(&parts_->files)) return gguf->still_readable();
  for (const MappedFile& file : std::get<Checkpoint>(parts_->files).files())
    LLMB_RETURN_IF_ERROR(file.still_readable());
  return {};
}

bool WeightFiles::is_gguf() const { return std::holds_alternative<GgufFile>(parts_->files); }

bool WeightFiles::stays_packed() const {
  if (is_gguf()) return parts_->config.is_dequantised;
  const StoredQuantization& stored = parts_->quantization;
  if (stored.method != StoredMethod::kNumbers) return true;
  const auto& checkpoint = std::get<Checkpoint>(parts_->files);
  const std::vector<std::string> names = checkpoint.names();
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return checkpoint.find(name)->dtype == kFp8DType; });
}

int64_t WeightFiles::stored_bytes() const {
  int64_t bytes = 0;
  if (const auto* file = std::get_if<GgufFile>(&parts_->files)) {
    for (const GgufTensor& tensor : file->tensors()) bytes += static_cast<int64_t>(tensor.data.size());
    return bytes;
  }
  const auto& checkpoint = std::get<Checkpoint>(parts_->files);
  for (const std::string& name : checkpoint.names()) bytes += checkpoint.find(name)->bytes;
  return bytes;
}

std::unique_ptr<WeightSource> WeightFiles::make_source(ThreadPool& pool, WeightAccess access, WeightForm form) const {
  if (const auto* file = std::get_if<GgufFile>(&parts_->files))
    return std::make_unique<GgufSource>(*file, parts_->config, pool, access, form);
  return std::make_unique<PackedSource>(std::get<Checkpoint>(parts_->files), parts_->config, parts_->quantization, pool,
                                        access, form);
}

}  // namespace llmb
