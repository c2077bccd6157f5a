// GGUF files from values and tensors, good ones and, where a test asks for it, bad ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace llmb::test {

// Value types and tensor types are the format's numbers.
class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  void text(const std::string& key, const std::string& value) { entry(key, 8, string_bytes(value)); }
  void u32(const std::string& key, uint32_t value) { entry(key, 4, raw(value)); }
  void f32(const std::string& key, float value) { entry(key, 6, raw(value)); }
  void boolean(const std::string& key, bool value) { entry(key, 7, raw(static_cast<uint8_t>(value))); }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes;
    for (const std::string& value : values) bytes += string_bytes(value);
    entry(key, 9, raw(uint32_t{8}) + raw(static_cast<uint64_t>(values.size())) + bytes);
  }
  void ints(const std::string& key, const std::vector<int32_t>& values) { array(key, 5, values); }
  void floats(const std::string& key, const std::vector<float>& values) { array(key, 6, values); }
  // Any value as it would stand in the file.
  void entry(const std::string& key, uint32_t type, const std::string& bytes) {
    entries_ += string_bytes(key) + raw(type) + bytes;
    ++num_entries_;
  }

  // `shape` is rows before columns.
  void tensor(const std::string& name, const std::vector<int64_t>& shape, uint32_t type, const std::string& bytes) {
    tensors_.push_back({name, shape, type, bytes});
  }
  void f32_tensor(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
    tensor(name, shape, 0, {reinterpret_cast<const char*>(values.data()), values.size() * 4});
  }

  uint64_t alignment = 32;  // what tensors are placed by; "general.alignment" is the caller's

  std::string bytes() const {
    std::string out =
                    "GGUF" + raw(version_) + raw(static_cast<uint64_t>(tensors_.size())) + raw(num_entries_) + entries_,
                data;
    for (const Tensor& t : tensors_) {
      out += string_bytes(t.name) + raw(static_cast<uint32_t>(t.shape.size()));
      for (size_t i = t.shape.size(); i-- > 0;) out += raw(static_cast<uint64_t>(t.shape[i]));
      out += raw(t.type) + raw(static_cast<uint64_t>(data.size()));
      data += t.bytes;
      data.resize((data.size() + alignment - 1) / alignment * alignment);
    }
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }

  template <typename T>
  static std::string raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static std::string string_bytes(const std::string& text) { return raw(static_cast<uint64_t>(text.size())) + text; }

 private:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    uint32_t type;
    std::string bytes;
  };
  template <typename T>
  void array(const std::string& key, uint32_t type, const std::vector<T>& values) {
    std::string bytes;
    for (const T value : values) bytes += raw(value);
    entry(key, 9, raw(type) + raw(static_cast<uint64_t>(values.size())) + bytes);
  }

  uint32_t version_;
  std::string entries_;
  uint64_t num_entries_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace llmb::test
