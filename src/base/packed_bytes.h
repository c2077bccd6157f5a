// Values as bytes, one behind the other: no two different rows of values of the same types have the same bytes, and
// PackedReader gives the values back.
//
// A struct is packed by a function each_member(value, f) beside it, which calls f for each of its members in turn; one
// function serves both directions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"

namespace llmb {

template <typename T>
concept PlainValue = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class PackedBytes {
 public:
  template <PlainValue T>
  void add(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(std::string_view text) {
    add_size(text.size());
    bytes_ += text;
  }
  void add(const std::string& text) { add(std::string_view(text)); }
  template <typename A, typename B>
  void add(const std::pair<A, B>& pair) {
    add(pair.first);
    add(pair.second);
  }
  template <typename T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add_size(values.size());
    if constexpr (std::is_arithmetic_v<T>)
      bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    else
      for (const T& value : values) add(value);
  }
  template <typename T>
    requires requires(T& value) { each_member(value, [](auto&) {}); }
  void add(const T& value) {
    each_member(const_cast<T&>(value), [this](const auto& member) { this->add(member); });
  }

  const std::string& bytes() const { return bytes_; }

 private:
  void add_size(size_t size) {
    LLMB_CHECK(size <= UINT32_MAX);
    add(static_cast<uint32_t>(size));
  }

  std::string bytes_;
};

// REQUIRES: the bytes are those of PackedBytes, read in the same types
class PackedReader {
 public:
  explicit PackedReader(std::string_view bytes) : bytes_(bytes) {}

  template <PlainValue T>
  void read(T& value) {
    std::memcpy(&value, take(sizeof value), sizeof value);
  }
  void read(std::string& text) {
    const size_t size = read_size();
    text.assign(take(size), size);
  }
  template <typename T>
  void read(std::optional<T>& value) {
    bool has_value = false;
    read(has_value);
    value.reset();
    if (has_value) read(value.emplace());
  }
  template <typename A, typename B>
  void read(std::pair<A, B>& pair) {
    read(pair.first);
    read(pair.second);
  }
  template <typename T>
  void read(std::vector<T>& values) {
    values.resize(read_size());
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      const size_t size = values.size() * sizeof(T);
      const char* const from = take(size);
      if (size > 0) std::memcpy(values.data(), from, size);
    } else {
      for (T& value : values) read(value);
    }
  }
  template <typename T>
    requires requires(T& value) { each_member(value, [](auto&) {}); }
  void read(T& value) {
    each_member(value, [this](auto& member) { this->read(member); });
  }

  bool at_end() const { return bytes_.empty(); }

 private:
  const char* take(size_t size) {
    LLMB_CHECK(size <= bytes_.size());
    const char* begin = bytes_.data();
    bytes_.remove_prefix(size);
    return begin;
  }
  size_t read_size() {
    uint32_t size = 0;
    read(size);
    return size;
  }

  std::string_view bytes_;
};

}  // namespace llmb
