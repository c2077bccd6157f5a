// Every form of input line, every kind of input, through the built program.
#include <doctest/doctest.h>

#include <ctime>
#include <filesystem>
#include <regex>
#include <set>

#include "tests/e2e/run.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace {
const std::string kQuestion = R"({"messages":[{"role":"user","content":"What is 70 + 80?"}]})";
}

TEST_CASE("messages, a prompt and token ids are answered with the documented fields") {
  const auto chat = answer(kQuestion);
  CHECK(chat["text"] == "70 + 80 = 150");
  CHECK(chat["finish_reason"] == "stop");
  CHECK(chat["index"] == 0);
  CHECK(chat["id"].is_null());
  CHECK(chat["usage"]["completion_tokens"] > 1);
  CHECK(chat["usage"]["total_tokens"] ==
        chat["usage"]["prompt_tokens"].get<int>() + chat["usage"]["completion_tokens"].get<int>());
  for (const char* name : {"queue_ms", "ttft_ms", "tpot_ms", "e2e_ms", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms"}) {
    INFO(name);
    REQUIRE(chat["metrics"].contains(name));
    CHECK(chat["metrics"][name].get<double>() >= 0);
  }
  CHECK(chat["metrics"]["num_preemptions"] == 0);

  const auto story = answer(R"({"id": 7, "prompt": "Once upon a time", "max_tokens": 12})");
  CHECK(story["id"] == 7);
  CHECK(story["usage"]["completion_tokens"] == 12);
  CHECK(story["finish_reason"] == "length");
  CHECK(story["text"].get<std::string>().size() > 10);

  const auto ids =
      answer(R"({"prompt_token_ids": [40, 41, 42], "max_tokens": 3, "return_token_ids": true, "ignore_eos": true})");
  CHECK(ids["usage"]["prompt_tokens"] == 3);
  CHECK(ids["token_ids"].size() == 3);
}

TEST_CASE("an encoder gives vectors and scores, the same bytes with workers, and is refused where it would answer") {
  const std::string fixtures = source_dir() + "/data/fixtures/";
  const auto run = [&](const std::string& model, const std::string& task, const std::string& lines,
                       const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {kProgram,  "-m",    fixtures + model, "--task",    task,
                                          "--order", "input", "--no-metrics",   "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_process(arguments, lines);
  };
  const std::string text = R"({"input":"What is the capital of France?"})" "\n";
  const std::string pairs = R"({"text_1":"What?","text_2":["a","Paris"]})" "\n"
                            R"({"query":"What?","documents":["a","Paris"]})" "\n";
  const ProcessResult vectors = run("encoders/bert", "embed", text);
  CHECK_MESSAGE(vectors.exit_code == 0, vectors.err);
  CHECK(parse_lines(vectors.out)[0]["embedding"].size() == 32);
  CHECK(vectors.err.find("the mean of all tokens' states, scaled to a length of 1") != std::string::npos);
  const ProcessResult scores = run("classifiers/bert", "classify", text + pairs + text);
  CHECK_MESSAGE(scores.exit_code == 0, scores.err);
  const auto records = parse_lines(scores.out);
  REQUIRE(records.size() == 4);
  CHECK(records[0]["label"] == "LABEL_0");
  CHECK(records[1]["scores"].size() == 2);
  CHECK(records[2]["results"][0]["relevance_score"] >= records[2]["results"][1]["relevance_score"]);
  CHECK(run("classifiers/bert", "classify", text + pairs + text, {"--workers", "2"}).out == scores.out);
  const std::pair<ProcessResult, std::string> refused[] = {
      {run("encoders/bert", "generate", text), "is an encoder, which gives no answers; use --task embed"},
      {run("encoders/bert", "score", text), "is an encoder"},
      {run("encoders/bert", "classify", text), "ForSequenceClassification"},
      {run("classifiers/bert", "embed", text), "--pooling mean or cls"}};
  for (const auto& [result, words] : refused) {
    CHECK(result.exit_code == 4);
    CHECK_MESSAGE(result.err.find(words) != std::string::npos, result.err);
  }
  CHECK(run("classifiers/bert", "embed", text, {"--pooling", "cls"}).exit_code == 0);
}

TEST_CASE("outputs of vectors and scores grow with their input and merge, as others do") {
  const std::string fixtures = source_dir() + "/data/fixtures/";
  const std::string text = R"({"input":"What is the capital of France?"})" "\n" R"({"input":["a","b c"]})" "\n";
  const std::string pairs = R"({"text_1":"What?","text_2":"a"})" "\n"
                            R"({"text_1":"What?","text_2":["a","b"]})" "\n"
                            R"({"query":"What?","documents":["a","Paris"]})" "\n";
  const std::string scored = R"({"prompt":"Once upon a time"})" "\n"
                             R"({"prompt":"Once","options":[" upon"," a"]})" "\n";
  const struct {
    std::string model, task, lines;
  } jobs[] = {{fixtures + "encoders/bert", "embed", text},
              {fixtures + "classifiers/bert", "classify", text + pairs},
              {source_dir() + "/data/model", "score", scored}};
  for (const auto& [model, task, lines] : jobs) {
    CAPTURE(task);
    const TempDir dir;
    const auto run = [&](const std::string& output, const std::vector<std::string>& more = {}) {
      std::vector<std::string> arguments = {kProgram, "-m",         model,     "--task", task,
                                            "-o",     dir / output, "--order", "input",  "--no-metrics",
                                            "--threads", "1",       dir / "in.jsonl"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      return run_process(arguments, "");
    };
    write_file(dir / "in.jsonl", lines + lines);
    CHECK(run("whole.jsonl").exit_code == 0);
    for (const std::string shard : {"0", "1"}) CHECK(run("s" + shard, {"--shard", shard + "/2"}).exit_code == 0);
    const ProcessResult merged = run_process(
        {kProgram, "merge", dir / "merged.jsonl", dir / "s0", dir / "s1", "--order", "input"}, "");
    CHECK_MESSAGE(merged.exit_code == 0, merged.err);
    CHECK(read_file(dir / "merged.jsonl") == read_file(dir / "whole.jsonl"));
    write_file(dir / "in.jsonl", lines);
    CHECK(run("grown.jsonl").exit_code == 0);
    write_file(dir / "in.jsonl", lines + lines);
    const ProcessResult grown = run("grown.jsonl");
    CHECK_MESSAGE(grown.exit_code == 0, grown.err);
    CHECK(read_file(dir / "grown.jsonl") == read_file(dir / "whole.jsonl"));
  }
}

TEST_CASE("the default prompt of sentence-transformers files stands in front of texts that are embedded") {
  const TempDir dir;
  std::filesystem::copy(source_dir() + "/data/fixtures/encoders/bert", dir.path(),
                        std::filesystem::copy_options::recursive);
  const auto run = [&](const std::string& lines, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {kProgram,  "-m",    dir.path(),     "--task",    "embed",
                                          "--order", "input", "--no-metrics", "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_process(arguments, lines);
  };
  const std::string plain = R"({"input":"the capital"})" "\n" R"({"input":["a",[5,6]]})" "\n";
  const std::string prompted = R"({"input":"query: the capital"})" "\n" R"({"input":["query: a",[5,6]]})" "\n";
  const auto expected = parse_lines(run(prompted, {}).out);
  write_file(dir / "in.jsonl", plain);
  const std::vector<std::string> to_file = {dir / "in.jsonl", "-o", dir / "out.jsonl"};
  CHECK(run("", to_file).exit_code == 0);
  write_file(dir / "config_sentence_transformers.json",
             R"({"prompts": {"query": "query: "}, "default_prompt_name": "query"})");
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--workers", "2"}}) {
    const auto records = parse_lines(run(plain, more).out);
    REQUIRE(records.size() == 2);
    CHECK(records[0]["embedding"] == expected[0]["embedding"]);
    CHECK(records[1]["embeddings"] == expected[1]["embeddings"]);
  }
  const ProcessResult refused = run("", to_file);
  CHECK(refused.exit_code == 7);
  CHECK(refused.err.find("text_prompt") != std::string::npos);
}

TEST_CASE("OpenAI batch lines are answered in the OpenAI batch form") {
  const std::string chat =
      R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":)"
      R"([{"role":"user","content":"What is 70 + 80?"}],"max_tokens":32}})";
  const std::string text =
      R"({"custom_id":"b","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"Once upon a time"}})";
  const std::string bad =
      R"({"custom_id":"c","method":"POST","url":"/v1/embeddings","body":{"model":"m","input":"x"}})";
  const ProcessResult result = run_llm_batch({"--order", "input"}, chat + "\n" + text + "\n" + bad + "\n");
  CHECK(result.exit_code == 3);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == 3);
  CHECK(records[0]["custom_id"] == "a");
  CHECK(records[0]["error"].is_null());
  CHECK(records[0]["response"]["status_code"] == 200);
  const auto& body = records[0]["response"]["body"];
  CHECK(body["object"] == "chat.completion");
  CHECK(body["model"] == "m");
  CHECK(body["choices"][0]["message"]["role"] == "assistant");
  CHECK(body["choices"][0]["message"]["content"] == "70 + 80 = 150");
  CHECK(body["choices"][0]["finish_reason"] == "stop");
  CHECK(records[0].contains("metrics"));
  // OpenAI's default for completions.
  CHECK(records[1]["response"]["body"]["usage"]["completion_tokens"] == 16);
  CHECK(records[1]["response"]["body"]["object"] == "text_completion");
  CHECK(records[2]["custom_id"] == "c");
  CHECK(records[2]["error"].is_null());  // it has a response
  CHECK(records[2]["response"]["status_code"] == 400);
  CHECK(records[2]["response"]["body"]["error"]["line"] == "-:3");
}

TEST_CASE("OpenAI answers have ids of their own, the same in every run of the job, and say when it began") {
  std::string input;
  for (int i = 0; i < 6; ++i)  // equal lines, and one that is an error
    input += R"({"custom_id":"a","method":"POST","url":"/v1/)" + std::string(i == 3 ? "embeddings" : "completions") +
             R"(","body":{"model":"m","prompt":"Once","max_tokens":2}})" + "\n";
  const size_t two_lines = input.find('\n', input.find('\n') + 1) + 1;
  const TemporaryDirectory dir;
  const std::string in = dir.file("in"), out = dir.file("out"), manifest = out + ".manifest.json";
  const auto run = [&](std::vector<std::string> more, const std::string& text) {
    write_file(in, text);
    more.insert(more.end(), {in, "-o", out, "--order", "input", "--metrics", "none"});
    return run_llm_batch(more).exit_code;
  };
  const auto before = static_cast<int64_t>(time(nullptr));
  REQUIRE(run({}, input.substr(0, two_lines)) == 0);
  const auto created = nlohmann::json::parse(read_file(manifest))["created"].get<int64_t>();
  CHECK(created >= before);
  CHECK(created <= static_cast<int64_t>(time(nullptr)));
  auto old = nlohmann::ordered_json::parse(read_file(manifest));
  old["created"] = 1234567890;  // as if the job had begun then
  write_file(manifest, old.dump());
  REQUIRE(run({}, input) == 3);
  CHECK(nlohmann::json::parse(read_file(manifest))["created"] == 1234567890);
  const auto records = parse_lines(read_file(out));
  const auto streamed = parse_lines(run_llm_batch({"--order", "input", "--no-metrics"}, input).out);
  const auto other_seed = parse_lines(run_llm_batch({"--order", "input", "--seed", "1"}, input).out);
  REQUIRE(records.size() == 6);
  REQUIRE(streamed.size() == 6);
  std::set<std::string> ids;
  for (size_t i = 0; i < 6; ++i) {
    CAPTURE(i);
    const std::string id = records[i]["id"].get<std::string>().substr(10);
    CHECK(id.size() == 32);
    CHECK(records[i]["id"] == "batch_req_" + id);
    CHECK(records[i]["response"]["request_id"] == "req_" + id);
    CHECK(ids.insert(id).second);
    CHECK(streamed[i]["id"] == records[i]["id"]);
    CHECK(other_seed[i]["id"] != records[i]["id"]);
    const auto &body = records[i]["response"]["body"], &streamed_body = streamed[i]["response"]["body"];
    CHECK(records[i]["error"].is_null());
    if (i == 3) continue;
    CHECK(body["id"] == "cmpl-" + id);
    CHECK(body["created"] == (i < 2 ? created : 1234567890));
    CHECK(streamed_body["created"] == 0);
  }
  CHECK(run({"--retry-errors"}, input) == 3);  // found again
  CHECK(parse_lines(read_file(out))[3]["id"] == records[3]["id"]);
}

TEST_CASE("each line is recognised by itself and a bad line costs one line") {
  const std::string input = kQuestion + "\n{broken\n\n" + R"({"prompt": "Once", "max_tokens": 2})" + "\n" +
                            R"({"prompt": "x", "max_tokens": 0})" + "\n";
  const ProcessResult result = run_llm_batch({"--order", "input"}, input);
  CHECK(result.exit_code == 3);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == 4);
  CHECK(records[0]["text"] == "70 + 80 = 150");
  CHECK(records[1]["index"] == 1);
  CHECK(records[1]["error"]["byte_offset"].is_number());
  CHECK(records[2]["index"] == 3);  // physical lines: the blank one counts
  CHECK(records[2]["usage"]["completion_tokens"] == 2);
  CHECK(records[3]["error"]["param"] == "max_tokens");
}

TEST_CASE("an empty input is an empty output") {
  for (const char* input : {"", "\n", " \n\n"}) {
    const ProcessResult result = run_llm_batch({}, input);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK(result.out == "");
  }
}

TEST_CASE("several files, gzip, zstd and stdin are read in order") {
  const TemporaryDirectory dir;
  write_file(dir.file("a.jsonl"), R"({"id":"a","prompt":"Once","max_tokens":2})");
  write_file(dir.file("b.jsonl"), "{\"id\":\"b\",\"prompt\":\"Once\",\"max_tokens\":2}\r\n");
  write_file(dir.file("c.jsonl"), "\xEF\xBB\xBF{\"id\":\"c\",\"prompt\":\"Once\",\"max_tokens\":2}\n");
  REQUIRE(run_shell("cd " + dir.path() +
                    " && gzip b.jsonl && (command -v zstd >/dev/null && zstd -q --rm c.jsonl || gzip c.jsonl)")
              .exit_code == 0);
  const bool has_zstd = read_file(dir.file("c.jsonl.zst")) != "";
  const ProcessResult result = run_llm_batch({"--order", "input", dir.file("a.jsonl"), dir.file("b.jsonl.gz"),
                                              dir.file(has_zstd ? "c.jsonl.zst" : "c.jsonl.gz"), "-"},
                                             R"({"id":"d","prompt":"Once","max_tokens":2})");
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == 4);
  for (int i = 0; i < 4; ++i) {
    CHECK(records[i]["id"] == std::string(1, "abcd"[i]));
    CHECK(records[i]["index"] == i);
    CHECK(records[i]["text"] == records[0]["text"]);
  }
}

TEST_CASE("a dry run checks every line, counts tokens and writes nothing") {
  const TemporaryDirectory dir;
  const std::string out = dir.file("out.jsonl");
  const ProcessResult good = run_llm_batch({"--dry-run", "-o", out}, kQuestion + "\n");
  CHECK(good.exit_code == 0);
  CHECK(good.err.find("1 lines ok, 0 bad") != std::string::npos);
  CHECK(good.err.find("forecast: 1 row, ") != std::string::npos);
  CHECK(good.err.find("time not known, no run was measured") != std::string::npos);
  const ProcessResult bad = run_llm_batch({"--dry-run", "-o", out}, kQuestion + "\n{\"prompt\":5}\n");
  CHECK(bad.exit_code == 3);
  CHECK(bad.err.find("-:2: ") != std::string::npos);
  CHECK(run_shell("ls " + dir.path()).out == "");
}

TEST_CASE("a run leaves what steps cost beside its weights, by which a dry run forecasts time and money") {
  const TemporaryDirectory dir;
  const std::string input = kQuestion + "\n" + kQuestion + "\n";
  const std::vector<std::string> flags = {"--weight-cache", dir.path(), "--max-tokens", "20", "--ignore-eos", "--price-per-hour", "3600"};
  std::vector<std::string> run_flags = {kProgram, "-m", kModel};
  run_flags.insert(run_flags.end(), flags.begin(), flags.end());
  const ProcessResult run = run_process(run_flags, input);
  CHECK(run.exit_code == 0);
  CHECK(run.err.find("\nforecast  2 rows, ") != std::string::npos);
  CHECK(run.err.find(" in 1 row equal to another), 20 output tokens; KV ") != std::string::npos);
  std::vector<std::string> dry = flags;
  dry.emplace_back("--dry-run");
  const ProcessResult forecast = run_llm_batch(dry, input);
  CHECK(std::regex_search(forecast.err, std::regex(R"(, which fits; ([0-9.]+) s, costs [0-9.e-]+, as measured on cpu)")));
  // A file that cannot be read counts as none.
  const std::string file = run_shell("ls " + dir.path() + "/*.steps.json").out;
  write_file(file.substr(0, file.size() - 1), "{\"device\":5}");
  const ProcessResult unknown = run_llm_batch(dry, input);
  CHECK(unknown.exit_code == 0);
  CHECK(unknown.err.find("time not known") != std::string::npos);
}

TEST_CASE("arrivals can be simulated by rate or by a field") {
  std::string input;
  for (int i = 0; i < 4; ++i)
    input += R"({"prompt":"Once","max_tokens":2,"arrival_ms":)" + std::to_string(i * 500) + "}\n";
  const auto by_field = parse_lines(run_llm_batch({}, input).out);
  REQUIRE(by_field.size() == 4);
  // Counted from the start of the run it would be 1500.
  CHECK(by_field[3]["metrics"]["queue_ms"].get<double>() < 1500);
  const ProcessResult by_rate = run_llm_batch({"--request-rate", "50"}, input);
  CHECK(parse_lines(by_rate.out).size() == 4);
}

}  // namespace llmb::test
