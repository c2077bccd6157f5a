// How tests of stored weights load a small model on a GPU, and what they ask it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "tests/support/plan_builder.h"

namespace llmb::test {

// Deterministic. Activations and KV cache in `dtype`
inline LoadOptions stored_model_options(const std::string& dir, DType dtype) {
  LoadOptions options;
  options.model_dir = dir;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.max_model_len = 96;
  options.num_blocks_override = 64;
  options.num_threads = 1;
  options.dtype = options.kv_cache_dtype = dtype;
  options.cuda.deterministic = true;
  return options;
}

// Greedy: prompts of one token, of less than a block, of more, and of several.
inline std::vector<GenerateRequest> short_requests(int32_t vocab_size) {
  std::vector<GenerateRequest> requests;
  for (const int32_t length : {1, 7, 17, 40}) {
    GenerateRequest& r = requests.emplace_back();
    for (int32_t i = 0; i < length; ++i) r.prompt.push_back((11 * i + length) % vocab_size);
    r.num_tokens = 5;
    r.sampling.num_logprobs = 0;
  }
  return requests;
}

}  // namespace llmb::test
