// Packed weights kept in a file: what is mapped is what was written, and whatever is wrong with the file, weights are
// the same as without it.
#include "backend/cpu/weight_cache.h"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/content_hash.h"
#include "kernels/cpu/linear.h"
#include "model/config_loader.h"
#include "model/weight_files.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/support/file_changes.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

namespace fs = std::filesystem;

const std::string kKey = "quantization none\nsome files\n";

// In the place of a file that nobody may write to.
void replace_content(const std::string& path, const std::string& content) {
  fs::remove(path);
  write_file(path, content);
}

std::vector<std::string> some_sections() {
  std::vector<std::string> sections;
  for (const size_t size : {1, 63, 64, 65, 1 << 20, (1 << 20) + 1, 300'000}) {
    std::string& section = sections.emplace_back(size, '\0');
    for (size_t i = 0; i < size; ++i) section[i] = static_cast<char>(i * 31 + i / 251 + size);
  }
  return sections;
}

Status write(const std::string& path, const std::vector<std::string>& sections, FileOps& ops = real_file_ops()) {
  std::vector<std::span<const uint8_t>> spans;
  for (const std::string& s : sections) spans.emplace_back(reinterpret_cast<const uint8_t*>(s.data()), s.size());
  return write_weight_cache(path, kKey, spans, ops);
}

bool holds(CachedWeights& weights, const std::vector<std::string>& sections) {
  for (const std::string& section : sections) {
    const uint8_t* at = weights.take(static_cast<int64_t>(section.size()));
    if (at == nullptr || reinterpret_cast<uintptr_t>(at) % 64 != 0) return false;
    if (std::memcmp(at, section.data(), section.size()) != 0) return false;
  }
  return weights.is_used_up();
}

StatusCode code_of_open(const std::string& path, ThreadPool& pool) {
  return CachedWeights::open(path, kKey, pool).status().code();
}

}  // namespace

TEST_CASE("what was written is read, section by section, and no more than that") {
  ThreadPool pool(2);
  const TempDir dir;
  const std::string path = dir / "a/b/w.packed";  // directories are made
  const auto sections = some_sections();
  CHECK(code_of_open(path, pool) == StatusCode::kNotFound);
  REQUIRE(write(path, sections).ok());
  CHECK(!fs::exists(path + ".tmp"));
  auto weights = CachedWeights::open(path, kKey, pool);
  REQUIRE(weights.ok());
  CHECK(holds(*weights, sections));
  CHECK(weights->take(1) == nullptr);
  CHECK(!weights->is_used_up());
  auto again = CachedWeights::open(path, kKey, pool);
  REQUIRE(again.ok());
  CHECK(!again->is_used_up());
  CHECK(again->take(INT64_MAX) == nullptr);
  CHECK(again->take(1) == nullptr);
  CHECK(CachedWeights::open(path, kKey + "x", pool).status().code() == StatusCode::kNotFound);
  CHECK(CachedWeights::open(path, "q" + kKey.substr(1, kKey.size() - 2) + "!", pool).status().code() ==
        StatusCode::kNotFound);
  REQUIRE(write(dir / "none", {}).ok());
  auto none = CachedWeights::open(dir / "none", kKey, pool);
  REQUIRE(none.ok());
  CHECK(none->is_used_up());
}

TEST_CASE("a file that was cut, lengthened, or changed by a bit anywhere is refused") {
  ThreadPool pool(2);
  const TempDir dir;
  const std::string path = dir / "w";
  REQUIRE(write(path, {std::string(100, 'a'), std::string((1 << 20) + 7, 'b')}).ok());
  const std::string good = read_file(path);
  std::vector<size_t> places;
  for (size_t i = 0; i < 200; ++i) places.push_back(i);  // the header, and zeros after it
  for (size_t i = 4096; i < good.size(); i += 40'009) places.push_back(i);
  places.push_back(good.size() - 1);
  for (const size_t size : places) {
    CAPTURE(size);
    replace_content(path, good.substr(0, size));
    CHECK(code_of_open(path, pool) != StatusCode::kOk);
  }
  replace_content(path, good + '\0');
  CHECK(code_of_open(path, pool) == StatusCode::kDataLoss);
  const size_t header_end = 24 + kKey.size() + 2 * 8 + 8;
  for (const size_t place : places) {
    if (place >= header_end && place < 4096) continue;  // nobody looks at what lies between
    CAPTURE(place);
    for (const int bit : {0, 7}) {
      std::string bad = good;
      bad[place] = static_cast<char>(bad[place] ^ (1 << bit));
      replace_content(path, bad);
      CHECK(code_of_open(path, pool) != StatusCode::kOk);
    }
  }
  // Sizes that a forger chose, with a hash that fits.
  for (const uint64_t payload :
       {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 62, ~uint64_t{0}, ~uint64_t{0} - 4095}) {
    CAPTURE(payload);
    std::string bad = good;
    std::memcpy(bad.data() + 16, &payload, 8);
    const uint64_t hash = content_hash(bad.substr(0, header_end - 8));
    std::memcpy(bad.data() + header_end - 8, &hash, 8);
    replace_content(path, bad);
    CHECK(code_of_open(path, pool) == StatusCode::kDataLoss);
  }
  fs::remove(path);
  fs::create_directory(path);
  CHECK(code_of_open(path, pool) == StatusCode::kIoError);
}

TEST_CASE("FAULTS 42: what is mapped does not change unnoticed, however it is written to; what is copied does not change") {
  ThreadPool pool(2);
  const TempDir dir;
  const std::string path = dir / "w", other = dir / "other";
  const auto sections = some_sections();
  const auto open_after_rest = [&] {
    fs::remove(path);
    REQUIRE(write(path, sections).ok());
    let_rest(path);
    auto weights = CachedWeights::open(path, kKey, pool);
    REQUIRE(weights.ok());
    CHECK(weights->is_mapped() == (change_times_at(path) == ChangeTimes::kAtOnce));
    CHECK(holds(*weights, sections));
    CHECK(weights->check(pool).ok());
    return std::move(*weights);
  };
  // The same bytes again, in a file of the name's own, or under other modes.
  const std::function<void()> harmless[] = {
      [&] { ::chmod(path.c_str(), 0640); },
      [&] { REQUIRE(write(path, {"another model's"}).ok()); },
      [&] { fs::remove(path); },
      [&] { fs::rename(path, other); },
  };
  for (size_t i = 0; i < std::size(harmless); ++i) {
    CAPTURE(i);
    CachedWeights weights = open_after_rest();
    harmless[i]();
    const Status status = weights.check(pool);
    CHECK_MESSAGE(status.ok(), status.message());
    CHECK(weights.check(pool).ok());
  }
  const std::function<void()> harmful[] = {
      [&] { flip_byte(path, 1'000'000); },        [&] { flip_byte_unseen(path, 1'000'000); },
      [&] { flip_byte_mapped(path, 1'000'000); }, [&] { cut_file(path, 0); },
      [&] { cut_file(path, 1'000'000); },         [&] { write_file(path, std::string(3'000'000, 'x')); },
  };
  for (size_t i = 0; i < std::size(harmful); ++i) {
    CAPTURE(i);
    CachedWeights weights = open_after_rest();
    ::chmod(path.c_str(), 0644);
    CHECK(weights.check(pool).ok());
    harmful[i]();
    const Status status = weights.check(pool);
    CHECK(status.ok() == !weights.is_mapped());
    if (status.ok()) continue;
    CHECK(status.code() == StatusCode::kDataLoss);
    CHECK(status.message().starts_with(path + ": "));
    CHECK_FALSE(weights.check(pool).ok());
  }
}

TEST_CASE("a file that is written a moment ago is copied, and one that nobody may write to is made") {
  ThreadPool pool(2);
  const TempDir dir;
  const std::string path = dir / "w";
  const auto sections = some_sections();
  REQUIRE(write(path, sections).ok());
  CHECK((fs::status(path).permissions() & fs::perms(0222)) == fs::perms::none);
  fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);  // its times are those of this moment
  struct stat st {};
  auto weights = CachedWeights::open(path, kKey, pool);
  REQUIRE(weights.ok());
  REQUIRE(stat(path.c_str(), &st) == 0);
  if (!is_young(identity_of(st), ChangeTimes::kAtOnce)) return;  // a machine that is too slow to tell
  CHECK_FALSE(weights->is_mapped());
  CHECK(holds(*weights, sections));
  for (size_t at = 4096; at < fs::file_size(path); at += 10'000) flip_byte(path, at);
  CHECK(weights->check(pool).ok());
  CHECK(code_of_open(path, pool) == StatusCode::kDataLoss);
}

TEST_CASE("whichever file call fails while the file is written, the old one stays and nothing else is left") {
  ThreadPool pool(1);
  const TempDir dir;
  const std::string path = dir / "w";
  const std::vector<std::string> before = {"before"}, after = {std::string(3 << 20, 'x'), "after"};
  for (const FileCall call : {FileCall::kOpen, FileCall::kFlock, FileCall::kFtruncate, FileCall::kWrite,
                              FileCall::kFsync, FileCall::kRename}) {
    for (const int64_t at : {1, 2}) {
      CAPTURE(static_cast<int>(call));
      CAPTURE(at);
      REQUIRE(write(path, before).ok());
      FaultyFileOps ops;
      ops.faults = {{call, at, ENOSPC, true}};
      const Status status = write(path, after, ops);
      const bool has_failed = ops.count(call) >= at;
      CHECK(status.ok() != has_failed);
      // Without its lock the file may be another's.
      CHECK(fs::exists(path + ".tmp") == (has_failed && call == FileCall::kFlock));
      auto weights = CachedWeights::open(path, kKey, pool);
      REQUIRE(weights.ok());
      // Only to sync the directory comes after the renaming.
      const bool is_renamed =
          !has_failed || (call == FileCall::kFsync && at == 2) || (call == FileCall::kOpen && at == 2);
      CHECK(holds(*weights, is_renamed ? after : before));
      fs::remove(path + ".tmp");
    }
  }
  FaultyFileOps full;
  full.disk_bytes = 1 << 20;
  REQUIRE(write(path, before).ok());
  CHECK(!write(path, after, full).ok());
  CHECK(fs::file_size(path) < 10'000);
  CHECK(!fs::exists(path + ".tmp"));
  FaultyFileOps slow;
  slow.max_io_bytes = 1000;
  slow.num_interrupts = 2;
  CHECK(write(path, after, slow).ok());
  auto weights = CachedWeights::open(path, kKey, pool);
  REQUIRE(weights.ok());
  CHECK(holds(*weights, after));
}

TEST_CASE("where two processes would write the file, one does, and what a killed one left is used again") {
  ThreadPool pool(1);
  const TempDir dir;
  const std::string path = dir / "w";
  write_file(path + ".tmp", std::string(10'000, 'z'));  // left behind
  {
    const int fd = real_file_ops().open((path + ".tmp").c_str(), O_RDWR, 0);
    REQUIRE(real_file_ops().flock(fd, LOCK_EX) == 0);
    CHECK(write(path, {"mine"}).ok());
    CHECK(!fs::exists(path));
    CHECK(fs::file_size(path + ".tmp") == 10'000);
    real_file_ops().close(fd);
  }
  CHECK(write(path, {"mine"}).ok());
  // Another process is done between our opening and our locking: then the name is not ours to write to.
  FaultyFileOps ops;
  ops.before_call = [&, done = false](FileCall call) mutable {
    if (call != FileCall::kFlock || done) return;
    done = true;
    CHECK(write(path, {"theirs"}).ok());
  };
  CHECK(write(path, {"late"}, ops).ok());
  auto weights = CachedWeights::open(path, kKey, pool);
  REQUIRE(weights.ok());
  CHECK(holds(*weights, {"theirs"}));
}

TEST_CASE("the name tells directories and formats apart") {
  CHECK(weight_cache_path("d", "/m/a", Quantization::kNone) != weight_cache_path("d", "/n/a", Quantization::kNone));
  CHECK(weight_cache_path("d", "/m/a", Quantization::kNone) != weight_cache_path("d", "/m/a", Quantization::kInt4));
  CHECK(weight_cache_path("d", "/m/a", Quantization::kNone) ==
        weight_cache_path("d", "/m/x/../a", Quantization::kNone));
  CHECK(weight_cache_path("d", "/m/\n\x1b", Quantization::kInt8).find_first_of("\n\x1b") == std::string::npos);
}

namespace {

// Tokens and log probabilities of a few prompts.
std::vector<Generated> answers(const std::string& model, Quantization quantization, const std::string& cache) {
  const Result<ModelConfig> config = load_model_config(model);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  LoadOptions options;
  options.model_dir = model;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 64;
  options.max_model_len = std::min(64, config->max_position_embeddings);
  options.num_threads = 2;
  options.quantization = quantization;
  options.weight_cache_dir = cache;
  const auto backend = make_cpu_backend();
  const Status status = backend->load(*config, options);
  REQUIRE_MESSAGE(status.ok(), status.message());
  std::vector<GenerateRequest> requests(2);
  for (int i = 0; i < 9; ++i) requests[i % 2].prompt.push_back((7 * i + 1) % config->vocab_size);
  for (GenerateRequest& request : requests) {
    request.num_tokens = 3;
    request.sampling.num_logprobs = 5;
  }
  return generate_one_by_one(*backend, requests, 64);
}

// A tiny model whose files are old enough to be known by their times.
std::string make_model(const TempDir& dir, const std::string& name, uint64_t seed) {
  const std::string model = dir / name;
  fs::create_directory(model);
  write_model(model, tiny_config(), random_tensors(tiny_config(), seed));
  for (const auto& entry : fs::directory_iterator(model)) let_rest(entry.path());
  return model;
}

std::string only_file(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().string());
  REQUIRE(names.size() == 1);
  return names[0];
}

// Another byte of the payload, with hashes that fit.
void forge(const std::string& path, size_t at) {
  std::string bytes = read_file(path);
  uint32_t key_bytes = 0;
  std::memcpy(&key_bytes, bytes.data() + 12, 4);
  const size_t payload = 4096, hashes = 24 + key_bytes;
  REQUIRE(bytes.size() - payload <= 1 << 20);  // one chunk
  bytes[payload + at] = static_cast<char>(bytes[payload + at] ^ 0x40);
  const uint64_t chunk = content_hash(bytes.substr(payload));
  std::memcpy(bytes.data() + hashes, &chunk, 8);
  const uint64_t header = content_hash(bytes.substr(0, hashes + 8));
  std::memcpy(bytes.data() + hashes + 8, &header, 8);
  replace_content(path, bytes);
}

}  // namespace

TEST_CASE("every golden model answers alike, bit for bit, without a file, when it is written and when it is mapped") {
  for (const Quantization quantization : {Quantization::kNone, Quantization::kInt8, Quantization::kInt4}) {
    for (const std::string& model : golden_model_dirs()) {
      CAPTURE(model);
      CAPTURE(std::string(quantization_name(quantization)));
      const TempDir cache;
      const auto expected = answers(model, quantization, "");
      CHECK((answers(model, quantization, cache.path()) == expected));
      const std::string path = only_file(cache.path());
      const auto written = fs::last_write_time(path);
      let_rest(path);  // then it is mapped, where the file system allows it
      CHECK((answers(model, quantization, cache.path()) == expected));
      CHECK(fs::last_write_time(path) == written);
    }
  }
}

TEST_CASE("a file is used, or made anew where it is damaged or of a model that has changed") {
  const TempDir dir;
  const std::string model = make_model(dir, "m", 1), cache = dir / "cache";
  const auto expected = answers(model, Quantization::kNone, "");
  CHECK((answers(model, Quantization::kNone, cache) == expected));
  const std::string path = only_file(cache), good = read_file(path);
  forge(path, 7);  // of the embedding of token 1: the exponent of its first number
  CHECK((answers(model, Quantization::kNone, cache) != expected));  // so this is where weights come from
  for (const std::string& bad : {good.substr(0, good.size() / 2), good.substr(0, 10), std::string(), good + "x"}) {
    replace_content(path, bad);
    CHECK((answers(model, Quantization::kNone, cache) == expected));
    CHECK((read_file(path) == good));
  }
  fs::remove(path);
  fs::create_directory(path);  // cannot be replaced
  CHECK((answers(model, Quantization::kNone, cache) == expected));
  fs::remove(path);
  // Nor can a directory be made where a file is.
  CHECK((answers(model, Quantization::kNone, model + "/config.json") == expected));

  CHECK((answers(model, Quantization::kNone, cache) == expected));
  fs::remove_all(model);
  make_model(dir, "m", 2);
  const auto changed = answers(model, Quantization::kNone, "");
  CHECK((changed != expected));
  CHECK((answers(model, Quantization::kNone, cache) == changed));
  CHECK((read_file(only_file(cache)) != good));  // in the old one's place
  CHECK((answers(model, Quantization::kNone, cache) == changed));

  // As the old one still says that it is, by all that can be said by hand.
  const std::string weights = model + "/model.safetensors";
  flip_byte_unseen(weights, fs::file_size(weights) - 4000 + 2);  // of fp32 numbers the largest bit after the exponent
  let_rest(weights);
  CHECK((answers(model, Quantization::kNone, cache) == answers(model, Quantization::kNone, "")));
}

TEST_CASE("FAULTS 41: weights that are cut short while they are read are refused, and nothing of them is kept") {
  const TempDir dir;
  const std::string model = make_model(dir, "m", 1), path = model + "/model.safetensors";
  const auto config = load_model_config(model);
  const auto files = WeightFiles::open(model, *config);
  REQUIRE(files.ok());
  CHECK(files->still_readable().ok());
  cut_file(path, 0);
  ThreadPool pool(1);
  const auto source = files->make_source(pool);
  const auto embedding = source->tensor("model.embed_tokens.weight", std::array<int64_t, 2>{96, 32});
  REQUIRE(embedding.ok());
  CHECK(static_cast<const float*>(embedding->data)[0] == 0);
  CHECK(files->still_readable().code() == StatusCode::kDataLoss);
  CHECK(files->still_readable().message().starts_with(path + ": "));
}

TEST_CASE("files that fit in everything but what they hold are refused: too few sections, too many, none") {
  const TempDir dir;
  const std::string model = make_model(dir, "m", 1), cache = dir / "cache";
  const auto expected = answers(model, Quantization::kNone, cache);
  const std::string path = only_file(cache), good = read_file(path);
  uint32_t key_bytes = 0;
  std::memcpy(&key_bytes, good.data() + 12, 4);
  const std::string key = good.substr(24, key_bytes);
  const auto* payload = reinterpret_cast<const uint8_t*>(good.data()) + 4096;
  const size_t size = good.size() - 4096;
  for (const size_t kept : {size_t{0}, size_t{64}, size / 2 / 64 * 64, size - 64, size}) {
    CAPTURE(kept);
    std::vector<std::span<const uint8_t>> sections = {{payload, kept}};
    if (kept == size) sections.push_back({payload, 64});
    REQUIRE(write_weight_cache(path, key, sections, real_file_ops()).ok());
    CHECK((answers(model, Quantization::kNone, cache) == expected));
    CHECK((read_file(path) == good));
  }
}

TEST_CASE("a model that changed a moment ago is not kept: it could change again unseen") {
  const TempDir dir;
  const std::string model = make_model(dir, "m", 1), cache = dir / "cache";
  fs::last_write_time(model + "/model.safetensors", fs::file_time_type::clock::now() + std::chrono::seconds(60));
  CHECK((answers(model, Quantization::kNone, cache) == answers(model, Quantization::kNone, "")));
  CHECK(!fs::exists(cache));
}

// Whoever changes what is made of a checkpoint changes this number, and raises kWeightCacheVersion with it.
TEST_CASE("the bytes of packed weights are those of this version") {
  ThreadPool pool(1);
  ContentHash hash;
  std::string stored;
  for (int i = 0; i < 130 * 70 * 4; ++i) stored += static_cast<char>(i % 2 == 1 ? 0x3c + i % 3 : i * 37 + i / 97);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    for (const Quantization quantization : {Quantization::kNone, Quantization::kInt8, Quantization::kInt4}) {
      const TensorView parts[] = {{stored.data(), dtype, 100, 70}, {stored.data(), dtype, 30, 70}};
      const TensorView biases[] = {{stored.data(), dtype, 1, 100}, {stored.data(), dtype, 1, 30}};
      const cpu::PackedLinear packed = cpu::PackedLinear::pack(parts, biases, pool, quantization);
      for (const std::span<const uint8_t> bytes : packed.packed_bytes())
        hash.update({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  CHECK(kWeightCacheVersion == 2);
  CHECK(hash.digest() == 5786444492196035561u);
}

}  // namespace llmb::test
