// Safetensors files with tensors of any dtype, from bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace llmb::test {

struct RawTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::string raw_safetensors(const std::vector<RawTensor>& tensors) {
  std::string header = "{", data;
  for (const RawTensor& t : tensors) {
    std::string shape;
    for (const int64_t dimension : t.shape) shape += (shape.empty() ? "" : ",") + std::to_string(dimension);
    header += (data.empty() && header == "{" ? "\"" : ",\"") + t.name + R"(":{"dtype":")" + t.dtype + R"(","shape":[)" +
              shape + R"(],"data_offsets":[)" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.bytes.size()) + "]}";
    data += t.bytes;
  }
  header += "}";
  const uint64_t size = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &size, 8);
  return out + header + data;
}

}  // namespace llmb::test
