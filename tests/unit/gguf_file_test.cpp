// The GGUF container: what is read from a good file, and that bad ones are refused, each for its own reason.
#include "formats/gguf_file.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/bounded.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace {

std::span<const uint8_t> span_of(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

Status status_of(const std::string& bytes) { return GgufFile::parse(span_of(bytes)).status(); }

void check_refused(const std::string& bytes, const std::string& part) {
  const Status status = status_of(bytes);
  CAPTURE(part);
  CHECK(!status.ok());
  CHECK_MESSAGE(status.message().find(part) != std::string::npos, status.message());
}

GgufWriter small() {
  GgufWriter w;
  w.text("general.architecture", "none");
  w.u32("n", 7);
  w.texts("words", {"a", "", "ccc"});
  w.ints("numbers", {1, -2, 3});
  w.f32_tensor("t", {2, 3}, {1, 2, 3, 4, 5, 6});
  w.f32_tensor("v", {1}, {9});
  return w;
}

}  // namespace

TEST_CASE("values of every type, arrays, and tensors with rows before columns") {
  GgufWriter w = small();
  w.entry("u8", 0, GgufWriter::raw(uint8_t{200}));
  w.entry("i8", 1, GgufWriter::raw(int8_t{-5}));
  w.entry("u16", 2, GgufWriter::raw(uint16_t{60000}));
  w.entry("i16", 3, GgufWriter::raw(int16_t{-300}));
  w.entry("i32", 5, GgufWriter::raw(int32_t{-70000}));
  w.f32("f32", 1.5f);
  w.boolean("yes", true);
  w.entry("u64", 10, GgufWriter::raw(~uint64_t{0}));
  w.entry("i64", 11, GgufWriter::raw(int64_t{-1} << 40));
  w.entry("f64", 12, GgufWriter::raw(0.1));
  for (const uint32_t version : {2u, 3u}) {
    std::string bytes = w.bytes();
    bytes[4] = static_cast<char>(version);
    const auto file = GgufFile::parse(span_of(bytes));
    REQUIRE_MESSAGE(file.ok(), file.status().message());
    CHECK(file->text("general.architecture") == "none");
    CHECK(file->integer("n") == 7);
    CHECK(file->number("n") == 7.0);
    CHECK(file->integer("u8") == 200);
    CHECK(file->integer("i8") == -5);
    CHECK(file->integer("u16") == 60000);
    CHECK(file->integer("i16") == -300);
    CHECK(file->integer("i32") == -70000);
    CHECK(file->integer("u64") == INT64_MAX);
    CHECK(file->integer("i64") == int64_t{-1} << 40);
    CHECK(file->number("f32") == 1.5);
    CHECK(file->number("f64") == 0.1);
    CHECK(file->boolean("yes") == true);
    // Another type is as good as none.
    CHECK_FALSE(file->integer("f32").has_value());
    CHECK_FALSE(file->integer("yes").has_value());
    CHECK_FALSE(file->text("n").has_value());
    CHECK_FALSE(file->boolean("n").has_value());
    CHECK_FALSE(file->number("numbers").has_value());
    CHECK_FALSE(file->integer("nothing").has_value());

    const GgufValue* numbers = file->find("numbers");
    REQUIRE(numbers != nullptr);
    CHECK(numbers->count == 3);
    CHECK(gguf_integer(*numbers, 1) == -2);
    std::vector<std::string> words;
    GgufStrings strings(*file->find("words"));
    for (std::string_view word; strings.next(&word);) words.emplace_back(word);
    CHECK(words == std::vector<std::string>{"a", "", "ccc"});

    REQUIRE(file->tensors().size() == 2);
    const GgufTensor* tensor = file->tensor("t");
    REQUIRE(tensor != nullptr);
    CHECK(tensor->shape == std::vector<int64_t>{2, 3});
    CHECK(std::string(tensor->type->name) == "F32");
    CHECK(tensor->data.size() == 24);
    float last = 0;
    std::memcpy(&last, tensor->data.data() + 20, 4);
    CHECK(last == 6);
    CHECK(file->tensor("none") == nullptr);
  }
}

TEST_CASE("a file that is cut anywhere in its header is refused, and in its data too") {
  const std::string bytes = small().bytes();
  REQUIRE(status_of(bytes).ok());
  int num_refused = 0;
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    const Status status = status_of(std::string(cut));
    num_refused += !status.ok();
    if (status.ok()) CHECK(size >= bytes.size() - 28);  // only the padding behind the last tensor may be missing
  }
  CHECK(num_refused > 300);
  CHECK(status_of(bytes + std::string(100, 'x')).ok());
}

TEST_CASE("magic and version") {
  check_refused("", "not a GGUF file");
  check_refused("GGU", "not a GGUF file");
  check_refused("{\"a\":1}", "not a GGUF file");
  std::string bytes = small().bytes();
  bytes[4] = 1;
  check_refused(bytes, "version 1");
  bytes[4] = 4;
  check_refused(bytes, "version 4");
  bytes[4] = 0;
  bytes[7] = 3;
  check_refused(bytes, "big-endian");
}

TEST_CASE("counts and lengths that no file can have") {
  const auto with = [](size_t at, uint64_t value) {
    std::string bytes = small().bytes();
    std::memcpy(bytes.data() + at, &value, 8);
    return bytes;
  };
  check_refused(with(8, ~uint64_t{0}), "tensors are over the limit");
  check_refused(with(8, 65537), "tensors are over the limit");
  check_refused(with(8, 65536), "");
  check_refused(with(16, ~uint64_t{0}), "keys are over the limit");
  check_refused(with(16, 65537), "keys are over the limit");
  check_refused(with(24, ~uint64_t{0}), "the file ends inside the header");
  check_refused(with(24, 0), "name of a key has 0 bytes");
  check_refused(with(24, 600), "");

  const std::string huge = GgufWriter::raw(~uint64_t{0});
  for (const uint64_t count : {~uint64_t{0}, ~uint64_t{0} / 8, ~uint64_t{0} / 8 + 2, uint64_t{1} << 61, uint64_t{100}})
    for (const uint32_t type : {0u, 4u, 8u, 12u}) {
      GgufWriter w;
      w.entry("a", 9, GgufWriter::raw(type) + GgufWriter::raw(count));
      check_refused(w.bytes(), "the file ends inside the header");
    }
  GgufWriter w;
  w.entry("a", 8, huge + "x");
  check_refused(w.bytes(), "key \"a\": the file ends inside the header");
  w = GgufWriter();
  w.entry("a", 9, GgufWriter::raw(uint32_t{8}) + GgufWriter::raw(uint64_t{1}) + huge);
  check_refused(w.bytes(), "the file ends inside the header");
}

TEST_CASE("keys: types, duplicates, names") {
  GgufWriter w;
  w.entry("a", 13, "");
  check_refused(w.bytes(), "value type 13");
  w = GgufWriter();
  w.entry("a", 9, GgufWriter::raw(uint32_t{9}) + GgufWriter::raw(uint64_t{1}));
  check_refused(w.bytes(), "array of arrays");
  w = GgufWriter();
  w.u32("a", 1);
  w.u32("a", 1);
  check_refused(w.bytes(), "key \"a\" is given twice");
  w = GgufWriter();
  w.u32(std::string(513, 'k'), 1);
  check_refused(w.bytes(), "has 513 bytes");
  w = GgufWriter();
  w.u32(std::string(512, 'k'), 1);
  CHECK(status_of(w.bytes()).ok());
  w = GgufWriter();
  w.u32("\xff", 1);
  check_refused(w.bytes(), "not UTF-8");
}

TEST_CASE("tensors: types, shapes, names, sizes that overflow") {
  const auto one = [](const std::vector<int64_t>& shape, uint32_t type, size_t bytes) {
    GgufWriter w;
    w.tensor("t", shape, type, std::string(bytes, '\0'));
    return w.bytes();
  };
  CHECK(status_of(one({4}, 0, 16)).ok());
  CHECK(status_of(one({1, 1, 2, 4}, 0, 32)).ok());
  CHECK(status_of(one({3, 512}, 12, 3 * 2 * 144)).ok());
  CHECK(status_of(one({3, 64}, 8, 3 * 2 * 34)).ok());
  check_refused(one({}, 0, 0), "0 dimensions");
  check_refused(one({1, 1, 1, 1, 1}, 0, 4), "5 dimensions");
  check_refused(one({0}, 0, 0), "a dimension of 0");
  check_refused(one({-1}, 0, 0), "a dimension of");
  check_refused(one({4}, 4, 16), "tensor type 4 is not known");
  check_refused(one({4}, 4000000000u, 16), "tensor type 4000000000 is not known");
  check_refused(one({3, 255}, 12, 1000), "not whole blocks of 256");
  check_refused(one({3, 33}, 2, 1000), "not whole blocks of 32");
  check_refused(one({INT64_MAX, INT64_MAX}, 0, 16), "overflows");
  check_refused(one({int64_t{1} << 62, 4}, 0, 16), "overflows");
  check_refused(one({1, int64_t{1} << 60}, 0, 16), "past the end");
  check_refused(one({5, 32}, 0, 64), "past the end");
  GgufWriter w;
  w.f32_tensor("t", {1}, {1});
  w.f32_tensor("t", {1}, {1});
  check_refused(w.bytes(), "tensor \"t\" is given twice");
  w = GgufWriter();
  w.f32_tensor("", {1}, {1});
  check_refused(w.bytes(), "name of a tensor has 0 bytes");
}

TEST_CASE("tensors: alignment, overlaps, holes, offsets past the end") {
  GgufWriter w;
  w.f32_tensor("a", {8}, std::vector<float>(8));
  w.f32_tensor("b", {8}, std::vector<float>(8));
  const std::string good = w.bytes();
  const size_t b_offset = good.find("b\x01") + 1 + 4 + 8 + 4;
  const auto with_offset = [&](uint64_t offset) {
    std::string bytes = good;
    std::memcpy(bytes.data() + b_offset, &offset, 8);
    return bytes;
  };
  CHECK(status_of(with_offset(32)).ok());
  check_refused(with_offset(0), "overlapping");
  check_refused(with_offset(64), "leaving a hole");
  check_refused(with_offset(33), "not a multiple of 32");
  check_refused(with_offset(~uint64_t{31}), "leaving a hole");

  for (const uint32_t alignment : {0u, 3u, 48u, 1u << 21}) {
    GgufWriter bad;
    bad.u32("general.alignment", alignment);
    check_refused(bad.bytes(), "general.alignment");
  }
  GgufWriter text;
  text.text("general.alignment", "32");
  check_refused(text.bytes(), "general.alignment");
  for (const uint32_t alignment : {1u, 8u, 64u, 4096u}) {
    GgufWriter other;
    other.alignment = alignment;
    other.u32("general.alignment", alignment);
    other.f32_tensor("a", {3}, {1, 2, 3});
    other.f32_tensor("b", {3}, {4, 5, 6});
    const std::string bytes = other.bytes();
    const auto file = GgufFile::parse(span_of(bytes));
    REQUIRE_MESSAGE(file.ok(), file.status().message());
    float first = 0;
    std::memcpy(&first, file->tensor("b")->data.data(), 4);
    CHECK(first == 4);
  }
}

TEST_CASE("a header full of the smallest things takes bounded time and memory") {
  GgufWriter keys;
  for (int i = 0; i < 65536; ++i) keys.u32("k" + std::to_string(i), 1);
  GgufWriter tensors;
  for (int i = 0; i < 65536; ++i) tensors.tensor("t" + std::to_string(i), {1, 1, 1, 1}, 0, std::string(4, 'x'));
  GgufWriter strings;  // 100 MiB of empty strings
  strings.entry(
      "a", 9,
      GgufWriter::raw(uint32_t{8}) + GgufWriter::raw(uint64_t{13} << 20) + std::string(size_t{104} << 20, '\0'));
  const TempDir dir;
  for (const GgufWriter* writer : {&keys, &tensors, &strings}) {
    const std::string bytes = writer->bytes();
    write_file(dir / "x.gguf", bytes);
    const BoundedRun run = run_bounded([&] { return GgufFile::open(dir / "x.gguf").ok() ? 10 : 11; });
    CHECK(run.exit_code == 10);
    if (memory_figures_count()) CHECK(run.peak_mebibytes <= 64 + static_cast<double>(bytes.size()) / (1 << 20));
  }
  // Over the header's limit: a sparse file of a gigabyte of zeros that claims one long string after the other.
  GgufWriter endless;
  endless.entry("a", 8, GgufWriter::raw(uint64_t{1} << 29));
  write_file(dir / "y.gguf", endless.bytes());
  std::filesystem::resize_file(dir / "y.gguf", uint64_t{1} << 30);
  const auto refused = GgufFile::open(dir / "y.gguf");
  REQUIRE(!refused.ok());
  CHECK(refused.status().message().find("over the limit of 256 MiB") != std::string::npos);
}

}  // namespace llmb::test
