// Checkpoints whose integers of four and eight bits the device keeps, in groups of columns wherever these lie: golden
// tokens, near the CPU's answers, the same bytes whatever the schedule.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/float_formats.h"
#include "formats/safetensors.h"
#include "model/config_loader.h"
#include "tests/support/golden.h"
#include "tests/support/gptq_model.h"
#include "tests/support/plan_builder.h"
#include "tests/support/source_dir.h"
#include "tests/support/stored_model.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

struct Model {
  Model(const std::string& dir, DType dtype)
      : config(load_model_config(dir).value()), options(stored_model_options(dir, dtype)) {}
  std::unique_ptr<Backend> gpu() const { return loaded(make_cuda_backend(0), config, options); }
  std::unique_ptr<Backend> cpu() {
    options.dtype = options.kv_cache_dtype = DType::kF32;
    return loaded(make_cpu_backend(), config, options);
  }
  ModelConfig config;
  LoadOptions options;
};

void check_schedules(Backend& gpu, const std::vector<GenerateRequest>& requests,
                     const std::vector<Generated>& answers) {
  for (const uint64_t seed : {1, 2}) {
    const bool same = generate_at_random(gpu, requests, seed == 1 ? 64 : 7, 8, seed) == answers;
    CHECK(same);
  }
}

// The answers, and how much memory weights take.
std::vector<Generated> answers_of(const GptqOptions& o, int64_t* weight_bytes) {
  const TempDir dir;
  write_gptq_model(dir.path(), o);
  const Model m(dir.path(), DType::kF16);
  const auto gpu = m.gpu();
  *weight_bytes = gpu->info().weight_bytes;
  return generate_one_by_one(*gpu, short_requests(m.config.vocab_size), 64);
}

// A checkpoint whose scales are the same numbers in fp32, beside which nothing keeps integers packed.
std::string with_wide_scales(const std::string& from, const TempDir& dir) {
  write_file(dir / "config.json", read_file(from + "/config.json"));
  const auto checkpoint = Checkpoint::open(from);
  REQUIRE(checkpoint.ok());
  std::vector<RawTensor> tensors;
  for (const std::string& name : checkpoint->names()) {
    const StoredTensor t = *checkpoint->find(name);
    const std::string bytes(reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes));
    RawTensor& raw =
        tensors.emplace_back(RawTensor{name, std::string(t.dtype), {t.shape.begin(), t.shape.end()}, bytes});
    if (!name.ends_with(".scales") && !name.ends_with("_scale")) continue;
    std::vector<float> scales;
    for (size_t at = 0; at < bytes.size(); at += 2) {
      uint16_t half;
      std::memcpy(&half, bytes.data() + at, 2);
      scales.push_back(t.dtype == "F16" ? f16_to_f32(half) : bf16_to_f32(half));
    }
    raw.dtype = "F32", raw.bytes = bytes_of(scales);
  }
  write_file(dir / "model.safetensors", raw_safetensors(tensors));
  return dir.path();
}

// The answers of transformers for a fixture: behind every token that it gave, the five best ones that may follow.
struct Golden {
  explicit Golden(const std::string& dir) {
    for (const auto& line : read_json_lines(dir + "/golden.jsonl")) {
      auto prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
      for (size_t k = 0; k < line.at("token_ids").size(); ++k) {
        GenerateRequest& r = requests.emplace_back();
        r.prompt = prompt;
        r.sampling.num_logprobs = 20;
        best.push_back(line.at("top_logprobs")[k]);
        prompt.push_back(line.at("token_ids")[k].get<TokenId>());
      }
    }
  }
  // The furthest that a log probability is from it.
  double error(const std::vector<Generated>& answers) const {
    double worst = 0;
    for (size_t i = 0; i < requests.size(); ++i)
      for (const auto& expected : best[i]) {
        const std::vector<TokenId>& tokens = answers[i].top_tokens[0];
        const auto found = std::find(tokens.begin(), tokens.end(), expected[0].get<TokenId>());
        REQUIRE(found != tokens.end());
        const double error = std::fabs(answers[i].top_logprobs[0][found - tokens.begin()] - expected[1].get<double>());
        worst = error <= worst ? worst : error;
      }
    return worst;
  }
  std::vector<GenerateRequest> requests;
  std::vector<nlohmann::json> best;
};

// 16 bits round activations: how far that takes the widened weights from transformers' answers in fp32 is the measure.
TEST_CASE("eight bits of GPTQ and compressed-tensors: golden tokens, as near to transformers as the widened weights") {
  for (const std::string name : {"gptq-8-v2", "w8a16", "w8a8"}) {
    CAPTURE(name);
    const std::string from = source_dir() + "/data/fixtures/quantized/" + name;
    const DType dtype = name == "gptq-8-v2" ? DType::kF16 : DType::kBF16;
    const TempDir dir;
    const Model m(from, dtype), wide(with_wide_scales(from, dir), dtype);
    const Golden golden(from);
    const auto gpu = m.gpu(), widened = wide.gpu();
    CHECK(gpu->info().weight_bytes != widened->info().weight_bytes);
    const auto answers = generate_one_by_one(*gpu, golden.requests, 64);
    const double allowed = golden.error(generate_one_by_one(*widened, golden.requests, 64));
    CAPTURE(allowed);
    CHECK(allowed <= (dtype == DType::kF16 ? 0.02 : 0.2));
    CHECK(golden.error(answers) <= 1.5 * allowed);
    int num_equal = 0;
    for (size_t i = 0; i < golden.requests.size(); ++i) {
      const bool is_equal = answers[i].tokens[0] == golden.best[i][0][0].get<TokenId>();
      num_equal += is_equal;
      // Rounding may decide between two that are closer than what it does to both.
      CHECK((is_equal || golden.best[i][0][1].get<double>() - golden.best[i][1][1].get<double>() <= 2 * allowed));
    }
    CHECK(num_equal >= static_cast<int>(golden.requests.size()) * (dtype == DType::kF16 ? 10 : 9) / 10);
    check_schedules(*gpu, golden.requests, answers);
  }
}

TEST_CASE("GPTQ's columns in any order: near the CPU's answers, and the same bytes whatever the schedule") {
  for (const int bits : {4, 8})
    for (const int64_t group_size : {32, 64}) {
      CAPTURE(bits);
      CAPTURE(group_size);
      const TempDir dir;
      write_gptq_model(dir.path(), {bits, group_size});
      Model m(dir.path(), DType::kF16);
      const std::vector<GenerateRequest> requests = short_requests(m.config.vocab_size);
      const auto gpu = m.gpu();
      const auto actual = generate_one_by_one(*gpu, requests, 64);
      const auto expected = generate_one_by_one(*m.cpu(), requests, 64);
      for (size_t i = 0; i < requests.size(); ++i) {
        CAPTURE(i);
        CHECK(actual[i].tokens == expected[i].tokens);
        for (size_t k = 0; k < actual[i].logprobs.size(); ++k)
          CHECK(std::fabs(actual[i].logprobs[k] - expected[i].logprobs[k]) <= 0.02);
      }
      check_schedules(*gpu, requests, actual);
    }
}

TEST_CASE("integers stay packed whatever the columns' order; where parts of a product differ in it they are widened") {
  for (const int bits : {4, 8}) {
    CAPTURE(bits);
    int64_t in_turn = 0, shuffled = 0, differing = 0, wide = 0, narrow = 0;
    answers_of({bits, 32, /*is_shuffled=*/false}, &in_turn);
    const auto packed = answers_of({bits, 32}, &shuffled);
    GptqOptions k_differs{bits, 32}, wide_scales{bits, 32};
    k_differs.k_differs = wide_scales.has_wide_scales = true;
    answers_of(k_differs, &differing);
    const auto widened = answers_of(wide_scales, &wide);
    answers_of({bits, 16}, &narrow);
    // The order of all columns, and the groups of 32: four products a layer, 64, 64, 64 and 128 columns.
    CHECK(shuffled == in_turn + 2 * 4 * (3 * (64 + 2) + 128 + 4));
    CHECK(wide != shuffled);
    CHECK(narrow == wide);
    CHECK(differing != shuffled);
    CHECK(differing != wide);
    // The same weights in 16 bits: other sums alone.
    for (size_t i = 0; i < packed.size(); ++i) {
      CHECK(packed[i].tokens == widened[i].tokens);
      for (size_t k = 0; k < packed[i].logprobs.size(); ++k)
        CHECK(std::fabs(packed[i].logprobs[k] - widened[i].logprobs[k]) <= 0.01);
    }
  }
}

TEST_CASE("a column in a group that there is not is refused by name, on either device; a group one short is widened") {
  GptqOptions o{4, 32};
  for (const int32_t group : {1, 4}) {  // matrices have two groups, down_proj four
    o.last_group = group;
    const TempDir dir;
    write_gptq_model(dir.path(), o);
    const Model m(dir.path(), DType::kF16);
    const Status status = make_cuda_backend(0)->load(m.config, m.options);
    CAPTURE(status.message());
    if (group == 1) CHECK(status.ok());
    else CHECK(status.message().find("_proj.g_idx\" puts column 63 into group 4 of 2") != std::string::npos);
    Model on_cpu = m;
    on_cpu.options.dtype = on_cpu.options.kv_cache_dtype = DType::kF32;
    CHECK(make_cpu_backend()->load(on_cpu.config, on_cpu.options).ok() == status.ok());
  }
}

}  // namespace
}  // namespace llmb::test
