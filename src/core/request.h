// The request of an input line, before (InputRequest) and after (Request) tokenisation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/rng.h"
#include "core/adapter_names.h"
#include "core/answer_split.h"
#include "core/chat_messages.h"
#include "core/pooling.h"
#include "core/token_constraint.h"
#include "core/types.h"

namespace llmb {

// Which answer form a line gets.
enum class ApiForm {
  kNative,            // {"prompt"…}, {"messages"…}, {"prompt_token_ids"…}
  kOpenAiChat,        // batch line for /v1/chat/completions
  kOpenAiCompletion,  // batch line for /v1/completions
  kOpenAiResponses,   // batch line for /v1/responses
  kOpenAiEmbedding,   // batch line for /v1/embeddings
  kClassify,          // batch line for /v1/classify, as vLLM has it
  kScore,             // batch line for /v1/score
  kRerank,            // batch line for /v1/rerank
};

// The work of a run: answers; how likely the lines' prompts are; a vector for each; scores of the model's labels.
enum class Task { kGenerate, kScore, kEmbed, kClassify };

// Alternatives of a token that a request may ask for.
inline constexpr int32_t kMaxTopLogprobs = 20;

// Answers that a request may ask for.
inline constexpr int32_t kMaxChoices = 256;

// When a beam search ends: with as many finished answers as beams (kTrue); once the best beam, were it to end here,
// would not be better than the worst of them (kFalse); or as long as some length might make it better (kNever).
enum class EarlyStopping { kFalse, kTrue, kNever };

// Answers are searched for, not drawn: engine/beam_search.h.
struct BeamParams {
  int32_t width = 1;         // [1, kMaxChoices]
  float length_penalty = 1;  // an answer's score: its log-probability / length^length_penalty
  EarlyStopping early_stopping = EarlyStopping::kFalse;
};

// How the next token is chosen. Ranges are checked by the reader; every later part may rely on them.
struct SamplingParams {
  float temperature = 1.0f;                           // [0, 100]; 0: greedy
  float top_p = 1.0f;                                 // (0, 1]
  int32_t top_k = 0;                                  // >= 0; 0: off
  float min_p = 0.0f;                                 // [0, 1]
  float repetition_penalty = 1.0f;                    // > 0; over prompt and output (CTRL, Keskar et al. 2019)
  float presence_penalty = 0.0f;                      // [-2, 2]; over output
  float frequency_penalty = 0.0f;                     // [-2, 2]; over output
  std::vector<std::pair<TokenId, float>> logit_bias;  // sorted by token, each token once
  std::optional<int32_t> num_logprobs;                // nullopt: none; k: the sampled token's and the k best
  std::optional<uint64_t> seed;    // of this line; nullopt: the run's seed and the line's index decide
  int32_t n = 1;                   // answers
  std::optional<int32_t> best_of;  // >= n: drawn, of which the n of the best mean log-probability are the answers
  std::optional<BeamParams> beams;
  int32_t num_choices = 1;  // that run: draws, each with numbers of its own, or beams; set by count_choices()

  // Greedy choices are equal: one is computed for all.
  void count_choices() { num_choices = beams ? beams->width : temperature == 0 ? 1 : best_of.value_or(n); }
  bool is_ranked() const { return best_of && num_choices > 1; }

  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

struct StopParams {
  std::optional<int32_t> max_tokens;  // >= 1; nullopt: up to the context's end
  int32_t min_tokens = 0;             // >= 0, <= max_tokens: no end-of-sequence or stop token before
  std::vector<std::string> stop;      // non-empty strings
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  int32_t repetition_tokens = 0;           // end once so many are a block that repeats (engine/repetition.h); 0: never
  std::optional<int32_t> thinking_budget;  // >= 0: tokens of reasoning, at most
};

struct OutputParams {
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool echo = false;  // the prompt's text stands in front of the answer's
  bool hides_answer = false;  // with echo: one token is drawn and not shown
};

enum class TruncateSide { kLeft, kRight };

constexpr const char* truncate_side_name(TruncateSide side) { return side == TruncateSide::kLeft ? "left" : "right"; }

struct PromptParams {
  std::optional<TruncateSide> truncate;      // where a prompt is cut that is too long; nullopt: it is an error
  std::optional<int32_t> max_prompt_tokens;  // >= 1; longer is too long; only with truncate
};

// A call that an answer may be: `before`, arguments that satisfy the schema, `after`. In before and after the text of a
// special token stands behind a byte kSpecialMark.
struct CallFrame {
  std::string before, schema, after;
  bool is_strict = false;
  bool operator==(const CallFrame&) const = default;
};
inline constexpr char kSpecialMark = '\xff';

// The form that an answer must have, as it was asked for.
struct AnswerForm {
  enum class Kind : uint8_t { kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar, kCalls };
  Kind kind = Kind::kJsonObject;
  std::string text;                  // the schema as JSON, the pattern or the grammar
  std::vector<std::string> choices;  // of kChoice: the texts that an answer may be
  bool is_strict = false;            // of kJsonSchema: objects must be closed and their properties required
  std::string field;                 // of the line, or the option, that asked for it; for messages
  std::vector<CallFrame> calls = {};  // of kCalls: one of them, or several with `text` between them
  bool has_several_calls = false;
  // For kCalls: stands around strings in the models' own notation of arguments (grammar/json_spelling.h), written as in
  // CallFrame; "": arguments are JSON.
  std::string quote = {};
};

// Which tokens an answer may have, whatever its form.
struct TokenRules {
  std::vector<TokenId> allowed;        // in any order; empty: all
  std::vector<std::string> bad_words;  // non-empty; their tokens may not follow each other

  bool any() const { return !allowed.empty() || !bad_words.empty(); }
};

// A line that asks how likely texts are behind its prompt, in place of an answer.
struct ScoreParams {
  std::vector<std::string> options;  // non-empty strings; none: an answer is generated
  std::optional<int32_t> num_logprobs;  // details of each token: its own log-probability and the k best; nullopt: none
  std::optional<int32_t> prompt_logprobs;  // the same of each prompt token but the first, beside an answer
  bool hides_details = false;              // only the sum of these is asked for
};

// How a prompt's vector is written.
struct EmbedParams {
  bool normalizes = true;             // to a length of 1, last
  std::optional<int32_t> dimensions;  // the first so many are kept (Matryoshka, Kusupati et al. 2022); nullopt: all
  bool is_list = false;    // the line gives several inputs, or one in an array: the record has a vector for each
  bool is_base64 = false;  // each is written as base64 of little-endian fp32 values
};

// The texts of a line that classifies: each by itself; pairs whose score is asked for; pairs of a query and documents.
enum class TextPairs : uint8_t { kNone, kScore, kRerank };

struct ClassifyParams {
  Scores scores = Scores::kAsIs;
  TextPairs pairs = TextPairs::kNone;
  std::optional<int32_t> top_n;      // of kRerank: so many documents are shown
  bool returns_documents = false;    // of kRerank, with their texts
  std::string instruction;           // to a model that judges pairs; "": its own
};

struct GenerationParams {
  SamplingParams sampling;
  StopParams stop;
  OutputParams output;
  PromptParams prompt;
  std::shared_ptr<const AnswerForm> form;  // null: any text
  TokenRules token_rules;
  ScoreParams score;
  EmbedParams embed;
  ClassifyParams classify;
  Task task = Task::kGenerate;
};

// Where a line came from, for messages and for the record's index.
struct LineRef {
  int64_t index = 0;          // physical line over all inputs in order, from 0
  std::string source;         // file name, "-" for stdin
  int64_t line_number = 0;    // in that file, from 1
  int64_t byte_offset = 0;    // of the line's first byte in that file (decompressed)
  uint64_t content_hash = 0;  // of the line's bytes, line ending excluded
};

using PromptInput = std::variant<std::string, ChatMessages, std::vector<TokenId>>;

// A line that was understood and whose fields are in range.
struct InputRequest {
  LineRef line;
  ApiForm form = ApiForm::kNative;
  std::string id_json;     // the line's id as JSON text ("\"a-1\"", "17"); "" when it had none
  std::string model_name;  // body.model of an OpenAI line, echoed in the answer
  std::optional<std::string> adapter;  // by name; none, or "": the base model
  std::string input_json;  // fields of the line that its record repeats (--keep), as an object; "": none
  std::string settings_json;  // of a /v1/responses line: members of its answer that repeat the line, without brackets
  PromptInput prompt;
  std::vector<PromptInput> more_prompts;  // of a line that gives several: those behind the first
  std::vector<std::string> first_texts;   // of pairs, whose second texts the prompts are: one for each, or for all
  GenerationParams params;
  std::optional<double> arrival_ms;  // simulated arrival, since the start of the run
};

// A choice whose tokens are given: what is asked for is how likely they are.
struct GivenAnswer {
  std::vector<TokenId> tokens;                        // at least one
  std::shared_ptr<const TokenConstraint> constraint;  // allows them and nothing else
};

// A request as the engine runs it. Immutable once made.
struct Request {
  LineRef line;
  ApiForm form = ApiForm::kNative;
  std::string id_json;
  std::string model_name;
  std::string input_json;
  std::string settings_json;
  std::string echo_text;               // that stands in front of the answer's text
  AnswerSplit split;                   // of OpenAI's chat answers
  std::vector<TokenId> prompt_tokens;  // at least one
  int32_t num_truncated_tokens = 0;    // of the prompt as given, that are not in prompt_tokens
  GenerationParams params;             // stop.max_tokens is always set here, and fits the context; no form or token rules
  std::vector<TokenId> eos_token_ids;  // end the sequence unless ignore_eos
  PhiloxKey rng;
  int32_t adapter = kNoAdapter;
  bool is_indivisible = false;  // all pending tokens must be computed in one step (bidirectional attention)
  int32_t second_text = INT32_MAX;  // the position in prompt_tokens at which the second of two texts begins
  std::shared_ptr<const TokenConstraint> constraint;  // of each choice's tokens; null: none
  std::vector<GivenAnswer> options;  // of score.options, one a choice; empty: choices are drawn
  // Choices with prompts of their own, each a request with one choice; empty: all stand behind prompt_tokens, which
  // otherwise are the first one's.
  std::vector<std::shared_ptr<const Request>> parts;
  size_t constraint_bytes = 0;  // of memory that it takes and no earlier request's does
  double arrival_ms = 0;        // when it may be scheduled, on the engine's clock

  const TokenConstraint* constraint_of(int32_t choice) const {
    return options.empty() ? constraint.get() : options[choice].constraint.get();
  }
  const Request& part(int32_t choice) const { return parts.empty() ? *this : *parts[choice]; }
  int64_t num_prompt_tokens() const {
    int64_t count = parts.empty() ? static_cast<int64_t>(prompt_tokens.size()) : 0;
    for (const auto& part : parts) count += static_cast<int64_t>(part->prompt_tokens.size());
    return count;
  }
};

}  // namespace llmb
