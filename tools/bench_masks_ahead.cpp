// How long a device waits for masks between two steps of rows that all have forms, and how much of that masks worked
// out while the steps run take away (engine/mask_ahead.h).
//   bench_masks_ahead TOKENIZER_DIR MASKBENCH_DIR [--rows 64] [--step-ms 5] [--threads 2]
// The rows' forms are schemas of MaskBench's files (guidance-ai/jsonschemabench, maskbench/data), their answers a valid
// instance of each. In place of a step this thread sleeps, as a GPU's does.
//
// 2026-11-26, two cores of an AMD EPYC 7003, quiet, Qwen2.5's vocabulary, two runs of each: 0.86 and 0.97 ms a step
// without, 0.45 and 0.44 ms with two threads beside.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "core/step_plan.h"
#include "engine/constraint_vocabulary.h"
#include "engine/mask_ahead.h"
#include "grammar/grammar_constraint.h"
#include "grammar/json_schema.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace llmb;

struct Row {
  std::string schema;
  std::vector<TokenId> tokens;
  std::shared_ptr<const TokenConstraint> form;
  std::unique_ptr<ConstraintState> state;
  size_t next = 0;
};

std::shared_ptr<const TokenConstraint> compile(const std::string& schema,
                                               const std::shared_ptr<const grammar::Vocabulary>& vocabulary) {
  auto rules = grammar::json_schema_rules(schema);
  if (!rules.ok()) return nullptr;
  auto form = grammar::make_constraint(std::move(*rules), vocabulary);
  return form.ok() ? *form : nullptr;
}

// Whether its form reaches the row's answer.
bool is_reached(const Row& row) {
  const auto state = row.form->start();
  for (const TokenId token : row.tokens) {
    if (!is_allowed(state->allowed(), token)) return false;
    state->advance(token);
  }
  return true;
}

std::vector<Row> read_rows(const std::string& dir, size_t num_rows, const Tokenizer& tokenizer,
                           const std::shared_ptr<const grammar::Vocabulary>& vocabulary) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Row> rows;
  const size_t stride = std::max<size_t>(1, paths.size() / (2 * num_rows));
  for (size_t i = 0; i < paths.size() && rows.size() < num_rows; i += stride) {
    std::ifstream in(paths[i]);
    const auto file = nlohmann::ordered_json::parse(in);
    Row row{file.at("schema").dump(), {}, nullptr, nullptr};
    row.form = compile(row.schema, vocabulary);
    if (row.form == nullptr || !file.contains("tests")) continue;
    for (const auto& test : file["tests"]) {
      if (!test.at("valid").get<bool>()) continue;
      row.tokens = tokenizer.encode(test.at("data").dump(), false);
      if (row.tokens.size() > 20 && row.tokens.size() < 400 && is_reached(row)) {
        rows.push_back(std::move(row));
        break;
      }
    }
  }
  return rows;
}

// Ms a step for masks, in which the device waits.
double run(std::vector<Row>* rows, const std::shared_ptr<const grammar::Vocabulary>& vocabulary, int num_threads,
           double step_ms, int64_t* num_ahead) {
  const SteadyClock clock;
  for (Row& row : *rows) row.form = compile(row.schema, vocabulary), row.state = row.form->start(), row.next = 0;
  MaskAhead ahead(num_threads);
  double waited_ms = 0;
  int num_steps = 0;
  std::vector<MaskAhead::Row> running;
  while (true) {
    running.clear();
    for (Row& row : *rows)
      if (row.next < row.tokens.size()) running.push_back({row.form.get(), row.state.get()});
    if (running.empty()) break;
    const double begin_ms = clock.now_ms();
    for (Row& row : *rows)
      if (row.next < row.tokens.size()) row.state->allowed();
    waited_ms += clock.now_ms() - begin_ms;
    ++num_steps;
    ahead.begin(running);
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(step_ms));
    const double end_ms = clock.now_ms();
    ahead.end();
    waited_ms += clock.now_ms() - end_ms;
    for (Row& row : *rows)
      if (row.next < row.tokens.size()) ahead.add(row.tokens[row.next]), row.state->advance(row.tokens[row.next++]);
  }
  *num_ahead = ahead.num_masks();
  return waited_ms / num_steps;
}

}  // namespace

int main(int argc, char** argv) {
  std::string dir, maskbench;
  size_t num_rows = 64;
  double step_ms = 5;
  int num_threads = 2;
  CLI::App app{"Measures masks that are worked out while steps run"};
  app.add_option("TOKENIZER_DIR", dir, "A model directory or a GGUF file")->required();
  app.add_option("MASKBENCH_DIR", maskbench, "MaskBench's files")->required()->check(CLI::ExistingDirectory);
  app.add_option("--rows", num_rows, "of a step");
  app.add_option("--step-ms", step_ms, "that a step takes");
  app.add_option("--threads", num_threads, "beside the engine's");
  CLI11_PARSE(app, argc, argv);
  const auto tokenizer = Tokenizer::load(dir);
  if (!tokenizer.ok()) return std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str()), 1;
  const auto eos = (*tokenizer)->eos_token_id();
  const auto fresh = [&] {
    return constraint_vocabulary(**tokenizer, (*tokenizer)->vocab_size(),
                                 eos ? std::vector{*eos} : std::vector<TokenId>());
  };
  std::vector<Row> rows = read_rows(maskbench, num_rows, **tokenizer, fresh());
  for (const int threads : {0, num_threads, 0, num_threads}) {
    int64_t num_ahead = 0;
    const double ms = run(&rows, fresh(), threads, step_ms, &num_ahead);
    std::printf("%zu rows, %d threads: the device waits %.3f ms a step for masks; %lld looked for ahead\n", rows.size(),
                threads, ms, static_cast<long long>(num_ahead));
  }
  return 0;
}
