// Beam search token for token as in Hugging Face transformers (tools/golden/make_golden_beams.py), on the bundled model
// and on tiny ones of each shape.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/config_loader.h"
#include "tests/support/beam_lines.h"
#include "tests/support/golden.h"
#include "tests/support/source_dir.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

const std::string kFixtures = source_dir() + "/data/fixtures/";

void check_lines(const std::string& dir, const std::vector<nlohmann::json>& lines) {
  CAPTURE(dir);
  const Result<ModelConfig> config = load_model_config(dir);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  check_beam_lines(*load_f32(dir, *config, 16), *config, lines);
}

}  // namespace

TEST_CASE("the bundled model: at least 200 searches have transformers' answers, in its order") {
  const auto lines = read_json_lines(kFixtures + "beams-bundled.jsonl");
  CHECK(lines.size() >= 200);
  check_lines(source_dir() + "/data/model", lines);
}

TEST_CASE("models of each shape: searches have transformers' answers") {
  std::map<std::string, std::vector<nlohmann::json>> by_model;
  for (const auto& line : read_json_lines(kFixtures + "beams-models.jsonl"))
    by_model[line.at("model").get<std::string>()].push_back(line);
  CHECK(by_model.size() >= 40);
  for (const auto& [model, lines] : by_model) check_lines(kFixtures + "models/" + model, lines);
}

}  // namespace llmb::test
