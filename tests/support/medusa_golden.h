// Heads on a backend, against what the published definition says (tools/golden/make_golden_medusa.py).
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/check_ok.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

inline std::string medusa_fixture() { return source_dir() + "/data/fixtures/medusa"; }
inline std::string medusa_fixture_model() { return source_dir() + "/data/fixtures/models/llama-gqa"; }

// How the fixture's model is loaded for check_medusa_golden().
inline LoadOptions medusa_golden_options() {
  LoadOptions o;
  o.model_dir = medusa_fixture_model();
  o.heads_dir = medusa_fixture();
  o.block_size = 16;
  o.num_blocks_override = 16;
  o.max_num_seqs = 16;
  o.max_num_batched_tokens = 128;
  o.max_num_drafts = 48;
  o.max_model_len = 16;
  o.num_threads = 2;
  o.dtype = DType::kF32;
  return o;
}

// The best tokens of all heads for the golden's prompts, as one plan of heads behind one step that gives each a token.
inline void check_medusa_golden(Backend& backend, double tolerance) {
  const auto lines = read_json_lines(medusa_fixture() + "/golden.jsonl");
  REQUIRE(lines.size() > 5);
  const auto count = static_cast<int32_t>(lines.size()), num_heads = static_cast<int32_t>(lines[0]["top"].size());
  REQUIRE(backend.info().num_heads == num_heads);
  PlanBuilder prompts(backend.info().kv.block_size);
  for (int32_t i = 0; i < count; ++i) {
    const auto tokens = lines[i]["prompt_token_ids"].get<std::vector<TokenId>>();
    prompts.add(tokens, 0, static_cast<int32_t>(tokens.size()), {i}, SampleRow());
  }
  StepOutput given, guessed;
  check_ok(backend.submit(prompts.plan()));
  check_ok(backend.wait(&given));
  StepPlan heads;
  heads.clear();
  heads.block_size = backend.info().kv.block_size;
  for (int32_t e = 0; e < count; ++e) {  // in reverse, so that rows are told apart
    heads.entries.push_back({.seq = e, .base = 1});
    heads.tokens.push_back(given.tokens[count - 1 - e]);
    heads.hidden_rows.push_back(count - 1 - e);
    heads.query_start.push_back(e + 1);
    heads.block_start.push_back(0);
  }
  for (int32_t g = 0; g < num_heads * count; ++g) {
    heads.sample_rows.push_back({.group = g, .token_row = g % count, .num_logprobs = 4});
    heads.groups.push_back({g % count, g % count, g, g + 1, SampleMode::kBest});
  }
  for (int turn = 0; turn < 2; ++turn) {  // heads do not change what they start from
    check_ok(backend.submit(heads));
    check_ok(backend.wait(&guessed));
    for (int32_t g = 0; g < num_heads * count; ++g) {
      CAPTURE(g);
      const auto& top = lines[count - 1 - g % count]["top"][g / count];
      REQUIRE(guessed.token_start[g + 1] - guessed.token_start[g] == 4);
      for (int32_t rank = 0; rank < 4; ++rank) {
        const int32_t at = guessed.token_start[g] + rank;
        CHECK(guessed.tokens[at] == top[rank][0].get<TokenId>());
        const double error = std::abs(guessed.logprobs[at] - top[rank][1].get<double>());
        CHECK(error <= tolerance);
      }
    }
  }
}

}  // namespace llmb::test
