// The answer to one input line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/request.h"
#include "core/types.h"

namespace llmb {

enum class FinishReason {
  kStop,    // end-of-sequence, a stop token or a stop string
  kLength,  // max_tokens or the context's end
  kRepetition,  // its last tokens are a block that repeats (StopParams::repetition_tokens)
  kError,   // no answer: see Completion::error
};

constexpr const char* finish_reason_name(FinishReason r) {
  switch (r) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kRepetition:
      return "repetition";
    case FinishReason::kError:
      break;
  }
  return "error";
}

// Why a line could not be answered. `code` is stable snake_case for scripts; `message` is for people.
struct RequestError {
  std::string code;  // e.g. "invalid_json", "invalid_value", "prompt_too_long", "kv_too_small", "numeric_error"
  std::string message;
  std::optional<std::string> param;         // the field at fault
  std::optional<int64_t> byte_offset = {};  // within the line, from 0
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;  // natural log, of the model's distribution before bias, penalties and temperature
};

// One generated token and, where asked for, the best alternatives (best first).
struct TokenDetail {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

// Tokens that a drafter guessed, of those that a step verified.
struct DraftedTokens {
  std::string drafter;
  int32_t num_steps = 0;  // that verified some; each gave one token more than it accepted
  int32_t num_drafted = 0, num_accepted = 0;

  double tokens_per_step() const { return num_steps > 0 ? 1 + static_cast<double>(num_accepted) / num_steps : 0; }
};

// All in milliseconds. queue + time from first schedule to first token = ttft.
struct RequestLatency {
  double queue_ms = 0;  // arrival to the first step that held the request
  double ttft_ms = 0;   // arrival to the first token
  double tpot_ms = 0;   // mean time per output token after the first; 0 with one token
  double e2e_ms = 0;    // arrival to the last token
  double itl_p50_ms = 0, itl_p90_ms = 0, itl_p99_ms = 0;
  int32_t num_preemptions = 0;
  int32_t num_cached_tokens = 0;  // of the prompt, that other requests had computed
  std::vector<DraftedTokens> drafted = {};  // by speculation, of all choices; of drafters that guessed some
};

// How likely an option is behind its prompt.
struct OptionScore {
  double logprob = 0;     // the sum over its tokens
  bool is_greedy = true;  // each of them is the likeliest token in its place
};

// One of the answers to a request.
struct Choice {
  std::string text;                  // valid UTF-8
  bool continues_character = false;  // the text's first character began in the prompt
  int32_t num_output_tokens = 0;
  std::vector<TokenId> token_ids;     // generated, end-of-sequence included
  std::vector<TokenDetail> logprobs;  // empty unless asked; else one per token of token_ids, behind those of the prompt
  int32_t num_echoed_tokens = 0;      // of logprobs: the prompt's, where it is echoed; the first one's is NaN
  int32_t num_unshown_chars = 0;      // how many characters these tokens' texts have more than the prompt in `text`
  // With logprobs: the text of each chosen and top token, in order, see io/result_writer.h.
  std::vector<std::string> logprob_texts;
  FinishReason finish_reason = FinishReason::kStop;
  std::optional<std::string> stop_string;  // the stop string that ended it
  std::optional<TokenId> stop_token;       // the token of stop_token_ids that ended it; not for end-of-sequence
  std::optional<AnswerParts> parts;        // of an OpenAI chat answer that has reasoning or calls: what `text` shows
  int32_t num_reasoning_tokens = 0;        // of its tokens
  std::optional<OptionScore> score;        // of an option; `text` is the option's
  std::vector<float> embedding;            // Task::kEmbed: the prompt's vector; Task::kClassify: its labels' scores
};

// Exactly one per input line, ever: choices, at least one, or an error.
struct Completion {
  LineRef line;
  ApiForm form = ApiForm::kNative;
  std::string id_json;
  std::string model_name;
  std::string input_json;  // fields of the line that its record repeats, as an object; "": none
  std::string settings_json;  // as in InputRequest
  bool is_chat = false;    // answered to `messages`
  bool return_token_ids = false;
  int32_t adapter = kNoAdapter;
  int32_t num_prompt_tokens = 0;
  int32_t num_truncated_tokens = 0;  // of the prompt, cut before it was computed
  Task task = Task::kGenerate;
  EmbedParams embed;
  ClassifyParams classify;
  // Where asked for: of each prompt token but the first, and the texts of all, the first token's in front.
  bool has_prompt_logprobs = false;
  std::vector<TokenDetail> prompt_logprobs;
  std::vector<std::string> prompt_texts;
  std::vector<Choice> choices;
  int64_t num_unreturned_tokens = 0;  // of choices that best_of left out
  RequestLatency latency;
  std::optional<RequestError> error;  // set: the answer is an error record

  // Task::kScore without options: the prompt is scored as a whole.
  bool scores_prompt() const { return task == Task::kScore && !choices.empty() && !choices[0].score; }
  double prompt_logprob() const {
    double sum = 0;
    for (const TokenDetail& detail : prompt_logprobs) sum += detail.chosen.logprob;
    return sum;
  }
  int64_t num_output_tokens() const {
    int64_t count = num_unreturned_tokens;
    for (const Choice& choice : choices) count += choice.num_output_tokens;
    return count;
  }
};

}  // namespace llmb
