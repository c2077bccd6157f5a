// From an understood line to a request that the engine can run: chat template, tokens, limits of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "chat/chat_template.h"
#include "core/adapter_names.h"
#include "core/completion.h"
#include "core/prompt_bound.h"
#include "core/request.h"
#include "engine/constraint_compiler.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

class JudgePrompt;

// Output tokens of a native line where neither it nor a flag says: enough for an answer, never a whole context by
// accident.
inline constexpr int32_t kDefaultMaxTokens = 256;

// The model as far as requests must know it. tokenizer and chat_template may be null: lines that need them get an
// error record.
struct ModelContext {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;
  AnswerFormats formats;  // that the model writes calls and reasoning in
  std::vector<TokenId> eos_token_ids;
  std::shared_ptr<AdapterNames> adapters;  // null: lines that name one get an error record
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;  // prompt and output together
  std::shared_ptr<const JudgePrompt> judge;  // of a model that judges pairs; null: pairs are two texts
  bool is_indivisible = false;  // prompts are computed whole, and nothing behind them
  std::shared_ptr<ConstraintCompiler> constraints;  // null: lines that ask for a form get an error record
};

// Limits of its prompts that are known before they are encoded.
PromptBound prompt_bound(const ModelContext& model);

// Thread-safe. The result's arrival_ms is left to the caller. max_tokens is cut to what the context leaves. A prompt
// that fills the context is an error; where the request allows it, it is cut so that max_tokens (of an open end,
// kDefaultMaxTokens), but at most half of the context, are left for the answer. Special tokens around the text stay.
std::variant<std::shared_ptr<Request>, RequestError> prepare_request(InputRequest input, const ModelContext& model,
                                                                     uint64_t run_seed);

}  // namespace llmb
