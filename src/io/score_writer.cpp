#include "io/score_writer.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "io/record_parts.h"

namespace llmb {

namespace {

size_t best_label(const std::vector<float>& scores) {
  return static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

void write_label(JsonWriter& json, const std::vector<float>& scores, const std::vector<std::string>& labels) {
  LLMB_CHECK(!scores.empty() && scores.size() == labels.size());
  const size_t best = best_label(scores);
  json.key("label");
  json.string(labels[best]);
  json.key("score");
  json.single(scores[best]);
  json.key("scores");
  json.begin_object();
  for (size_t i = 0; i < labels.size(); ++i) {
    json.key(labels[i]);
    json.single(scores[i]);
  }
  json.end_object();
}

// The documents, the most relevant first; of equal ones the first.
void write_results(JsonWriter& json, const Completion& c) {
  std::vector<size_t> order(c.choices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return c.choices[a].embedding[0] > c.choices[b].embedding[0]; });
  const auto shown = static_cast<size_t>(c.classify.top_n.value_or(INT32_MAX));
  order.resize(std::min(order.size(), shown));
  json.key("results");
  json.begin_array();
  for (const size_t i : order) {
    json.begin_object();
    json.key("index");
    json.integer(static_cast<int64_t>(i));
    if (c.classify.returns_documents) {
      json.key("document");
      json.begin_object();
      json.key("text");
      json.string(c.choices[i].text);
      json.end_object();
    }
    json.key("relevance_score");
    json.single(c.choices[i].embedding[0]);
    json.end_object();
  }
  json.end_array();
}

void write_data(JsonWriter& json, const Completion& c, const std::vector<std::string>& labels) {
  json.key("data");
  json.begin_array();
  for (size_t i = 0; i < c.choices.size(); ++i) {
    const std::vector<float>& scores = c.choices[i].embedding;
    json.begin_object();
    json.key("index");
    json.integer(static_cast<int64_t>(i));
    if (c.form == ApiForm::kScore) {
      json.key("object");
      json.string("score");
      json.key("score");
      json.single(scores[0]);
    } else {
      json.key("label");
      json.string(labels[best_label(scores)]);
      json.key("probs");
      json.begin_array();
      for (const float x : scores) json.single(x);
      json.end_array();
      json.key("num_classes");
      json.integer(static_cast<int64_t>(scores.size()));
    }
    json.end_object();
  }
  json.end_array();
}

}  // namespace

void write_scores(JsonWriter& json, const Completion& c, const std::vector<std::string>& labels) {
  if (c.classify.pairs == TextPairs::kRerank) return write_results(json, c);
  const bool are_pairs = c.classify.pairs == TextPairs::kScore;
  if (!c.embed.is_list) {
    if (!are_pairs) return write_label(json, c.choices[0].embedding, labels);
    json.key("score");
    return json.single(c.choices[0].embedding[0]);
  }
  json.key(are_pairs ? "scores" : "classes");
  json.begin_array();
  for (const Choice& choice : c.choices) {
    if (are_pairs) {
      json.single(choice.embedding[0]);
      continue;
    }
    json.begin_object();
    write_label(json, choice.embedding, labels);
    json.end_object();
  }
  json.end_array();
}

void write_scores_body(JsonWriter& json, const Completion& c, const ResultFormat& format, const std::string& id) {
  const bool reranks = c.form == ApiForm::kRerank;
  json.begin_object();
  json.key("id");
  json.string((reranks ? "rerank-" : c.form == ApiForm::kScore ? "score-" : "classify-") + id);
  if (!reranks) {
    json.key("object");
    json.string("list");
    json.key("created");
    json.integer(format.metrics ? format.stamp.created : 0);
  }
  json.key("model");
  json.string(c.model_name);
  if (reranks) write_results(json, c);
  else write_data(json, c, format.labels);
  write_usage(json, c);
  json.end_object();
}

}  // namespace llmb
