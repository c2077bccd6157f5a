#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "formats/json_scanner.h"
#include "formats/safetensors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

std::string file_bytes(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  return bytes + header + std::string(data_bytes, 'x');
}

Result<std::vector<TensorEntry>> parse(const std::string& bytes) {
  return parse_safetensors({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

// The message of a refusal; "" where the bytes were accepted.
std::string refusal(const std::string& bytes) { return parse(bytes).status().message(); }
std::string refusal(const std::string& header, size_t data_bytes) { return refusal(file_bytes(header, data_bytes)); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("a well-formed file opens: metadata, padding, scalars, empty tensors, any order of names") {
  const auto entries = parse(file_bytes(R"({"__metadata__":{"format":"pt","x\"\u00e9\ud83d\ude00":""},
      "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},
      "empty":{"shape":[0,5],"data_offsets":[8,8],"dtype":"F32"},
      "a":{"data_offsets":[0,8],"dtype":"I64","shape":[]}}    )",
                                        20));
  REQUIRE_MESSAGE(entries.ok(), entries.status().message());
  REQUIRE(entries->size() == 3);
  CHECK(entries->at(0).name == "a");
  CHECK(entries->at(0).shape.empty());
  CHECK(entries->at(1).name == "empty");
  CHECK(entries->at(2).name == "b");
  CHECK(entries->at(2).end - entries->at(2).begin == 12);
  CHECK(refusal("{}", 0) == "");
}

TEST_CASE("escapes in names are decoded, and a name is the same however it is spelled") {
  const auto entries =
      parse(file_bytes(R"({"a\u0041\n\u00e9\ud83d\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  REQUIRE(entries.ok());
  CHECK(entries->at(0).name == "aA\n\xc3\xa9\xf0\x9f\x98\x80");
  CHECK(contains(refusal(R"({"A":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},
                             "\u0041":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                         0),
                 "duplicate key \"A\""));
}

TEST_CASE("a damaged header is refused, naming what is wrong") {
  struct Case {
    const char* header;
    size_t data_bytes;
    const char* message;
  };
  const Case cases[] = {
      {"", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {"{", 0, "expected '\"'"},
      {"{}x", 0, "text after the end"},
      {R"({"a":1})", 0, "expected '{'"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "needs dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "duplicate or unknown key \"x\""},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
       "duplicate or unknown key \"dtype\""},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "duplicate key \"a\""},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "duplicate key \"__metadata__\""},
      {R"({"__metadata__":{"a":1}})", 0, "expected '\"'"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype \"F31\""},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8, "are not the 4 bytes of shape [1] F32"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "are not the 8 bytes of shape [2] F32"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "data_offsets [4, 0]"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       12, "leaving a hole after 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "leaving a hole after 0"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12, "overlapping the tensor before, which ends at 8"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       8, "overlapping"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "file is too short"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "1 trailing bytes"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0, "overflows"},
      {R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0]}})", 0, "dimension too large"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,0]}})", 0, "integer too large"},
      {R"({"a":{"dtype":"F32","shape":[0,9223372036854775807,9223372036854775807],"data_offsets":[0,0]}})", 0, ""},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[1,0]}})", 0, "dimension too large"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "expected a non-negative integer"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "expected an integer"},
      {R"({"a":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}})", 4, "expected an integer"},
      {R"({"a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}})", 4, "leading zero"},
      {R"({"a":{"dtype":"F32","shape":[1,],"data_offsets":[0,4]}})", 4, "expected a non-negative integer"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4, "more than 8 dimensions"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "two integers"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4, "more than two"},
      {R"({"a":{"dtype":"F32F32F32F32F32F32","shape":[1],"data_offsets":[0,4]}})", 4, "a string of more than 16 bytes"},
      {R"({"\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "lone surrogate"},
      {"{\"a\nb\":{}}", 0, "control character"},
      {"{\"a\xff\":{}}", 0, "not UTF-8"},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.header));
    const std::string message = refusal(c.header, c.data_bytes);
    CAPTURE(message);
    CHECK((*c.message == '\0' ? message == "" : contains(message, c.message)));
  }
}

TEST_CASE("header lengths at the edges are refused before anything is read") {
  CHECK(contains(refusal(""), "shorter than 8 bytes"));
  CHECK(contains(refusal(std::string(7, '\0')), "shorter than 8 bytes"));
  CHECK(contains(refusal(std::string(8, '\0')), "does not begin"));
  const auto with_length = [](uint64_t length) {
    std::string bytes = file_bytes("{}", 0);
    std::memcpy(bytes.data(), &length, 8);
    return refusal(bytes);
  };
  CHECK(with_length(2) == "");
  CHECK(contains(with_length(3), "past the end"));
  CHECK(contains(with_length(100'000'000), "past the end"));
  CHECK(contains(with_length(100'000'001), "over the limit"));
  CHECK(contains(with_length(UINT64_MAX), "over the limit"));
}

TEST_CASE("a name of more than 512 bytes and deep nesting are refused without holding them") {
  CHECK(contains(refusal("{\"" + std::string(1 << 20, 'n') + "\":{}}", 0), "more than 512 bytes"));
  CHECK(refusal("{\"__metadata__\":{\"a\":\"" + std::string(1 << 20, 'n') + "\"}}", 0) == "");
  CHECK(contains(refusal("{\"a\":" + std::string(1 << 20, '['), 0), "expected '{'"));
  CHECK(contains(parse_safetensors_index("{\"metadata\":" + std::string(1 << 20, '[')).status().message(),
                 "nested too deeply"));
}

TEST_CASE("every truncation is refused; every flipped bit is refused or leaves tensors inside the file") {
  ModelConfig config = tiny_config();
  config.num_hidden_layers = 1;
  config.vocab_size = 3;
  const std::string good = safetensors_bytes(random_tensors(config, 1), DType::kBF16);
  REQUIRE(refusal(good) == "");
  for (size_t size = 0; size < good.size(); size += size < 3000 ? 1 : 97) CHECK(refusal(good.substr(0, size)) != "");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, good.data(), 8);
  for (size_t at = 0; at < 8 + header_bytes; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      const auto entries = parse(bad);
      if (!entries.ok()) continue;
      for (const TensorEntry& e : *entries) CHECK((e.begin <= e.end && e.end <= bad.size()));
    }
}

TEST_CASE("an index names plain shard files, each tensor once") {
  const auto message = [](const std::string& json) { return parse_safetensors_index(json).status().message(); };
  CHECK(message(R"({"metadata":{"total_size":1e9,"x":[null,true,{"y":-1.5}]},"weight_map":{"a":"m.safetensors"}})") ==
        "");
  CHECK(message(R"({"weight_map":{}})") == "");
  CHECK(contains(message(R"({"metadata":{}})"), "no weight_map"));
  for (const char* number : {"0", "-0", "12", "1.5", "-1.25e+10", "1E5", "0e0"}) {
    CAPTURE(std::string(number));
    CHECK(message(std::string(R"({"metadata":{"total_size":)") + number + R"(},"weight_map":{}})") == "");
  }
  for (const char* number : {"", "-", "+1", "01", "1.", ".5", "1e", "1e+", "--1", "1.2.3", "1e5e5", "tru", "NaN"}) {
    CAPTURE(std::string(number));
    CHECK(contains(message(std::string(R"({"metadata":{"total_size":)") + number + R"(},"weight_map":{}})"),
                   "invalid JSON"));
  }
  CHECK(contains(message(R"({"weight_map":{},"weight_map":{}})"), "duplicate key"));
  CHECK(contains(message(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})"), "listed twice"));
  for (const char* path : {"../m.safetensors", "/m.safetensors", "a/m.safetensors", "..", "", ".safetensors", "m.bin",
                           "a\\\\m.safetensors", "m\\u0000.safetensors"}) {
    CAPTURE(std::string(path));
    CHECK(contains(message(std::string(R"({"weight_map":{"a":")") + path + "\"}}"),
                   "not a plain .safetensors file name"));
  }
}

TEST_CASE("a directory opens single or sharded; what does not fit together is refused") {
  const ModelConfig config = tiny_config();
  const TestTensors tensors = random_tensors(config, 1);
  const auto message = [](const TempDir& dir) { return Checkpoint::open(dir.path()).status().message(); };
  {
    const TempDir dir;
    CHECK(Checkpoint::open(dir.path()).status().code() == StatusCode::kNotFound);
    write_file(dir / "pytorch_model.bin", "x");
    CHECK(contains(message(dir), "pickle is not supported; convert to safetensors"));
    CHECK(Checkpoint::open(dir.path()).status().code() == StatusCode::kUnsupported);
    write_model(dir.path(), config, tensors);
    CHECK(message(dir) == "");
    write_file(dir / "model.safetensors", "");
    CHECK(contains(message(dir), "model.safetensors: not a safetensors file"));
  }
  const TempDir dir;
  write_model(dir.path(), config, tensors, 3);
  const auto checkpoint = Checkpoint::open(dir.path());
  REQUIRE_MESSAGE(checkpoint.ok(), checkpoint.status().message());
  CHECK(checkpoint->num_tensors() == tensors.size());
  const std::string index = read_file(dir / "model.safetensors.index.json"),
                    shard = read_file(dir / "model-2.safetensors");
  std::string edited = index;
  edited.replace(edited.find("lm_head.weight"), 7, "lm_HEAD");
  write_file(dir / "model.safetensors.index.json", edited);
  CHECK(contains(message(dir), "tensor \"lm_HEAD.weight\" is not in model-"));
  write_file(dir / "model.safetensors.index.json", index);
  write_file(dir / "model-2.safetensors", read_file(dir / "model-1.safetensors"));
  CHECK(contains(message(dir), "is both in model-"));
  std::filesystem::remove(dir / "model-2.safetensors");
  CHECK(contains(message(dir), "model-2.safetensors: cannot open"));
  write_file(dir / "model-2.safetensors", shard);
  CHECK(message(dir) == "");
}

TEST_CASE("a tensor is given out only with the shape and a dtype that were asked for, byte for byte") {
  const TempDir dir;
  write_file(dir / "model.safetensors", file_bytes(R"({"m":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},
                            "i":{"dtype":"I64","shape":[1],"data_offsets":[12,20]}})",
                                                   20));
  const auto checkpoint = Checkpoint::open(dir.path());
  REQUIRE(checkpoint.ok());
  const auto view = checkpoint->tensor("m", std::array<int64_t, 2>{2, 3});
  REQUIRE(view.ok());
  CHECK(view->rows == 2);
  CHECK(view->cols == 3);
  CHECK(view->dtype == DType::kF16);
  CHECK(std::memcmp(view->data, "xxxxxxxxxxxx", 12) == 0);
  CHECK(checkpoint->tensor("m", std::array<int64_t, 2>{3, 2}).status().message() ==
        "model.safetensors: tensor \"m\" has shape [2, 3], expected [3, 2]");
  CHECK_FALSE(checkpoint->tensor("m", std::array<int64_t, 1>{6}).ok());
  CHECK(contains(checkpoint->tensor("i", std::array<int64_t, 1>{1}).status().message(), "has dtype I64, expected F32"));
  CHECK(contains(checkpoint->tensor("q", std::array<int64_t, 1>{1}).status().message(), "tensor \"q\" is missing"));
}

}  // namespace
}  // namespace llmb::test
