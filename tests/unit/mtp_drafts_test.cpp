// Drafts by the layer behind the last one, on the CPU: the same bytes as without; who must be right is, and who knows
// nothing does no harm.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/config_loader.h"
#include "tests/support/draft_layer_lines.h"
#include "tests/support/model_drafters.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace {

using Json = nlohmann::json;

std::string lines() { return draft_layer_lines({10, 17, 24, 11, 18, 25, 12}); }

EngineJobOptions job_of(const std::string& dir) {
  EngineJobOptions o;
  o.make_backend = [] { return make_cpu_backend(); };
  o.load.model_dir = dir;
  o.load.num_threads = 2;
  o.config = *load_model_config(dir);
  o.scheduler.max_model_len = 96;
  o.scheduler.num_blocks = 400;
  o.scheduler.enable_prefix_caching = true;
  return o;
}

std::string answers(const EngineJobOptions& o) {
  const EngineJob job(lines());
  REQUIRE(job.run(o).status.ok());
  return job.output();
}

SpeculationMetrics::Kind check_same(const std::string& expected, EngineJobOptions o, DraftSetup setup) {
  setup.by = DraftBy::kLayers;
  setup.num_layers = 0;
  o.config.mtp.is_used = true;
  const SteadyClock clock;
  StepCost cost;
  const auto speculator = make_speculator(setup, &o, cost, clock);
  o.proposer = speculator.get();
  o.step_cost = &cost;
  o.scheduler.max_num_drafts = 64;
  o.scheduler.allows_trees = setup.is_tree;
  const EngineJob job(lines());
  const EngineJobOutcome outcome = job.run(o);
  REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
  CHECK(job.output() == expected);
  CHECK(speculator->metrics().drafters.back().name == "mtp");
  return speculator->metrics().drafters.back();
}

// A model in bf16 whose tensors can be overwritten.
class ChangedModel {
 public:
  explicit ChangedModel(const std::string& from) : weights_(read_file(from + "/model.safetensors")) {
    write_file(dir_.file("config.json"), read_file(from + "/config.json"));
    uint64_t size = 0;
    std::memcpy(&size, weights_.data(), sizeof size);
    header_ = Json::parse(weights_.substr(sizeof size, size));
    data_ = sizeof size + size;
  }

  // value(i): element i, as bf16's bits
  void set(const std::string& ending, const std::function<uint16_t(size_t)>& value) {
    for (const auto& [name, tensor] : header_.items()) {
      if (!name.ends_with(ending)) continue;
      const size_t begin = tensor["data_offsets"][0].get<size_t>(), end = tensor["data_offsets"][1].get<size_t>();
      for (size_t at = begin; at < end; at += 2) {
        const uint16_t bits = value((at - begin) / 2);
        std::memcpy(weights_.data() + data_ + at, &bits, sizeof bits);
      }
    }
  }
  std::string element_bits(const std::string& name) const {
    const size_t begin = header_[name]["data_offsets"][0].get<size_t>();
    return weights_.substr(data_ + begin, header_[name]["data_offsets"][1].get<size_t>() - begin);
  }
  const std::string& write() {
    write_file(dir_.file("model.safetensors"), weights_);
    return dir_.path();
  }

 private:
  TemporaryDirectory dir_;
  std::string weights_;
  Json header_;
  size_t data_ = 0;
};

constexpr uint16_t kOne = 0x3f80;  // bf16
const std::string kModels = source_dir() + "/data/fixtures/mtp/";

}  // namespace

TEST_CASE("drafts by the layer behind the last one change no byte, at any batch, in small pools, and some are right") {
  for (const std::string model : {"qwen3_5-text", "qwen3_next", "deepseek_v3", "glm4_moe"}) {
    CAPTURE(model);
    EngineJobOptions o = job_of(kModels + model);
    const bool has_states = o.config.has_states();
    const std::string expected = answers(o);
    int64_t num_drafted = 0, num_accepted = 0;
    for (const auto& [max_num_seqs, max_tokens] : {std::pair{1, 4}, {4, 1}, {64, 8}, {3, has_states ? 8 : 16}}) {
      o.scheduler.max_num_seqs = max_num_seqs;
      o.scheduler.block_size = o.load.block_size = max_num_seqs == 4 ? 4 : 16;
      const SpeculationMetrics::Kind drafts = check_same(expected, o, {.max_tokens = max_tokens});
      CHECK(drafts.num_accepted > 0);
      num_drafted += drafts.num_drafted, num_accepted += drafts.num_accepted;
    }
    CHECK(check_same(expected, o, {.num_blocks = 3}).num_drafted > 0);  // not for all
    CHECK(check_same(expected, o, {.max_model_len = 40}).num_drafted > 0);
    check_same(expected, o, {.looks_up = true});
    if (!has_states) CHECK(check_same(expected, o, {.max_tokens = 16, .is_tree = true}).num_drafted > 0);
    o.scheduler.max_num_batched_tokens = 7;
    CHECK(check_same(expected, o, {.max_tokens = 3}).num_accepted > 0);
    o.scheduler.num_blocks = 8;  // sequences are preempted
    CHECK(check_same(expected, o, {}).num_drafted > 0);
    MESSAGE(model << ": " << num_accepted << " of " << num_drafted << " drafts are right");
  }
}

TEST_CASE("a layer that computes what the model computes is always right, one that sees nothing does no harm") {
  ChangedModel model(kModels + "deepseek_v3");
  // No layer adds anything, so the next token follows from the last one alone.
  for (const char* ending : {"o_proj.weight", "o_proj.bias", "down_proj.weight"}) model.set(ending, [](size_t) { return 0; });
  constexpr size_t kHidden = 32;
  const std::string norm = model.element_bits("model.norm.weight");
  model.set("shared_head.norm.weight", [&](size_t i) {
    uint16_t bits = 0;
    std::memcpy(&bits, norm.data() + 2 * i, sizeof bits);
    return bits;
  });
  model.set("enorm.weight", [](size_t) { return kOne; });
  model.set("eh_proj.weight", [](size_t i) { return i / (2 * kHidden) == i % (2 * kHidden) ? kOne : uint16_t{0}; });
  EngineJobOptions o = job_of(model.write());
  // Where activations are rounded to bf16, what the layer is given differs from what the model's own layers are.
  o.load.dtype = DType::kF32;
  const std::string expected = answers(o);
  for (const int32_t max_tokens : {1, 4, 16}) {
    const SpeculationMetrics::Kind right = check_same(expected, o, {.max_tokens = max_tokens});
    CHECK(right.num_drafted > 30);
    CHECK(right.num_accepted == right.num_drafted);
  }
  model.set("eh_proj.weight", [](size_t) { return 0; });
  o.load.model_dir = model.write();
  const SpeculationMetrics::Kind wrong = check_same(expected, o, {});
  CHECK(wrong.num_drafted > 30);
  CHECK(4 * wrong.num_accepted < wrong.num_drafted);
}

}  // namespace llmb::test
