// One Completion as one line of JSON: valid UTF-8, fixed field order, "\n" at the end.
//
// Native record:
//   {"index", "id", "text", "finish_reason", "stop_reason", "usage": {"prompt_tokens", "completion_tokens",
//    "total_tokens"}, "token_ids"*, "logprobs"*, "input"*, "hash", "metrics"}                     * where asked for
// Where a line asks for n > 1 answers, "outputs" takes the place of the fields of a single answer:
//   {"index", "id", "outputs": [{"index", "text", "finish_reason", "stop_reason", "token_ids"*, "logprobs"*}, …],
//    "usage", "input"*, "hash", "metrics"}
//   index        physical line over all inputs, from 0: the key that joins an answer to its line
//   id           the line's id as it was given, or null
//   stop_reason  the stop string, the token id that ended the text, or null
//   logprobs     a list of {"token", "token_id", "logprob", "bytes", "top_logprobs": [the same four, best first]}; with
//                echo those of the prompt's tokens stand in front, the first one's null
//   usage        completion_tokens counts all choices, also those that best_of left out; of a prompt that was cut also
//   "truncated_prompt_tokens": how many are not in prompt_tokens input        fields of the input line, as an object
//   hash         XXH64 of the input line's bytes, 16 hexadecimal digits: resume notices an edited line by it
//   metrics      {"queue_ms", "ttft_ms", "tpot_ms", "e2e_ms", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms",
//                "num_preemptions", "cached_tokens", "drafted_tokens", "accepted_tokens", "speculation"*: {drafter:
//                {"drafted_tokens", "accepted_tokens", "steps", "tokens_per_step"}}}, milliseconds to three decimals.
//                Always last, so that it is easy to cut off: everything before it depends on the line, the model and
//                the settings, never on the schedule. cached_tokens: of the prompt, that other lines had computed;
//                drafted_tokens: guessed by speculation, of which accepted_tokens were right; speculation: where some
//                were guessed, the same by drafter, steps that verified some, and tokens that each of these gave
// A record of a run that classifies (--task classify) has in the place of text and finish_reason
//   of one text      "label", the likeliest; "score", its own; "scores", {label: score}. Of several, "classes", a list
//                    of objects with these three, in the order of the line's texts
//   of text_1/text_2 "score"; of several pairs "scores", in their order
//   of documents     "results": [{"index", "relevance_score", "document": {"text"}*}], the most relevant first
// Native error record:
//   {"index", "id", "error": {"code", "message", "param", "line", "byte_offset"}, "input"*, "hash"}
//   line         "file:line number"; param and byte_offset (in the line, from 0) are null where unknown
//
// OpenAI batch record:
//   {"id": "batch_req_<32 digits>", "custom_id", "response": {"status_code": 200, "request_id": "req_…", "body"},
//    "error": null, "index", "hash", "metrics"}
//   id           with request_id and the body's id a hash of the job's settings, the model's content, the line's index
//                and its bytes: unique within a job, and the same whenever and wherever the line is answered in it
//   message      of a chat answer that has reasoning or calls (core/answer_split.h): "reasoning_content"*, "tool_calls"*,
//                and "content", null where nothing is left; finish_reason is "tool_calls" where the answer ended with
//                some. A call's id is a hash as above, of the choice and the call, too
//   body         a chat.completion or text_completion object; "created" is when the job began, and 0 without metrics,
//   so
//                that equal runs give equal files. Beyond OpenAI's fields a choice has "stop_reason" and, where asked
//                for, "token_ids"
// An error: response.status_code is 400 (500 where the line is not at fault) with body {"error": {"message", "type",
// "param", "code", "line", "byte_offset"}}. The record's "error" stays null, as in OpenAI's own batches, where it tells
// of requests without a response; vLLM's run-batch has the error there, and no body.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/completion.h"

namespace llmb {

// Facts about the job that OpenAI records carry.
struct JobStamp {
  uint64_t hash = 0;    // of settings and model
  int64_t created = 0;  // seconds since 1970
};

struct ResultFormat {
  bool metrics = true;  // false: no "metrics" field, and "created" is 0
  JobStamp stamp = {};
  std::vector<std::string> labels = {};  // of a model that classifies
  bool rows = false;  // vectors become rows of a .npy file: records are those of io/row_records.h
};

// Stateless: thread-safe.
//
// REQUIRES: an error, or at least one choice.
//
// Choice::logprob_texts holds raw bytes, for each generated token in order: the chosen token's text, then the text
// of each of its top tokens. "token" shows bytes that are not UTF-8 as U+FFFD, "bytes" has them all.
class ResultFormatter {
 public:
  explicit ResultFormatter(ResultFormat format = {}) : format_(format) {}

  void set_stamp(const JobStamp& stamp) { format_.stamp = stamp; }
  std::string format(const Completion& completion) const;
  void format_to(std::string& out, const Completion& completion) const;  // appends

 private:
  ResultFormat format_;
};

}  // namespace llmb
