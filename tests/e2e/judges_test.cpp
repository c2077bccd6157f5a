// Models that judge pairs of texts by one word, as Qwen3-Reranker does: the built program gives the scores of transformers
// and sentence-transformers (tools/golden/make_golden_judges.py), whatever the schedule.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "tests/e2e/run.h"
#include "tests/support/golden.h"

namespace llmb::test {

using nlohmann::json;

namespace {

const std::string kJudges = source_dir() + "/data/fixtures/judges/";

// The first one's files do not say that it judges.
std::vector<std::string> flags_of(const std::string& name) {
  return name == "published" ? std::vector<std::string>{"--classifier-from-token", "no,yes"} : std::vector<std::string>{};
}

ProcessResult run_judge(const std::string& name, const std::vector<std::string>& more, const std::string& lines) {
  std::vector<std::string> argv = {kProgram,  "-m",   kJudges + name, "--progress", "none",        "--task",
                                   "classify", "--order", "input",     "--dtype",    "float32",
                                   "--kv-cache-dtype", "float32"};
  return run_process(with(with(argv, flags_of(name)), more), lines);
}

std::string to_lines(const std::vector<json>& lines) {
  std::string text;
  for (const json& line : lines) text += line.dump() + "\n";
  return text;
}

std::vector<json> scores_of(const std::string& name, const std::vector<json>& lines,
                            const std::vector<std::string>& more = {}) {
  const ProcessResult result = run_judge(name, with(more, {"--no-metrics"}), to_lines(lines));
  CHECK_MESSAGE((result.exit_code == 0 || result.exit_code == 3), result.err);
  std::vector<json> records = parse_lines(result.out);
  REQUIRE(records.size() == lines.size());
  return records;
}

bool is_near(const json& actual, const json& expected) {
  const double a = actual, b = expected;
  return std::fabs(a - b) <= 2e-5 * std::max(1.0, std::fabs(b));
}

// A line for each pair of the golden file.
std::vector<json> golden_lines(const std::vector<json>& golden) {
  std::vector<json> lines;
  for (const json& pair : golden) {
    json line = {{"text_1", pair["query"]}, {"text_2", pair["document"]}};
    for (const char* name : {"prompt_name", "instruction"})
      if (!pair[name].is_null()) line[name] = pair[name];
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

TEST_CASE("scores of pairs equal transformers' and sentence-transformers', and are the same bytes in every schedule") {
  for (const std::string name : {"published", "modules"}) {
    CAPTURE(name);
    const std::vector<json> golden = read_json_lines(kJudges + name + "/golden.jsonl");
    REQUIRE(golden.size() >= 11);
    const std::vector<json> lines = golden_lines(golden), records = scores_of(name, lines);
    for (size_t i = 0; i < golden.size(); ++i) {
      CAPTURE(golden[i].dump());
      CAPTURE(records[i].dump());
      CHECK(records[i]["usage"]["prompt_tokens"] == golden[i]["num_tokens"]);
      CHECK(is_near(records[i]["score"], golden[i]["score"]));
    }
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{"--max-num-seqs", "1"}, {"--max-num-batched-tokens", "16", "--block-size", "8"},
          {"--no-enable-prefix-caching"}, {"--workers", "2"}, {"--threads", "1", "--schedule", "file"}})
      CHECK(scores_of(name, lines, more) == records);
  }
}

TEST_CASE("lines for /v1/rerank and /v1/score rank documents by these scores") {
  const std::vector<json> golden = read_json_lines(kJudges + "modules/golden.jsonl");
  const auto body = [](const std::string& url, const json& members) {
    return json{{"custom_id", "a"}, {"method", "POST"}, {"url", "/v1/" + url}, {"body", members}};
  };
  json documents = json::array(), texts = json::array();
  for (const json& pair : golden) documents.push_back(pair["document"]), texts.push_back(golden[0]["query"]);
  const std::vector<json> records = scores_of(
      "modules", {body("rerank", {{"model", "m"}, {"query", texts[0]}, {"documents", documents}, {"prompt_name", "news"}}),
                  {{"query", texts[0]}, {"documents", documents}, {"prompt_name", "news"}, {"top_n", 2}},
                  body("score", {{"model", "m"}, {"text_1", texts}, {"text_2", documents}, {"prompt_name", "news"}}),
                  {{"query", texts[0]}, {"documents", documents}, {"instruction", "Is the document news about the query?"}}});
  const json& results = records[0]["response"]["body"]["results"];
  REQUIRE(results.size() == documents.size());
  const json& data = records[2]["response"]["body"]["data"];
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) CHECK(results[i - 1]["relevance_score"] >= results[i]["relevance_score"]);
    CHECK(results[i]["relevance_score"] == data[results[i]["index"].get<size_t>()]["score"]);
    CHECK(results[i]["document"]["text"] == documents[results[i]["index"].get<size_t>()]);
  }
  REQUIRE(records[1]["results"].size() == 2);
  CHECK(records[1]["results"][0]["index"] == results[0]["index"]);
  CHECK(records[1]["results"][1]["relevance_score"] == results[1]["relevance_score"]);
  CHECK(records[3]["results"].size() == results.size());
  CHECK(records[3]["results"][0]["relevance_score"] == results[0]["relevance_score"]);
}

TEST_CASE("a document that is too long is cut, and what asks for the word stays") {
  for (const std::string name : {"published", "modules"}) {
    CAPTURE(name);
    std::string words;
    for (int i = 0; i < 300; ++i) words += "number " + std::to_string(i) + " ";
    const json line = {{"text_1", "numbers"}, {"text_2", words}};
    CHECK(scores_of(name, {line})[0]["error"]["code"] == "prompt_too_long");
    const json right = scores_of(name, {line}, {"--truncate", "right"})[0],
               left = scores_of(name, {line}, {"--truncate", "left"})[0];
    for (const json& cut : {right, left}) {
      CHECK(cut["usage"]["prompt_tokens"] == 511);
      CHECK(cut["usage"]["truncated_prompt_tokens"] > 100);
    }
    CHECK(right["score"] != left["score"]);
  }
}

TEST_CASE("what a line may not ask of a judge, and a model that is none, are refused by name") {
  const std::vector<json> records = scores_of(
      "modules", {{{"prompt", "a text by itself"}},
                  {{"input", "a text by itself"}},
                  {{"text_1", "a"}, {"text_2", "b"}, {"prompt_name", "other"}},
                  {{"text_1", "a"}, {"text_2", "b"}, {"instruction", ""}}});
  CHECK(records[0]["error"]["message"].get<std::string>().find("judges pairs") != std::string::npos);
  CHECK(records[1]["error"]["message"].get<std::string>().find("judges pairs") != std::string::npos);
  CHECK(records[2]["error"]["message"].get<std::string>().find("one of code, news") != std::string::npos);
  CHECK(records[3]["error"]["param"] == "instruction");
  const auto refusal = [](const std::string& model, const std::vector<std::string>& more) {
    const ProcessResult result =
        run_process(with({kProgram, "-m", model, "--progress", "none", "--task", "classify"}, more), "{\"text_1\":\"a\"}\n");
    CHECK(result.exit_code != 0);
    return result.err;
  };
  CHECK(refusal(kJudges + "published", {}).find("--classifier-from-token no,yes") != std::string::npos);
  CHECK(refusal(kJudges + "published", {"--classifier-from-token", "no,perhaps"}).find("\"perhaps\" is no token") !=
        std::string::npos);
  CHECK(refusal(source_dir() + "/data/fixtures/models/gemma2", {"--tokenizer", kModel, "--classifier-from-token", "a,b"})
            .find("scaled or capped") != std::string::npos);
}

TEST_CASE("a judged job is continued, and refused where the words or the prompts differ") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl"), model = dir.file("model");
  namespace fs = std::filesystem;
  fs::copy(kJudges + "modules", model, fs::copy_options::recursive);
  const std::vector<json> lines = golden_lines(read_json_lines(kJudges + "modules/golden.jsonl"));
  write_file(in, to_lines({lines[0], lines[1]}));
  const auto run = [&](const std::vector<std::string>& more) {
    return run_process(with({kProgram, "-m", model, "--progress", "none", "--task", "classify", in, "-o", out}, more));
  };
  CHECK(run({}).exit_code == 0);
  write_file(in, to_lines(lines));
  CHECK(run({"--classifier-from-token", "yes,no"}).exit_code == 7);
  const std::string prompts = read_file(model + "/config_sentence_transformers.json");
  write_file(model + "/config_sentence_transformers.json",
             "{\"prompts\":{\"news\":\"other\",\"code\":\"Is it code?\"},\"activation_fn\":\"torch.nn.modules.linear.Identity\"}");
  CHECK(run({}).exit_code == 7);
  write_file(model + "/config_sentence_transformers.json", prompts);
  CHECK(run({}).exit_code == 0);
  CHECK(parse_lines(read_file(out)).size() == lines.size());
}

}  // namespace llmb::test
