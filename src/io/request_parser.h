// Turns the bytes of one input line into an InputRequest, or into the reason why not. Nothing here depends on other
// lines, and no line can end a job.
//
// A line is one of
//   {"prompt": …}            a string, an array of one string, or token ids
//   {"messages": […]}        chat messages, for the model's chat template
//   {"prompt_token_ids": […]}
//   {"custom_id", "method": "POST", "url": "/v1/chat/completions" | "/v1/completions" | "/v1/responses",
//    "body": {…}}   OpenAI batch, also for /v1/embeddings where the run embeds, and for /v1/classify, /v1/score and
//    /v1/rerank where it classifies; responses_body.h says what a body for /v1/responses may hold
// with exactly one kind of prompt. Rules for fields (request_fields.h lists the names):
//  1. An explicit null is the same as an absent field. An integer may be written 16.0, never 1.5 or "16".
//  2. A field whose meaning is not built is the error "unsupported_field", unless its value asks for nothing
//     (echo = false, suffix = "", stream = false …). A control field given twice is an error.
//  3. Other fields of a native line, and around an OpenAI body, are the user's own data: ignored. A near miss of a
//     field's name ("max_token", "maxTokens", "temprature") is the error "unknown_field", and in an OpenAI body every
//     unknown field is.
//  4. Ids are any JSON scalar, kept as JSON text; null is the same as none. They need not be unique.
//  5. What a conversation may hold is in chat_messages.h. Nothing of a line is ever a template.
//  6. A last line that has no newline and is not whole JSON is the error "incomplete_line": what is there may be the
//     first part of a line that is being written. Whole JSON needs no newline.
//  7. A chat line without max_tokens runs to the context's end, a /v1/completions line to 16 tokens, as OpenAI's do.
//  8. Lines of data are read by other rules: data_line.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/completion.h"
#include "core/prompt_bound.h"
#include "core/request.h"
#include "io/data_line.h"
#include "io/line_reader.h"

namespace llmb {

// Which adapter a line gets that does not say.
struct AdapterRules {
  bool are_there = false;                // else nobody asks for one but by the field `adapter`
  std::string default_name;              // "": the base model
  std::vector<std::string> model_names;  // of the base model: any other `model` of an OpenAI line is an adapter's
};

struct RequestLimits {
  int32_t vocab_size = INT32_MAX;  // token ids are in [0, vocab_size)
  int32_t max_logprobs = kMaxTopLogprobs;
  int32_t max_dimensions = INT32_MAX;  // of the model's vectors
  std::optional<int32_t> only_dimensions;  // of all vectors of the run: a line that asks for others is an error
  std::string text_prompt;              // in front of each text of a run that embeds
  std::map<std::string, std::string> named_prompts;  // of which a line may name one (prompt_name) in its place
  bool takes_instructions = false;     // of a model that judges pairs
  int32_t num_labels = 0;              // of a model that classifies
  int32_t max_stop_strings = 64;
  int64_t max_json_parts = int64_t{1} << 22;  // of a line above a megabyte; two for each token id
  int32_t completion_max_tokens = 16;         // of a /v1/completions line where neither it nor the defaults say
  AdapterRules adapters;
  PromptBound prompt;                         // which prompts of such lines are refused before they are copied
};

// The known part of a line that could not be understood: enough for its error record.
struct ParseFailure {
  LineRef line;
  RequestError error;
  std::string id_json;
  std::string input_json;
  ApiForm form = ApiForm::kNative;
  std::string model_name;
  bool is_chat = false;
};

// The error of a line that may not have been written to its end: a later run answers it again where it has changed.
inline constexpr std::string_view kIncompleteLine = "incomplete_line";

// The error record of a failed line.
Completion to_completion(ParseFailure failure);

// Not thread-safe: keeps a parser's buffers. While a line is parsed it may take twice its size in memory and 12 bytes
// for each of its parts; buffers above a megabyte are given back after it. A prompt of more than a megabyte that cannot
// fit is refused for that at once, whatever else may be wrong within its text.
class RequestParser {
 public:
  RequestParser(GenerationParams defaults, RequestLimits limits, DataMapping mapping = {});
  ~RequestParser();

  std::variant<InputRequest, ParseFailure> parse(const InputLine& line);

  // Names of DataMapping::kept_fields that none of the lines parsed so far has; none before the first native line.
  std::vector<std::string> fields_never_kept() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmb
