// Medusa heads on the CPU: the published definition's tokens; other models' heads are refused.
#include "model/medusa_heads.h"

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "model/config_loader.h"
#include "tests/support/medusa_golden.h"
#include "tests/support/medusa_heads.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {

namespace {

std::string refusal(const std::string& dir) {
  const Result<MedusaFiles> files = MedusaFiles::open(dir, tiny_config());
  return files.ok() ? "" : files.status().message();
}

}  // namespace

TEST_CASE("heads give the published definition's best tokens and their probabilities") {
  const auto config = load_model_config(medusa_fixture_model());
  REQUIRE(config.ok());
  check_medusa_golden(*loaded(make_cpu_backend(), *config, medusa_golden_options()), 1e-4);
  for (const int32_t size : {2, 4})  // ranks
    check_medusa_golden(*loaded(make_thread_ranks(size), *config, medusa_golden_options()), 1e-4);
  for (const auto& [tensor_size, num_stages, context_size] : {std::array{1, 2, 1}, {1, 1, 2}, {2, 2, 1}, {1, 2, 2}}) {
    auto ranks = make_thread_ranks(tensor_size, num_stages, 0, nullptr, context_size);
    check_medusa_golden(*loaded(std::move(ranks), *config, medusa_golden_options()), 1e-4);
  }
}

TEST_CASE("heads are found with and without a name in front, as many as config.json says") {
  for (const char* prefix : {"", "medusa_head."}) {
    const TempDir dir;
    write_medusa_heads(dir.path(), 3, 32, 96, prefix);
    const Result<MedusaFiles> files = MedusaFiles::open(dir.path(), tiny_config());
    REQUIRE_MESSAGE(files.ok(), files.status().message());
    CHECK(files->num_heads() == 3);
    write_file(dir.path() + "/config.json", R"({"medusa_num_heads": 2, "medusa_num_layers": 1})");
    CHECK(MedusaFiles::open(dir.path(), tiny_config())->num_heads() == 2);
  }
}

TEST_CASE("heads that do not fit are refused, and why") {
  const TempDir dir;
  CHECK(refusal(dir.path()).find("has no medusa_lm_head.safetensors") != std::string::npos);
  write_file(dir.path() + "/medusa_lm_head.pt", "PK");
  CHECK(refusal(dir.path()).find("medusa_lm_head.pt is pickled: convert it there with python3") != std::string::npos);
  write_medusa_heads(dir.path(), 2, 48, 96);
  CHECK(refusal(dir.path()).find("its heads take hidden states of 48, the model's have 32") != std::string::npos);
  write_medusa_heads(dir.path(), 2, 32, 100);
  CHECK(refusal(dir.path()).find("its heads' vocabulary has 100 tokens, the model's 96") != std::string::npos);
  write_medusa_heads(dir.path(), 2, 32, 96);
  CHECK(refusal(dir.path()) == "");
  for (const auto& [config, message] :
       {std::pair{R"({"medusa_num_heads": 3})", "\"2.0.linear.weight\" is missing"},
        {R"({"medusa_num_heads": 2, "medusa_num_layers": 2})", "\"0.1.linear.weight\" is missing"},
        {R"({"medusa_num_heads": 0})", "medusa_num_heads"},
        {R"({})", "medusa_num_heads"},
        {"[", "config.json"}}) {
    CAPTURE(config);
    write_file(dir.path() + "/config.json", config);
    const std::string why = refusal(dir.path());
    CHECK_MESSAGE(why.find(message) != std::string::npos, why);
  }
}

}  // namespace llmb::test
