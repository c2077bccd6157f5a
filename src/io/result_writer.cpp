#include "io/result_writer.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <string>
#include <vector>

#include "base/check.h"
#include "io/json_writer.h"
#include "io/openai_writer.h"
#include "io/record_parts.h"
#include "io/score_writer.h"

namespace llmb {

namespace {

void write_input(JsonWriter& json, const std::string& input_json) {
  if (input_json.empty()) return;
  json.key("input");
  json.raw(input_json);
}

void write_error(JsonWriter& json, const LineRef& line, const RequestError& error) {
  json.begin_object();
  json.key("code");
  json.string(error.code);
  json.key("message");
  json.string(error.message);
  json.key("param");
  if (error.param) json.string(*error.param);
  else json.null();
  write_place(json, line, error);
  json.end_object();
}

void write_text(JsonWriter& json, const Choice& choice) {
  json.key("text");
  json.string(choice.text);
  write_finish(json, choice);
}

void write_details(JsonWriter& json, const Completion& c, const Choice& choice) {
  if (c.return_token_ids) write_token_ids(json, choice);
  if (choice.logprobs.empty()) return;
  json.key("logprobs");
  write_logprob_list(json, choice, /*with_ids=*/true);
}

// The sum is over all the prompt's tokens but the first.
void write_prompt_score(JsonWriter& json, const Completion& c) {
  const double sum = c.prompt_logprob();
  const auto count = static_cast<int64_t>(c.prompt_logprobs.size());
  json.key("logprob");
  json.single(static_cast<float>(sum));
  json.key("num_tokens");
  json.integer(count);
  json.key("perplexity");
  const double perplexity = std::exp(-sum / static_cast<double>(std::max<int64_t>(count, 1)));
  if (count == 0 || perplexity > FLT_MAX) json.null();
  else json.single(static_cast<float>(perplexity));
  write_usage(json, c);
}

// The likeliest of the options, the first of equals.
size_t best_option(const std::vector<Choice>& choices) {
  size_t best = 0;
  for (size_t i = 1; i < choices.size(); ++i)
    if (choices[i].score->logprob > choices[best].score->logprob) best = i;
  return best;
}

void write_options(JsonWriter& json, const Completion& c) {
  json.key("options");
  json.begin_array();
  for (size_t i = 0; i < c.choices.size(); ++i) {
    const Choice& choice = c.choices[i];
    json.begin_object();
    json.key("index");
    json.integer(static_cast<int64_t>(i));
    json.key("text");
    json.string(choice.text);
    json.key("logprob");
    write_logprob(json, static_cast<float>(choice.score->logprob));
    json.key("num_tokens");
    json.integer(choice.num_output_tokens);
    json.key("is_greedy");
    json.boolean(choice.score->is_greedy);
    write_details(json, c, choice);
    json.end_object();
  }
  json.end_array();
  json.key("best");
  json.integer(static_cast<int64_t>(best_option(c.choices)));
  write_usage(json, c);
}

void write_outputs(JsonWriter& json, const Completion& c) {
  json.key("outputs");
  json.begin_array();
  for (size_t i = 0; i < c.choices.size(); ++i) {
    json.begin_object();
    json.key("index");
    json.integer(static_cast<int64_t>(i));
    write_text(json, c.choices[i]);
    write_details(json, c, c.choices[i]);
    json.end_object();
  }
  json.end_array();
}

void write_native(JsonWriter& json, const Completion& c, const ResultFormat& format) {
  json.begin_object();
  json.key("index");
  json.integer(c.line.index);
  json.key("id");
  write_id(json, c.id_json);
  if (c.error) {
    json.key("error");
    write_error(json, c.line, *c.error);
    write_input(json, c.input_json);
    write_hash(json, c.line.content_hash);
  } else {
    if (c.task == Task::kEmbed) {
      json.key(c.embed.is_list ? "embeddings" : "embedding");
      if (c.embed.is_list) json.begin_array();
      for (const Choice& choice : c.choices) write_embedding(json, choice, c.embed.is_base64);
      if (c.embed.is_list) json.end_array();
      write_usage(json, c);
    } else if (c.task == Task::kClassify) {
      write_scores(json, c, format.labels);
      write_usage(json, c);
    } else if (c.scores_prompt()) {
      write_prompt_score(json, c);
    } else if (c.choices[0].score) {
      write_options(json, c);
    } else if (c.choices.size() > 1) {
      write_outputs(json, c);
      write_usage(json, c);
    } else {
      write_text(json, c.choices[0]);
      write_usage(json, c);
      write_details(json, c, c.choices[0]);
    }
    if (c.has_prompt_logprobs) write_prompt_logprobs(json, c);
    write_input(json, c.input_json);
    write_hash(json, c.line.content_hash);
    if (format.metrics) write_metrics(json, c.latency);
  }
  json.end_object();
}

void write_rows(JsonWriter& json, const Completion& c, const ResultFormat& format) {
  json.begin_object();
  json.key("index");
  json.integer(c.line.index);
  json.key("rows");
  json.begin_array();
  for (const Choice& choice : c.choices) write_embedding(json, choice, /*as_base64=*/true);
  json.end_array();
  json.key("id");
  write_id(json, c.id_json);
  write_usage(json, c);
  write_input(json, c.input_json);
  write_hash(json, c.line.content_hash);
  if (format.metrics) write_metrics(json, c.latency);
  json.end_object();
}

size_t num_logprob_texts(const Choice& choice) {
  size_t count = 0;
  for (const TokenDetail& detail : choice.logprobs) count += 1 + detail.top.size();
  return count;
}

}  // namespace

void ResultFormatter::format_to(std::string& out, const Completion& completion) const {
  const std::vector<Choice>& choices = completion.choices;
  LLMB_CHECK(completion.error || !choices.empty());
  for (const Choice& choice : choices) LLMB_CHECK(choice.logprob_texts.size() == num_logprob_texts(choice));
  JsonWriter json(out);
  if (format_.rows && !completion.error) write_rows(json, completion, format_);
  else if (format_.rows || completion.form == ApiForm::kNative) write_native(json, completion, format_);
  else write_openai(json, completion, format_);
  out += '\n';
}

std::string ResultFormatter::format(const Completion& completion) const {
  std::string out;
  out.reserve(512 + (completion.choices.empty() ? 0 : completion.choices[0].text.size()));
  format_to(out, completion);
  return out;
}

}  // namespace llmb
