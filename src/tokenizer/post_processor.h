// Puts special tokens around the ids of one text: the `post_processor` of a tokenizer file, reduced to a template.
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

  // unsupported names a type that is not built; data_loss where an id is not in [0, vocab_size).
  static Result<PostProcessor> make(const nlohmann::json& spec, TokenId vocab_size);
};

}  // namespace llmb
