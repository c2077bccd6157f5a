// Vectors of texts, scores of labels and pairs on the CUDA backend.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "tests/support/golden.h"
#include "tests/support/text_jobs.h"

namespace llmb::test {
namespace {

using nlohmann::json;

EngineJobOptions on_cuda(EngineJobOptions options, DType dtype = DType::kF32) {
  options.make_backend = [] { return make_cuda_backend(0); };
  options.load.cuda.deterministic = true;
  options.load.dtype = options.load.kv_cache_dtype = dtype;
  return options;
}

// A decoder whose states become vectors as `pooling` says.
EngineJobOptions decoder_job(const std::string& name, const Pooling& pooling) {
  EngineJobOptions options = text_job(source_dir() + "/data/fixtures/" + name);
  options.load.pooling = pooling;
  options.defaults.task = Task::kEmbed;
  options.defaults.embed.normalizes = pooling.normalizes;
  options.scheduler.max_num_batched_tokens = 120;
  options.scheduler.max_model_len = std::min(120, options.config.max_position_embeddings);
  options.scheduler.block_size = 8;
  options.scheduler.num_blocks = 64;
  return options;
}

// Lines of lengths at the borders of blocks and of what a block of the device takes.
std::vector<json> lines_of_lengths() {
  std::vector<json> lines;
  for (const int32_t length : {1, 2, 7, 8, 9, 16, 17, 33, 40, 59}) {
    json tokens = json::array();
    for (int32_t i = 0; i < length; ++i) tokens.push_back(3 + (7 * i + length) % 50);
    lines.push_back({{"prompt_token_ids", tokens}});
  }
  return lines;
}

TEST_CASE("a decoder's vectors equal transformers'") {
  for (const char* name : {"qwen3", "llama-gqa", "gemma2"}) {
    CAPTURE(name);
    std::vector<json> lines, expected;
    for (const json& line : read_json_lines(source_dir() + "/data/fixtures/embeddings.jsonl"))
      if (line["model"] == name) {
        lines.push_back({{"prompt_token_ids", line["prompt_token_ids"]}});
        expected.push_back(line["embedding"]);
      }
    const auto records = answers_to(lines, on_cuda(decoder_job(std::string("models/") + name, Pooling())));
    for (size_t i = 0; i < lines.size(); ++i) CHECK(distance(records[i]["embedding"], expected[i]) <= 2e-6);
  }
}

TEST_CASE("last, first and mean: near the CPU's, and deterministic the same bytes whatever the schedule") {
  for (const PoolingKind kind : {PoolingKind::kLast, PoolingKind::kFirst, PoolingKind::kMean})
    for (const bool normalizes : {true, false}) {
      CAPTURE(pooling_name(kind));
      Pooling pooling;
      pooling.kind = kind, pooling.normalizes = normalizes;
      const EngineJobOptions options = decoder_job("models/qwen3", pooling);
      const auto cpu = answers_to(lines_of_lengths(), options);
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        CAPTURE(dtype_name(dtype));
        const auto records = answers_to(lines_of_lengths(), on_cuda(options, dtype));
        for (size_t i = 0; i < cpu.size(); ++i)
          CHECK(distance(records[i]["embedding"], cpu[i]["embedding"]) <= (dtype == DType::kF32 ? 2e-6 : 0.01));
        for (const int variant : {0, 1}) {
          EngineJobOptions other = on_cuda(options, dtype);
          other.scheduler.max_num_seqs = variant == 0 ? 1 : 20;
          other.scheduler.max_num_batched_tokens = variant == 0 ? 120 : 220;
          if (kind == PoolingKind::kLast && variant == 0) other.scheduler.max_num_batched_tokens = 7;
          other.scheduler.block_size = 16;
          other.scheduler.enable_prefix_caching = variant == 1;
          CHECK(answers_to(lines_of_lengths(), other) == records);
        }
      }
    }
}

TEST_CASE("pairs are judged by rows of the LM head as on the CPU") {
  const std::string dir = source_dir() + "/data/fixtures/judges/modules";
  const Pooling pooling = load_judge(dir, load_model_config(dir).value(), {5, 9}).value();
  const EngineJobOptions options = decoder_job("judges/modules", pooling);
  const auto cpu = answers_to(lines_of_lengths(), options), gpu = answers_to(lines_of_lengths(), on_cuda(options));
  for (size_t i = 0; i < cpu.size(); ++i) {
    REQUIRE(gpu[i]["embedding"].size() == 2);
    for (size_t at = 0; at < 2; ++at) CHECK(is_within(gpu[i]["embedding"][at], cpu[i]["embedding"][at], 1e-4));
  }
}

void check_classifier(const std::string& name) {
  CAPTURE(name);
  EngineJobOptions options = on_cuda(classifier_job(name));
  const std::vector<std::string>& labels = options.load.pooling->labels;
  const bool has_pairs = labels.size() == 1;
  std::vector<json> lines, scores;
  for (const json& line : read_json_lines(source_dir() + "/data/fixtures/classifiers/" + name + "/golden.jsonl")) {
    if (!line["text_2"].is_null() && !has_pairs) continue;
    if (line["text_2"].is_null()) lines.push_back({{"prompt", line["text_1"]}});
    else lines.push_back({{"text_1", line["text_1"]}, {"text_2", line["text_2"]}});
    scores.push_back(line["scores"]);
  }
  const auto records = answers_to(lines, options);
  for (size_t i = 0; i < lines.size(); ++i) {
    CAPTURE(records[i].dump());
    if (lines[i].contains("text_2")) CHECK(is_within(records[i]["score"], scores[i][0], 2e-5));
    else
      for (size_t k = 0; k < labels.size(); ++k) CHECK(is_within(records[i]["scores"][labels[k]], scores[i][k], 2e-5));
  }
  options.scheduler.max_num_seqs = 1;
  options.scheduler.max_num_batched_tokens = 128;
  options.scheduler.block_size = 8;
  options.scheduler.enable_prefix_caching = false;
  CHECK(answers_to(lines, options) == records);
}

TEST_CASE("scores of labels and pairs equal transformers'") {
  for (const char* name : {"bert", "xlm-roberta", "modernbert", "llama"}) check_classifier(name);
}

TEST_CASE("encoders' vectors equal sentence-transformers', deterministic the same bytes whatever the schedule") {
  for (const std::string& dir : encoder_dirs()) {
    CAPTURE(dir);
    std::vector<json> golden, lines;
    for (const json& line : read_json_lines(dir + "/golden.jsonl"))
      if (line["token_ids"].size() <= 80) golden.push_back(line), lines.push_back({{"prompt", line["text"]}});
    EngineJobOptions options = encoder_job(dir);
    options.scheduler.max_model_len = options.scheduler.max_num_batched_tokens = 80;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      CAPTURE(dtype_name(dtype));
      const auto records = answers_to(lines, on_cuda(options, dtype));
      for (size_t i = 0; i < golden.size(); ++i) {
        REQUIRE_MESSAGE(records[i].contains("embedding"), records[i].dump());
        CHECK(records[i]["usage"]["prompt_tokens"] == golden[i]["token_ids"].size());
        CHECK(distance(records[i]["embedding"], golden[i]["embedding"]) <= (dtype == DType::kF32 ? 2e-6 : 0.01));
      }
      EngineJobOptions other = on_cuda(options, dtype);
      other.scheduler.max_num_seqs = dtype == DType::kF32 ? 1 : 32;
      other.scheduler.max_num_batched_tokens = dtype == DType::kF32 ? 80 : 1500;
      other.scheduler.block_size = 8;
      other.scheduler.num_blocks = 300;
      CHECK(answers_to(lines, other) == records);
    }
  }
}

}  // namespace
}  // namespace llmb::test
