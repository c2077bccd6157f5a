// Classification heads: scores of texts, pairs and documents, as transformers computes them
// (tools/golden/make_golden_classifiers.py), and the records of lines that ask for them.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/text_jobs.h"
#include "tests/support/thread_ranks.h"

namespace llmb::test {
namespace {

using nlohmann::json;

bool is_near(const json& actual, const json& expected) {
  const double a = actual, b = expected;
  return std::fabs(a - b) <= 1e-5 * std::max(1.0, std::fabs(b));
}

TEST_CASE("scores of texts and pairs equal transformers', whatever the schedule") {
  for (const char* name : {"bert", "xlm-roberta", "modernbert", "llama"}) {
    CAPTURE(name);
    EngineJobOptions options = classifier_job(name);
    const std::vector<std::string>& labels = options.load.pooling->labels;
    const bool has_pairs = labels.size() == 1;
    const std::vector<json> golden =
        read_json_lines(source_dir() + "/data/fixtures/classifiers/" + name + "/golden.jsonl");
    std::vector<json> lines;
    for (const json& line : golden) {
      if (line["text_2"].is_null()) lines.push_back({{"prompt", line["text_1"]}});
      else lines.push_back({{"text_1", line["text_1"]}, {"text_2", line["text_2"]}});
    }
    const std::vector<json> records = answers_to(lines, options);
    int num_pairs = 0;
    for (size_t i = 0; i < golden.size(); ++i) {
      CAPTURE(golden[i].dump());
      CAPTURE(records[i].dump());
      const json& expected = golden[i]["scores"];
      const bool is_pair = !golden[i]["text_2"].is_null();
      num_pairs += is_pair;
      if (is_pair && !has_pairs) {
        CHECK(records[i]["error"]["code"] == "unsupported_field");
        continue;
      }
      CHECK(records[i]["usage"]["prompt_tokens"] == golden[i]["token_ids"].size());
      if (is_pair) {
        CHECK(is_near(records[i]["score"], expected[0]));
        continue;
      }
      size_t best = 0;
      for (size_t k = 0; k < labels.size(); ++k) {
        CHECK(is_near(records[i]["scores"][labels[k]], expected[k]));
        if (expected[k] > expected[best]) best = k;
      }
      CHECK(records[i]["label"] == labels[best]);
      CHECK(records[i]["score"] == records[i]["scores"][labels[best]]);
    }
    CHECK(num_pairs >= 4);
    options.scheduler.max_num_seqs = 1;
    options.scheduler.max_num_batched_tokens = 128;
    options.scheduler.block_size = 4;
    options.scheduler.enable_prefix_caching = false;
    CHECK(answers_to(lines, options) == records);
    for (const RankPart& grid : {RankPart{.num_stages = 2}, RankPart{.context_size = 2},
                                 RankPart{.context_size = 2, .divides_kv = true}}) {
      if (options.config.num_hidden_layers < grid.num_stages) continue;
      options.make_backend = [grid] {
        return make_thread_ranks(1, grid.num_stages, 0, nullptr, grid.context_size, grid.divides_kv);
      };
      options.scheduler.block_size = grid.divides_kv ? grid.context_size * kSliceTokens : 4;
      CHECK(answers_to(lines, options) == records);
    }
    options.scheduler.block_size = 4;
    options.make_backend = [] { return make_thread_ranks(2); };
    const std::vector<json> divided = answers_to(lines, options);
    for (size_t i = 0; i < records.size(); ++i) {
      CAPTURE(divided[i].dump());
      if (records[i].contains("score")) CHECK(is_near(divided[i]["score"], records[i]["score"]));
      else CHECK(divided[i] == records[i]);
      if (!records[i].contains("scores")) continue;
      for (const std::string& label : labels)
        CHECK(is_near(divided[i]["scores"][label], records[i]["scores"][label]));
    }
  }
}

TEST_CASE("lines for /v1/score, /v1/rerank and /v1/classify are answered as vLLM answers them, native ones likewise") {
  const auto body = [](const std::string& url, const json& members) {
    return json{{"custom_id", "a"}, {"method", "POST"}, {"url", "/v1/" + url}, {"body", members}};
  };
  const json documents = {"Paris is the capital of France", "Numbers such as 1", "x", {{"text", "Decoders"}}};
  const std::vector<json> lines = {
      {{"text_1", "What?"}, {"text_2", "Numbers such as 1"}},
      {{"text_1", "What?"}, {"text_2", {"Numbers such as 1", "x"}}},
      {{"text_1", {"What?", "a"}}, {"text_2", {"x", "x"}}},
      {{"query", "What?"}, {"documents", documents}},
      {{"query", "What?"}, {"documents", documents}, {"top_n", 2}, {"return_documents", true}},
      {{"input", {"What?", "x"}}},
      body("score", {{"model", "m"}, {"text_1", "What?"}, {"text_2", {"Numbers such as 1", "x"}}}),
      body("rerank", {{"model", "m"}, {"query", "What?"}, {"documents", documents}, {"top_n", 0}}),
      body("classify", {{"model", "m"}, {"input", "What?"}}),
      body("rerank", {{"query", "What?"}, {"documents", {"x", "x"}}, {"return_documents", false}}),
      body("score", {{"queries", "What?"}, {"documents", {"Numbers such as 1", "x"}}}),
      body("score", {{"data_1", {"What?"}}, {"data_2", "Numbers such as 1"}}),
      body("score", {{"queries", "What?"}, {"items", {"Numbers such as 1"}}}),
      body("rerank", {{"query", "What?"}, {"documents", "Numbers such as 1"}}),
      body("v2/rerank", {{"query", "What?"}, {"documents", "Numbers such as 1"}}),
      body("classify", {{"input", "Numbers such as 1"}, {"truncate_prompt_tokens", 4}, {"truncation_side", "right"}}),
      {{"input", "Numbers such as 1"}, {"truncate_prompt_tokens", 4}, {"truncation_side", "right"}}};
  const auto records = answers_to(lines, classifier_job("bert"));
  const json score = records[0]["score"];
  REQUIRE(score.is_number());
  REQUIRE(records[1]["scores"].size() == 2);
  CHECK(records[1]["scores"][0] == score);
  CHECK(records[2]["scores"][0] == records[1]["scores"][1]);
  const json& results = records[3]["results"];
  REQUIRE(results.size() == 4);
  for (size_t i = 1; i < 4; ++i) CHECK(results[i - 1]["relevance_score"] >= results[i]["relevance_score"]);
  for (const json& result : results) {
    CHECK(!result.contains("document"));
    if (result["index"] == 1) CHECK(result["relevance_score"] == score);
  }
  REQUIRE(records[4]["results"].size() == 2);
  for (const size_t i : {0, 1}) {
    json result = records[4]["results"][i];
    const json document = documents[result["index"].get<size_t>()];
    CHECK(result["document"]["text"] == (document.is_string() ? document : document["text"]));
    result.erase("document");
    CHECK(result == results[i]);
  }
  REQUIRE(records[5]["classes"].size() == 2);
  CHECK(records[5]["classes"][0]["label"] == "LABEL_0");
  const auto body_of = [&](size_t i) { return records[i]["response"]["body"]; };
  CHECK((body_of(6)["object"] == "list" && body_of(6)["data"][0]["object"] == "score"));
  CHECK((body_of(6)["data"][0]["score"] == score && body_of(6)["data"][1]["index"] == 1));
  REQUIRE_MESSAGE(body_of(7)["results"].size() == 4, body_of(7).dump());
  CHECK(body_of(7)["results"][0]["relevance_score"] == results[0]["relevance_score"]);
  CHECK(body_of(7)["results"][0]["document"]["text"].is_string());
  CHECK(body_of(7)["usage"]["total_tokens"] == records[3]["usage"]["prompt_tokens"]);
  CHECK((body_of(8)["data"][0]["label"] == "LABEL_0" && body_of(8)["data"][0]["num_classes"] == 1));
  CHECK(body_of(8)["data"][0]["probs"][0] == records[5]["classes"][0]["score"]);
  CHECK((body_of(9)["results"][0]["index"] == 0 && body_of(9)["results"][1]["index"] == 1));
  CHECK(!body_of(9)["results"][0].contains("document"));
  CHECK(body_of(10)["data"] == body_of(6)["data"]);
  for (const size_t i : {11, 12}) CHECK(body_of(i)["data"][0] == body_of(6)["data"][0]);
  CHECK(body_of(13)["results"][0]["relevance_score"] == score);
  CHECK(body_of(14)["results"] == body_of(13)["results"]);
  CHECK(body_of(15)["usage"]["prompt_tokens"] == 4);
  CHECK(body_of(15)["data"][0]["probs"][0] == records[16]["score"]);
}

TEST_CASE("what cannot be classified is an error of its line") {
  const auto body = [](const std::string& url, const json& members) {
    return json{{"custom_id", "a"}, {"method", "POST"}, {"url", url}, {"body", members}};
  };
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"text_1", "a"}}, "missing_field"},
      {{{"text_1", "a"}, {"text_2", json::array()}}, "invalid_value"},
      {{{"text_1", {"a", "b"}}, {"text_2", "c"}}, "invalid_value"},
      {{{"text_1", "a"}, {"text_2", ""}}, "invalid_value"},
      {{{"query", 5}, {"documents", {"a"}}}, "invalid_value"},
      {{{"query", "a"}, {"documents", ""}}, "invalid_value"},
      {{{"query", "a"}, {"documents", {"a", 5}}}, "invalid_value"},
      {{{"query", "a"}, {"documents", {"a"}}, {"top_n", -1}}, "invalid_value"},
      {{{"query", "a"}, {"documents", std::vector<std::string>(2049, "a")}}, "invalid_value"},
      {{{"prompt", "a"}, {"options", {"b"}}}, "unsupported_field"},
      {body("/v1/score", {{"text_1", "a"}}), "missing_field"},
      {body("/v1/score", {{"input", "a"}}), "unknown_field"},
      {body("/v1/score", {{"text_1", "a"}, {"queries", "a"}, {"documents", "b"}}), "invalid_value"},
      {body("/v1/score", {{"text_1", "a"}, {"text_2", "a"}, {"truncate_prompt_tokens", 0}}), "invalid_value"},
      {body("/v1/classify", {{"input", "a"}, {"truncation_side", "left"}}), "invalid_value"},
      {body("/v1/rerank", {{"queries", "a"}, {"documents", {"b"}}}), "unknown_field"},
      {body("/v1/rerank", {{"query", "a"}, {"documents", {"b"}}, {"top", 1}}), "unknown_field"},
      {body("/v1/embeddings", {{"input", "a"}}), "unsupported_url"},
      {body("/v1/completions", {{"prompt", "a"}}), "unsupported_url"}};
  std::vector<json> lines;
  for (const auto& [line, code] : cases) lines.push_back(line);
  const auto records = answers_to(lines, classifier_job("bert"));
  for (size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    CAPTURE(records[i].dump());
    const json& error = records[i].contains("response") ? records[i]["response"]["body"]["error"] : records[i]["error"];
    if (!cases[i].second.empty()) CHECK(error["code"] == cases[i].second);
  }
}

TEST_CASE("FAULTS 14: texts that a line gives twice are an error of the line") {
  const EngineJob job(R"({"text_1":"a","text_1":"b","text_2":"c"})" "\n"
                      R"({"input":"a","input":"b"})" "\n"
                      R"({"url":"/v1/rerank","method":"POST","custom_id":"x","body":{"query":"a","documents":["b"],)"
                      R"("query":"c"}})" "\n");
  REQUIRE(job.run(classifier_job("bert")).status.ok());
  const auto records = records_by_index(job.output());
  REQUIRE(records.size() == 3);
  for (const auto& [index, text] : records) {
    CAPTURE(text);
    CHECK(text.find("\"duplicate_field\"") != std::string::npos);
  }
}

TEST_CASE("a pair that is too long is an error, or the longer text is cut as transformers cuts it") {
  EngineJobOptions options = classifier_job("bert");
  const Tokenizer& tokenizer = *options.tokenizer;
  const std::string longer = "what is the capital of france and what of germany", shorter = "paris is it";
  const auto whole = tokenizer.encode_pair(longer, shorter, INT64_MAX, false).value();
  const auto one = tokenizer.encode(longer, false), two = tokenizer.encode(shorter, false);
  REQUIRE(whole.tokens.size() == one.size() + two.size() + 3);
  CHECK(whole.second_text == static_cast<int32_t>(one.size()) + 2);
  CHECK(whole.num_cut == 0);
  const auto size = static_cast<int64_t>(whole.tokens.size());
  for (int64_t most = 3; most < size; ++most) {
    CAPTURE(most);
    for (const bool cuts_left : {false, true}) {
      const auto cut = tokenizer.encode_pair(longer, shorter, most, cuts_left).value();
      CHECK(static_cast<int64_t>(cut.tokens.size()) == most);
      CHECK(cut.num_cut == size - most);
      const int64_t kept = cut.second_text - 2, room = most - 3;
      CHECK(kept == (static_cast<int64_t>(two.size()) <= room / 2 ? room - static_cast<int64_t>(two.size())
                                                                  : room - room / 2));
      const int64_t first = cuts_left ? static_cast<int64_t>(one.size()) - kept : 0;
      for (int64_t i = 0; i < kept; ++i) CHECK(cut.tokens[1 + i] == one[first + i]);
    }
  }
  options.scheduler.max_model_len = static_cast<int32_t>(size) - 1;
  const std::vector<json> lines = {{{"text_1", longer}, {"text_2", shorter}}};
  CHECK(answers_to(lines, options)[0]["error"]["code"] == "prompt_too_long");
  const auto refused = answers_to({{{"text_1", longer}, {"text_2", {"x", shorter}}},
                                   {{"text_1", longer}, {"text_2", {shorter, "x"}}},
                                   {{"query", longer}, {"documents", {"x", shorter}}},
                                   {{"input", {"x", longer + " " + longer}}},
                                   {{"text_1", longer}, {"text_2", shorter}}},
                                  options);
  const char* const names[] = {"text_2[1]", "text_2[0]", "documents[1]", "input[1]", "text_2"};
  for (size_t i = 0; i < refused.size(); ++i) {
    CHECK(refused[i]["error"]["param"] == names[i]);
    if (i < 4) CHECK(refused[i]["error"]["message"].get<std::string>().starts_with(names[i] + std::string(": ")));
  }
  options.defaults.prompt.truncate = TruncateSide::kRight;
  const json cut = answers_to(lines, options)[0];
  REQUIRE_MESSAGE(cut.contains("score"), cut.dump());
  CHECK(cut["usage"]["prompt_tokens"] == size - 1);
}

TEST_CASE("classification heads are read from config.json") {
  ModelConfig config;
  config.model_type = "bert";
  config.hidden_size = 8;
  const auto parse = [&](const json& members) {
    json object = {{"architectures", {"BertForSequenceClassification"}}};
    object.update(members);
    return parse_classifier(object.dump(), config);
  };
  CHECK((parse(json::object()).value().labels == std::vector<std::string>{"LABEL_0", "LABEL_1"}));
  CHECK(parse(json::object()).value().scores == Scores::kSoftmax);
  CHECK(parse({{"num_labels", 1}}).value().scores == Scores::kLogistic);
  const json one = {{"0", "relevant"}};
  CHECK((parse({{"id2label", one}}).value().labels == std::vector<std::string>{"relevant"}));
  const json as_is = {{"activation_fn", "torch.nn.modules.linear.Identity"}};
  CHECK(parse({{"id2label", one}, {"sentence_transformers", as_is}}).value().scores == Scores::kAsIs);
  CHECK(parse_classifier(json{{"architectures", {"BertForSequenceClassification"}}, {"id2label", one}}.dump(), config,
                         "torch.nn.modules.linear.Identity")
            .value()
            .scores == Scores::kAsIs);  // as config_sentence_transformers.json has it
  CHECK(parse({{"problem_type", "multi_label_classification"}}).value().scores == Scores::kLogistic);
  const std::vector<std::pair<json, std::string>> refused = {
      {{{"architectures", {"BertModel"}}}, "BertModel"},
      {{{"architectures", 5}}, "architectures"},
      {{{"id2label", {{"1", "a"}}}}, "id2label"},
      {{{"id2label", {{"0", 5}}}}, "id2label"},
      {{{"id2label", json::object()}}, "id2label"},
      {{{"num_labels", 0}}, "num_labels"},
      {{{"sbert_ce_default_activation_function", "torch.nn.ReLU"}}, "torch.nn.ReLU"}};
  for (const auto& [members, words] : refused) {
    CAPTURE(members.dump());
    CHECK(parse(members).status().message().find(words) != std::string::npos);
  }
}

}  // namespace
}  // namespace llmb::test
