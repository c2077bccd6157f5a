// Jobs that score, embed and classify texts, whichever backend computes them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/classifier.h"
#include "model/config_loader.h"
#include "model/pooling.h"
#include "tests/support/engine_job.h"
#include "tests/support/source_dir.h"
#include "tokenizer/tokenizer.h"

namespace llmb::test {

// In float32 on the CPU.
inline EngineJobOptions text_job(const std::string& dir) {
  EngineJobOptions options;
  options.config = load_model_config(dir).value();
  options.make_backend = [] { return make_cpu_backend(); };
  options.load.model_dir = dir;
  options.load.dtype = options.load.kv_cache_dtype = DType::kF32;
  options.load.num_threads = 1;
  options.scheduler.max_num_seqs = 8;
  options.scheduler.max_num_drafts = 8;
  options.scheduler.block_size = 16;
  options.scheduler.enable_prefix_caching = true;
  return options;
}

// In data/fixtures/encoders, sorted.
inline std::vector<std::string> encoder_dirs() {
  std::vector<std::string> dirs;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/data/fixtures/encoders"))
    dirs.push_back(entry.path().string());
  std::sort(dirs.begin(), dirs.end());
  return dirs;
}

// A job of one of these.
inline EngineJobOptions encoder_job(const std::string& dir) {
  EngineJobOptions options = text_job(dir);
  options.tokenizer = Tokenizer::load(dir).value();
  options.load.num_threads = 2;
  options.load.pooling = load_pooling(dir, options.config, {}).value();
  options.defaults.task = Task::kEmbed;
  options.defaults.embed.normalizes = options.load.pooling->normalizes;
  options.scheduler.max_num_batched_tokens = 400;
  options.scheduler.max_model_len = 318;
  options.scheduler.num_blocks = 60;
  return options;
}

// A job of a model in data/fixtures/classifiers.
inline EngineJobOptions classifier_job(const std::string& name) {
  const std::string dir = source_dir() + "/data/fixtures/classifiers/" + name;
  EngineJobOptions options = text_job(dir);
  options.config.tie_word_embeddings = true;
  options.tokenizer = Tokenizer::load(dir).value();
  options.load.pooling = load_classifier(dir, options.config).value();
  options.defaults.task = Task::kClassify;
  options.defaults.classify.scores = options.load.pooling->scores;
  options.scheduler.max_num_batched_tokens = 200;
  options.scheduler.max_model_len = 128;
  options.scheduler.num_blocks = 40;
  return options;
}

inline std::string lines_of(const std::vector<nlohmann::json>& lines) {
  std::string text;
  for (const nlohmann::json& line : lines) text += line.dump() + "\n";
  return text;
}

// A record for each line. Errors come without the place of their line, which names the job's folder.
inline std::vector<nlohmann::json> answers_to(const std::vector<nlohmann::json>& lines,
                                              const EngineJobOptions& options) {
  const EngineJob job(lines_of(lines));
  const EngineJobOutcome outcome = job.run(options);
  REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
  std::vector<nlohmann::json> records;
  for (const auto& [index, text] : records_by_index(job.output())) {
    nlohmann::json& record = records.emplace_back(nlohmann::json::parse(text));
    if (record.contains("error") && record["error"].is_object()) record["error"].erase("line");
  }
  REQUIRE(records.size() == lines.size());
  return records;
}

// 1 - cosine, and what the lengths differ by.
inline double distance(const nlohmann::json& a, const nlohmann::json& b) {
  REQUIRE(a.size() == b.size());
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    ab += x * y, aa += x * x, bb += y * y;
  }
  return 1 - ab / std::sqrt(aa * bb) + std::fabs(std::sqrt(aa / bb) - 1);
}

inline bool is_within(const nlohmann::json& actual, const nlohmann::json& expected, double bound) {
  return std::fabs(actual.get<double>() - expected.get<double>()) <= bound;
}

}  // namespace llmb::test
