// Models in several GGUF files, as llama-gguf-split writes them.
#include <string>
#include <string_view>
#include <utility>

#include "formats/gguf_file.h"

namespace llmb {

namespace {

constexpr size_t kPartDigits = 5;

std::string padded(uint64_t number) {
  std::string digits = std::to_string(number);
  return digits.size() < kPartDigits ? std::string(kPartDigits - digits.size(), '0') + digits : digits;
}

// Five digits as a number; 0 where they are none.
uint64_t read_padded(std::string_view digits) {
  uint64_t number = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return 0;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  return number;
}

std::string in_files(size_t count) { return " is missing: the model is in " + std::to_string(count) + " files"; }

// A file's fields must place it where its name does.
Status check_place(const GgufFile& file, size_t index, size_t count) {
  const int64_t said_count = file.integer("split.count").value_or(1), said_index = file.integer("split.no").value_or(0);
  if (said_count == static_cast<int64_t>(count) && said_index == static_cast<int64_t>(index)) return {};
  return data_loss("says that it is file " + std::to_string(said_index) + " of " + std::to_string(said_count) +
                   ", counted from 0, expected " + std::to_string(index) + " of " + std::to_string(count));
}

}  // namespace

std::vector<std::string> gguf_parts(const std::string& path) {
  constexpr std::string_view kOf = "-of-", kEnd = ".gguf";
  constexpr size_t kSuffix = 1 + kPartDigits + kOf.size() + kPartDigits + kEnd.size();
  if (path.size() <= kSuffix || !path.ends_with(kEnd)) return {path};
  const std::string stem = path.substr(0, path.size() - kSuffix);
  const std::string_view suffix = std::string_view(path).substr(stem.size());
  const uint64_t index = read_padded(suffix.substr(1, kPartDigits));
  const uint64_t count = read_padded(suffix.substr(1 + kPartDigits + kOf.size(), kPartDigits));
  if (suffix[0] != '-' || suffix.substr(1 + kPartDigits, kOf.size()) != kOf || index < 1 || index > count || count < 2)
    return {path};
  std::vector<std::string> parts;
  for (uint64_t i = 1; i <= count; ++i)
    parts.push_back(stem + "-" + padded(i) + std::string(kOf) + padded(count) + std::string(kEnd));
  return parts;
}

Status GgufFile::add_part(GgufFile part) {
  if (tensors_.size() + part.tensors_.size() > kMaxGgufTensors)
    return data_loss("the files have more than " + std::to_string(kMaxGgufTensors) + " tensors");
  for (GgufTensor& tensor : part.tensors_) {
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second)
      return data_loss("tensor \"" + std::string(tensor.name.substr(0, 100)) + "\" is also in an earlier file");
    tensors_.push_back(std::move(tensor));
  }
  for (MappedFile& file : part.files_) files_.push_back(std::move(file));
  return {};
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  const std::vector<std::string> parts = gguf_parts(path);
  Result<GgufFile> first = open_one(parts[0]);
  if (!first.ok() && first.status().code() == StatusCode::kNotFound && parts.size() > 1)
    return not_found(parts[0] + in_files(parts.size()));
  if (!first.ok()) return first;
  const int64_t count = first->integer("split.count").value_or(1);
  if (count <= 1 && parts[0] == path) return first;
  if (parts.size() == 1)
    return unsupported(path + ": is one of " + std::to_string(count) +
                       " files, which are found by the ends of their names, such as -00001-of-" +
                       padded(static_cast<uint64_t>(count)) +
                       ".gguf; give them back their names, or merge them with llama-gguf-split --merge");
  Status status = check_place(*first, 0, parts.size());
  if (!status.ok()) return status.with_context(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    Result<GgufFile> part = open_one(parts[i]);
    if (!part.ok() && part.status().code() == StatusCode::kNotFound)
      return not_found(parts[i] + in_files(parts.size()));
    if (!part.ok()) return part;
    status = check_place(*part, i, parts.size());
    if (status.ok()) status = first->add_part(std::move(*part));
    if (!status.ok()) return status.with_context(parts[i]);
  }
  const auto total = first->integer("split.tensors.count");
  if (total && *total != static_cast<int64_t>(first->tensors_.size()))
    return data_loss(parts[0] + ": the files have " + std::to_string(first->tensors_.size()) + " tensors, expected " +
                     std::to_string(*total));
  return first;
}

}  // namespace llmb
