// Models in several GGUF files: which they are, and that files that do not belong together are refused.
#include <doctest/doctest.h>

#include <filesystem>

#include "formats/gguf_file.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace {

std::string name_of(int index, int count = 3) {
  char name[64];
  std::snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", index, count);
  return name;
}

GgufWriter part(uint16_t index, uint16_t count = 3) {
  GgufWriter w;
  w.entry("split.no", 2, GgufWriter::raw(index));
  w.entry("split.count", 2, GgufWriter::raw(count));
  w.u32("n", 10u + index);
  w.f32_tensor("t" + std::to_string(index), {1}, {static_cast<float>(index)});
  return w;
}

void write_parts(const TempDir& dir) {
  for (int i = 0; i < 3; ++i) write_file(dir / name_of(i + 1), part(static_cast<uint16_t>(i)).bytes());
}

void check_refused(const std::string& path, const std::string& message) {
  const auto file = GgufFile::open(path);
  REQUIRE(!file.ok());
  CHECK_MESSAGE(file.status().message().find(message) != std::string::npos, file.status().message());
}

}  // namespace

TEST_CASE("parts are named by their number and how many there are") {
  const std::vector<std::string> all = {"d/m-00001-of-00003.gguf", "d/m-00002-of-00003.gguf",
                                        "d/m-00003-of-00003.gguf"};
  for (const std::string& name : all) CHECK(gguf_parts(name) == all);
  for (const std::string name :
       {"m.gguf", "m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-00001-of-00001.gguf", "m-0001-of-0003.gguf",
        "m-00001-of-0000x.gguf", "m_00001-of-00003.gguf", "m-00001_of_00003.gguf", "-00001-of-00003.gguf", "",
        "m-00001-of-00003.safetensors", "m-+0001-of-00003.gguf"}) {
    CAPTURE(name);
    CHECK(gguf_parts(name) == std::vector<std::string>{name});
  }
  CHECK(gguf_parts("m-00001-of-99999.gguf").size() == 99999);
}

TEST_CASE("all parts are one file, with the first one's values, whichever is opened") {
  const TempDir dir;
  write_parts(dir);
  for (int i = 1; i <= 3; ++i) {
    const auto file = GgufFile::open(dir / name_of(i));
    REQUIRE_MESSAGE(file.ok(), file.status().message());
    CHECK(file->integer("n") == 10);
    REQUIRE(file->tensors().size() == 3);
    for (int t = 0; t < 3; ++t) {
      const GgufTensor* tensor = file->tensor("t" + std::to_string(t));
      REQUIRE(tensor != nullptr);
      float value = -1;
      std::memcpy(&value, tensor->data.data(), 4);
      CHECK(value == static_cast<float>(t));
    }
  }
}

TEST_CASE("files that are missing, misnamed, of other models, or hold a tensor twice are refused by name") {
  const TempDir dir;
  write_parts(dir);
  std::filesystem::remove(dir / name_of(2));
  check_refused(dir / name_of(1), name_of(2) + " is missing: the model is in 3 files");
  write_file(dir / name_of(2), part(2).bytes());
  check_refused(dir / name_of(1), name_of(2) + ": says that it is file 2 of 3, counted from 0, expected 1 of 3");
  write_file(dir / name_of(2), part(1, 4).bytes());
  check_refused(dir / name_of(1), "says that it is file 1 of 4");
  GgufWriter twice = part(1);
  twice.f32_tensor("t0", {1}, {5});
  write_file(dir / name_of(2), twice.bytes());
  check_refused(dir / name_of(1), name_of(2) + ": tensor \"t0\" is also in an earlier file");
  write_file(dir / name_of(2), "GGUF");
  check_refused(dir / name_of(1), name_of(2) + ": the file ends inside the header");
  std::filesystem::remove(dir / name_of(1));
  check_refused(dir / name_of(3), name_of(1) + " is missing");

  write_file(dir / "renamed.gguf", part(0).bytes());
  check_refused(dir / "renamed.gguf", "-00001-of-00003.gguf; give them back their names, or merge them");
  GgufWriter counted = part(0, 2);
  counted.u32("split.tensors.count", 3);
  write_file(dir / name_of(1, 2), counted.bytes());
  write_file(dir / name_of(2, 2), part(1, 2).bytes());
  check_refused(dir / name_of(1, 2), "the files have 2 tensors, expected 3");
  // Named like a part, and whole.
  GgufWriter whole;
  whole.u32("n", 1);
  write_file(dir / "w-00001-of-00002.gguf", whole.bytes());
  CHECK(GgufFile::open(dir / "w-00001-of-00002.gguf").ok());
}

}  // namespace llmb::test
