// Models loaded with --weight-cache: the same answers, bit for bit, whatever is wrong with the file or the model.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/weight_cache.h"
#include "base/content_hash.h"
#include "kernels/cpu/linear.h"
#include "model/config_loader.h"
#include "model/weight_files.h"
#include "tests/support/file_changes.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

namespace fs = std::filesystem;

// In the place of a file that nobody may write to.
void replace_content(const std::string& path, const std::string& content) {
  fs::remove(path);
  write_file(path, content);
}

// Tokens and log probabilities of a few prompts. ranks: that compute it together; none where they cannot.
std::vector<Generated> answers(const std::string& model, Quantization quantization, const std::string& cache,
                               const RankPart& ranks = {}) {
  const Result<ModelConfig> config = load_model_config(model);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  LoadOptions options;
  options.model_dir = model;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 64;
  options.max_model_len = std::min(64, config->max_position_embeddings);
  options.num_threads = 2;
  options.cpu.quantization = quantization;
  options.cpu.weight_cache_dir = cache;
  std::unique_ptr<Backend> backend = make_cpu_backend();
  if (ranks.num_ranks() > 1)
    backend = make_thread_ranks(ranks.tensor_size, ranks.num_stages, 0, nullptr, ranks.context_size);
  const Status status = backend->load(*config, options);
  if (ranks.num_ranks() > 1 && status.code() == StatusCode::kUnsupported) return {};
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

TEST_CASE("ranks keep a file each, of their own part: the same answers when they are written and when they are mapped") {
  struct Divided {
    RankPart ranks;
    Quantization quantization;
    size_t num_files, step;  // through the golden models
  };
  // The last: both ranks have all of the model, and one file.
  for (const auto& [ranks, quantization, num_files, step] : {Divided{{0, 2, 1}, Quantization::kNone, 2, 2},
                                                             {{0, 2, 1}, Quantization::kInt4, 2, 5},
                                                             {{0, 2, 2}, Quantization::kInt8, 4, 9},
                                                             {{0, 1, 1, 2}, Quantization::kNone, 1, 9}}) {
    int num_divided = 0;
    const std::vector<std::string> models = golden_model_dirs();
    for (size_t i = 0; i < models.size(); ++i) {
      const std::string& model = models[i];
      const bool rounds_whole_rows = ranks.num_stages > 1 && model.ends_with("/gemma4");  // whatever a stage has of them
      if (i % step != 0 && !rounds_whole_rows) continue;
      const auto expected = answers(model, quantization, "", ranks);
      if (expected.empty()) continue;
      CAPTURE(model);
      ++num_divided;
      const TempDir cache;
      CHECK((answers(model, quantization, cache.path(), ranks) == expected));
      std::map<std::string, fs::file_time_type> written;
      for (const auto& file : fs::directory_iterator(cache.path())) {
        let_rest(file.path());
        written[file.path()] = file.last_write_time();
      }
      CHECK(written.size() == num_files);
      CHECK((answers(model, quantization, cache.path(), ranks) == expected));
      for (const auto& [path, time] : written) CHECK(fs::last_write_time(path) == time);
    }
    CHECK(num_divided >= 2);
  }
}

TEST_CASE("a file of another rank's part is not used, whatever its name says") {
  const TempDir dir;
  const std::string model = make_model(dir, "m", 1), cache = dir / "cache";
  const RankPart ranks = {0, 2, 1};
  const auto expected = answers(model, Quantization::kNone, cache, ranks);
  std::vector<std::string> paths, contents;
  for (const auto& file : fs::directory_iterator(cache)) paths.push_back(file.path());
  REQUIRE(paths.size() == 2);
  for (const std::string& path : paths) contents.push_back(read_file(path));
  for (size_t i = 0; i < 2; ++i) replace_content(paths[i], contents[1 - i]);
  CHECK((answers(model, Quantization::kNone, cache, ranks) == expected));
  for (size_t i = 0; i < 2; ++i) CHECK((read_file(paths[i]) == contents[i]));
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
  for (const BlockFormat format : {BlockFormat::kQ4_0, BlockFormat::kQ3_K, BlockFormat::kQ4_K, BlockFormat::kQ6_K}) {
    const TensorView part = {stored.data(), DType::kF32, 65, 256, format};
    const cpu::PackedLinear packed = cpu::PackedLinear::pack({&part, 1}, {}, pool);
    for (const std::span<const uint8_t> bytes : packed.packed_bytes())
      hash.update({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  CHECK(kWeightCacheVersion == 4);
  CHECK(hash.digest() == 4943622401835102650u);
}

}  // namespace llmb::test
