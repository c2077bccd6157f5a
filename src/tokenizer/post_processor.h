// Puts special tokens around the ids of one text, or of two: the `post_processor` of a tokenizer file, reduced to a template.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <vector>

#include "base/status.h"
#include "core/types.h"

namespace llmb {

// The ids of a text are `before`, the text's own, `after`. Immutable data.
struct PostProcessor {
  std::vector<TokenId> before;
  std::vector<TokenId> after;
  bool is_present = false;  // the file has one
  // Those of two texts: pair_before, the first's own, pair_between, the second's own, pair_after.
  bool joins_pairs = true;
  std::vector<TokenId> pair_before, pair_between, pair_after;
  bool has_pair_types = false;    // token types become 1 behind the first text
  size_t num_first_between = 0;  // … and behind so many of pair_between

  // unsupported names a type that is not built; data_loss where an id is not in [0, vocab_size).
  static Result<PostProcessor> make(const nlohmann::json& spec, TokenId vocab_size);
};

}  // namespace llmb
