// Reads GGUF, the container of ggml and llama.cpp: named values, and tensors in many formats of few bits. Knows the
// format, nothing of models. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
//
// Invariants of a file that opened:
//  1. Keys and tensor names are unique, UTF-8 and short.
//  2. Every value and every tensor's bytes lie inside the file; a tensor has exactly the bytes of its shape and type.
//  3. Tensors begin at multiples of the alignment, do not overlap, and leave no holes but padding.
//  4. A model in several files has each of its tensors in one of them; the values are the first file's.
// Memory is bounded by the number of keys and tensors; strings and arrays stay in the mapped files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"

namespace llmb {

inline constexpr uint64_t kMaxGgufTensors = 1 << 16;

enum class GgufValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// A value as it stands in the file.
struct GgufValue {
  GgufValueType type = GgufValueType::kUint8;  // of the elements, where is_array
  bool is_array = false;
  uint64_t count = 1;
  std::string_view bytes;  // of a string its text; of an array of strings each with its length before it
};

// How ggml stores numbers: `block_bytes` for every `block_size` numbers of a row.
struct GgufTensorType {
  uint32_t id = 0;
  const char* name = "";
  uint32_t block_size = 1, block_bytes = 0;
};

struct GgufTensor {
  std::string_view name;
  const GgufTensorType* type = nullptr;
  std::vector<int64_t> shape;  // rows before columns, as everywhere but in the file
  std::span<const uint8_t> data;

  int64_t cols() const { return shape.back(); }
};

// The files of a model of which `path` is one: "m-00001-of-00003.gguf" and its like are parts of it, in order. Only the
// path itself where its name is of another form. By the name only; no file is looked for.
std::vector<std::string> gguf_parts(const std::string& path);

// Immutable once opened.
class GgufFile {
 public:
  // Opens all files of a model, whichever is named. kNotFound, kIoError, kDataLoss, kUnsupported (another
  // version, big-endian).
  static Result<GgufFile> open(const std::string& path);
  static Result<GgufFile> parse(std::span<const uint8_t> bytes);  // which outlive the result

  const GgufValue* find(std::string_view key) const;
  // The value as that type; nullopt where it is absent or another. Integers of all widths are integers, and numbers.
  std::optional<std::string_view> text(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* tensor(std::string_view name) const;           // nullptr where there is none
  const std::vector<MappedFile>& files() const { return files_; }  // none where bytes were parsed
  Status still_readable() const;                                   // as MappedFile's, of all files

 private:
  class Reader;
  static Result<GgufFile> open_one(const std::string& path);
  Status add_part(GgufFile part);

  std::vector<MappedFile> files_;
  std::unordered_map<std::string_view, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

// One element of a value that is no string. Integers that do not fit become the nearest one.
double gguf_number(const GgufValue& value, uint64_t index);
int64_t gguf_integer(const GgufValue& value, uint64_t index);
bool is_gguf_integer(GgufValueType type);
bool is_gguf_float(GgufValueType type);

// Walks an array of strings.
class GgufStrings {
 public:
  // REQUIRES: value.is_array && value.type == kString.
  explicit GgufStrings(const GgufValue& value) : rest_(value.bytes), left_(value.count) {}
  bool next(std::string_view* text);  // false at the end

 private:
  std::string_view rest_;
  uint64_t left_;
};

}  // namespace llmb
