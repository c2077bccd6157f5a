#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "base/directory.h"
#include "base/whole_file.h"
#include "formats/json_scanner.h"

namespace llmb {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxIndexBytes = 32'000'000;
// With names of at most 512 bytes these keep what a hostile file can make us allocate under 64 MiB.
constexpr size_t kMaxTensors = 1 << 16;         // a file
constexpr size_t kMaxIndexedTensors = 1 << 18;  // a model
constexpr size_t kMaxShards = 4096;
constexpr size_t kMaxRank = 8;

// Bytes of one element; nullopt for a dtype that is not known.
std::optional<uint64_t> element_bytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, uint64_t> kDTypes[] = {
      {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I64", 8},     {"U64", 8},     {"I32", 4}, {"U32", 4},
      {"I16", 2}, {"U16", 2}, {"I8", 1},   {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};
  for (const auto& [name, bytes] : kDTypes)
    if (name == dtype) return bytes;
  return std::nullopt;
}

std::string tensor_named(const std::string& name) { return "tensor \"" + name + "\""; }

Status read_shape(JsonScanner& json, std::vector<int64_t>* shape) {
  return json.read_array([&]() -> Status {
    uint64_t size = 0;
    LLMB_RETURN_IF_ERROR(json.read_unsigned(&size));
    if (size > INT64_MAX) return json.error("dimension too large");
    if (shape->size() == kMaxRank) return json.error("more than " + std::to_string(kMaxRank) + " dimensions");
    shape->push_back(static_cast<int64_t>(size));
    return {};
  });
}

Status read_offsets(JsonScanner& json, TensorEntry* entry) {
  uint64_t offsets[2] = {};
  int count = 0;
  LLMB_RETURN_IF_ERROR(json.read_array([&]() -> Status {
    if (count == 2) return json.error("more than two data_offsets");
    return json.read_unsigned(&offsets[count++]);
  }));
  if (count != 2) return json.error("data_offsets needs two integers");
  entry->begin = offsets[0];
  entry->end = offsets[1];
  return {};
}

// {"dtype": "BF16", "shape": [4, 64], "data_offsets": [0, 512]}, each exactly once.
Status read_entry(JsonScanner& json, TensorEntry* entry) {
  int seen_dtype = 0, seen_shape = 0, seen_offsets = 0;
  LLMB_RETURN_IF_ERROR(json.read_object([&](const std::string& key) -> Status {
    if (key == "dtype" && seen_dtype++ == 0) return json.read_string(&entry->dtype, 16);
    if (key == "shape" && seen_shape++ == 0) return read_shape(json, &entry->shape);
    if (key == "data_offsets" && seen_offsets++ == 0) return read_offsets(json, entry);
    return json.error("duplicate or unknown key \"" + key + "\" in " + tensor_named(entry->name));
  }));
  if (seen_dtype + seen_shape + seen_offsets != 3)
    return json.error(tensor_named(entry->name) + " needs dtype, shape and data_offsets");
  return {};
}

Result<std::vector<TensorEntry>> read_header(std::string_view header) {
  std::vector<TensorEntry> entries;
  bool seen_metadata = false;
  JsonScanner json(header);
  Status status = json.read_object([&](const std::string& key) -> Status {
    if (key == "__metadata__") {
      if (std::exchange(seen_metadata, true)) return json.error("duplicate key \"__metadata__\"");
      size_t num_keys = 0;
      return json.read_object([&](const std::string&) {
        return ++num_keys > kMaxTensors ? json.error("too many metadata keys") : json.skip_string();
      });
    }
    if (entries.size() == kMaxTensors) return json.error("more than " + std::to_string(kMaxTensors) + " tensors");
    TensorEntry& entry = entries.emplace_back();
    entry.name = key;
    return read_entry(json, &entry);
  });
  if (status.ok()) status = json.at_end();
  LLMB_RETURN_IF_ERROR(status);
  return entries;
}

Status check_names(const std::vector<TensorEntry>& entries) {
  std::unordered_set<std::string_view> names;
  names.reserve(entries.size());
  for (const TensorEntry& e : entries)
    if (!names.insert(e.name).second) return data_loss("duplicate key \"" + e.name + "\" in the header");
  return {};
}

Status check_size(const TensorEntry& e) {
  const std::optional<uint64_t> bytes = element_bytes(e.dtype);
  if (!bytes) return data_loss(tensor_named(e.name) + " has unknown dtype \"" + e.dtype + "\"");
  uint64_t size = *bytes;
  for (const int64_t dimension : e.shape)
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(dimension), &size))
      return data_loss(tensor_named(e.name) + ": shape " + shape_string(e.shape) + " overflows");
  if (e.end < e.begin || e.end - e.begin != size)
    return data_loss(tensor_named(e.name) + ": data_offsets [" + std::to_string(e.begin) + ", " +
                     std::to_string(e.end) + "] are not the " + std::to_string(size) + " bytes of shape " +
                     shape_string(e.shape) + " " + e.dtype);
  return {};
}

// Entries sorted by begin must tile [0, data_bytes).
Status check_coverage(const std::vector<TensorEntry>& entries, uint64_t data_bytes) {
  uint64_t position = 0;
  for (const TensorEntry& e : entries) {
    if (e.begin != position)
      return data_loss(
          tensor_named(e.name) + " begins at " + std::to_string(e.begin) +
          (e.begin > position ? ", leaving a hole after " : ", overlapping the tensor before, which ends at ") +
          std::to_string(position));
    position = e.end;
  }
  if (position > data_bytes)
    return data_loss("file is too short: tensors need " + std::to_string(position) + " bytes of data, it has " +
                     std::to_string(data_bytes));
  if (position < data_bytes)
    return data_loss(std::to_string(data_bytes - position) + " trailing bytes after the last tensor");
  return {};
}

bool is_plain_shard_name(const std::string& name) {
  return name.find('/') == std::string::npos && name.find('\\') == std::string::npos &&
         name.find('\0') == std::string::npos && name.size() > 12 && name.ends_with(".safetensors");
}

Status no_weights(const std::string& model_dir) {
  const Result<std::vector<std::string>> names = directory_names(model_dir);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    for (const char* extension : {".bin", ".pt", ".pth", ".pkl"})
      if (name.ends_with(extension))
        return unsupported(model_dir + "/" + name + ": pickle is not supported; convert to safetensors");
  }
  return not_found(model_dir + ": has neither model.safetensors nor model.safetensors.index.json");
}

}  // namespace

std::string shape_string(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

Result<std::vector<TensorEntry>> parse_safetensors(std::span<const uint8_t> file) {
  if (file.size() < 8) return data_loss("not a safetensors file: shorter than 8 bytes");
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | file[i];
  if (header_bytes > kMaxHeaderBytes)
    return data_loss("header of " + std::to_string(header_bytes) + " bytes is over the limit of 100 MB");
  if (header_bytes > file.size() - 8) return data_loss("header goes past the end of the file");
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + 8, header_bytes);
  if (header.empty() || header[0] != '{') return data_loss("header does not begin with '{'");

  Result<std::vector<TensorEntry>> entries = read_header(header);
  if (!entries.ok()) return entries.status().with_context("header");
  LLMB_RETURN_IF_ERROR(check_names(*entries));
  for (const TensorEntry& e : *entries) LLMB_RETURN_IF_ERROR(check_size(e));
  std::sort(entries->begin(), entries->end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  LLMB_RETURN_IF_ERROR(check_coverage(*entries, file.size() - 8 - header_bytes));
  for (TensorEntry& e : *entries) {
    e.begin += 8 + header_bytes;
    e.end += 8 + header_bytes;
  }
  return entries;
}

Result<std::vector<std::pair<std::string, std::string>>> parse_safetensors_index(std::string_view json) {
  if (json.size() > kMaxIndexBytes) return data_loss("larger than 32 MB");
  std::vector<std::pair<std::string, std::string>> map;
  bool seen_map = false;
  JsonScanner scanner(json);
  Status status = scanner.read_object([&](const std::string& key) -> Status {
    if (key != "weight_map") return scanner.skip_value();
    if (std::exchange(seen_map, true)) return scanner.error("duplicate key \"weight_map\"");
    return scanner.read_object([&](const std::string& tensor) -> Status {
      if (map.size() == kMaxIndexedTensors)
        return scanner.error("more than " + std::to_string(kMaxIndexedTensors) + " tensors");
      auto& [name, shard] = map.emplace_back();
      name = tensor;
      LLMB_RETURN_IF_ERROR(scanner.read_string(&shard, 255));
      if (!is_plain_shard_name(shard))
        return data_loss(tensor_named(name) + ": shard \"" + shard + "\" is not a plain .safetensors file name");
      return {};
    });
  });
  if (status.ok()) status = scanner.at_end();
  LLMB_RETURN_IF_ERROR(status);
  if (!seen_map) return data_loss("has no weight_map");
  std::unordered_set<std::string_view> names;
  for (const auto& entry : map)
    if (!names.insert(entry.first).second) return data_loss(tensor_named(entry.first) + " is listed twice");
  return map;
}

Status Checkpoint::add_file(const std::string& model_dir, const std::string& file_name) {
  const std::string path = model_dir + "/" + file_name;
  LLMB_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  Result<std::vector<TensorEntry>> entries = parse_safetensors({file.data(), file.size()});
  LLMB_RETURN_IF_ERROR(file.still_readable());
  if (!entries.ok()) return entries.status().with_context(path);
  for (TensorEntry& entry : *entries) {
    std::string name = std::move(entry.name);
    const auto [it, is_new] = tensors_.try_emplace(std::move(name), Location{files_.size(), std::move(entry)});
    if (!is_new)
      return data_loss(tensor_named(it->first) + " is both in " + file_names_[it->second.file] + " and in " +
                       file_name);
  }
  file_names_.push_back(file_name);
  files_.push_back(std::move(file));
  return {};
}

Result<Checkpoint> Checkpoint::open_sharded(const std::string& model_dir) {
  const std::string index_path = model_dir + "/model.safetensors.index.json";
  LLMB_ASSIGN_OR_RETURN(const std::string index, read_whole_file(index_path, kMaxIndexBytes));
  const auto map = parse_safetensors_index(index);
  if (!map.ok()) return map.status().with_context(index_path);

  Checkpoint checkpoint;
  std::unordered_map<std::string, size_t> shards;
  for (const auto& [name, shard] : *map) {
    const auto [it, is_new] = shards.try_emplace(shard, shards.size());
    if (!is_new) continue;
    if (shards.size() > kMaxShards)
      return data_loss(index_path + ": more than " + std::to_string(kMaxShards) + " shards");
    const Status status = checkpoint.add_file(model_dir, shard);
    if (!status.ok()) return status.with_context(index_path);
  }
  for (const auto& [name, shard] : *map) {
    const auto it = checkpoint.tensors_.find(name);
    if (it == checkpoint.tensors_.end() || it->second.file != shards[shard])
      return data_loss(index_path + ": " + tensor_named(name) + " is not in " + shard);
  }
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_file(const std::string& dir, const std::string& file_name) {
  Checkpoint checkpoint;
  LLMB_RETURN_IF_ERROR(checkpoint.add_file(dir, file_name));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open(const std::string& model_dir) {
  if (file_exists(model_dir + "/model.safetensors")) return open_file(model_dir, "model.safetensors");
  if (file_exists(model_dir + "/model.safetensors.index.json")) return open_sharded(model_dir);
  return no_weights(model_dir);
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, location] : tensors_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<StoredTensor> Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return std::nullopt;
  const auto& [file, entry] = it->second;
  return StoredTensor{entry.dtype, entry.shape, files_[file].data() + entry.begin,
                      static_cast<int64_t>(entry.end - entry.begin), file_names_[file] + ": " + tensor_named(name)};
}

Result<TensorView> Checkpoint::tensor(const std::string& name, std::span<const int64_t> shape) const {
  const std::optional<StoredTensor> stored = find(name);
  if (!stored) return data_loss(tensor_named(name) + " is missing, expected shape " + shape_string(shape));
  LLMB_RETURN_IF_ERROR(check_shape(*stored, shape));
  LLMB_CHECK(!shape.empty());
  TensorView view;
  if (stored->dtype == "F32") view.dtype = DType::kF32;
  else if (stored->dtype == "F16") view.dtype = DType::kF16;
  else if (stored->dtype == "BF16") view.dtype = DType::kBF16;
  else return unsupported(stored->where + " has dtype " + std::string(stored->dtype) + ", expected F32, F16 or BF16");
  view.data = stored->data;
  view.rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) view.rows *= shape[i];  // no overflow: the bytes are there
  view.cols = shape.back();
  return view;
}

Result<const uint8_t*> Checkpoint::bytes(const std::string& name, std::span<const int64_t> shape) const {
  const std::optional<StoredTensor> stored = find(name);
  if (!stored) return data_loss(tensor_named(name) + " is missing, expected shape " + shape_string(shape));
  LLMB_RETURN_IF_ERROR(check_shape(*stored, shape));
  if (stored->dtype != "U8")
    return unsupported(stored->where + " has dtype " + std::string(stored->dtype) + ", expected U8");
  return stored->data;
}

Status check_shape(const StoredTensor& stored, std::span<const int64_t> shape) {
  if (std::equal(shape.begin(), shape.end(), stored.shape.begin(), stored.shape.end())) return {};
  return data_loss(stored.where + " has shape " + shape_string(stored.shape) + ", expected " + shape_string(shape));
}

}  // namespace llmb
