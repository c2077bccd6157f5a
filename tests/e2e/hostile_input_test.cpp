// Input lines and model files that are wrong, by accident or on purpose, through the built program: FAULTS rows 14 to
// 22, 30 to 33, 35, 37 and 38.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/e2e/hostile_run.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Each bad line stands between two good ones; the good ones are answered as if the bad ones were not there.
std::vector<json> records_of_bad_lines(const std::vector<std::string>& bad_lines) {
  std::string input = kGood + "\n";
  for (const std::string& line : bad_lines) input += line + "\n" + kGood + "\n";
  const ProcessResult result = run_llm_batch({"--order", "input", "--no-metrics"}, input);
  CHECK(result.exit_code == 3);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == 2 * bad_lines.size() + 1);
  const json alone = answer(kGood);
  std::vector<json> bad;
  for (size_t i = 0; i < records.size(); ++i) {
    CHECK(records[i]["index"] == i);
    if (i % 2 == 1) bad.push_back(records[i]);
    else
      for (const char* field : {"text", "finish_reason", "usage", "hash"}) CHECK(records[i][field] == alone[field]);
  }
  return bad;
}

// The bundled model with one file replaced; the others are links to it.
void copy_model(const std::string& to, const std::string& except) {
  for (const auto& entry : fs::directory_iterator(kModel))
    if (entry.path().filename() != except) fs::create_symlink(entry.path(), fs::path(to) / entry.path().filename());
}

// One error line, code 4, nothing on stdout.
void check_model_refused(const std::string& dir, const std::string& part) {
  const ProcessResult result = run_process({kProgram, "-m", dir, "--progress", "none"}, kGood + "\n");
  INFO(result.err);
  CHECK(result.exit_code == 4);
  CHECK(result.out == "");
  CHECK(result.err.find("llm-batch: error: ") != std::string::npos);
  CHECK(result.err.find(part) != std::string::npos);
}

bool has_control_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7F; });
}

}  // namespace

TEST_CASE("FAULTS 14: a line that is no request costs one error record with the byte at fault") {
  const std::string lines[] = {
      "{broken",                                 // no JSON
      "{\"prompt\":\"\xFF\"}",                   // bad UTF-8
      R"({"prompt":"\ud83d"})",                  // lone surrogate
      std::string("{\"prompt\":\"a\0b\"}", 16),  // NUL
      R"({"prompt":true})",                      // a type that it cannot have
      R"({"max_tokens":3})",                     // no prompt
      R"({"prompt":"x","max_tokens":3,"max_tokens":4})",
      R"([{"prompt":"x"}])",
      "17",
      R"({"prompt":"x"} {"prompt":"y"})",
  };
  const auto records = records_of_bad_lines({std::begin(lines), std::end(lines)});
  const std::optional<int64_t> offsets[] = {1, 11, 11, 12, 10, std::nullopt, 42, 0, 0, 15};
  for (size_t i = 0; i < records.size(); ++i) {
    CAPTURE(records[i].dump());
    REQUIRE(records[i].contains("error"));
    const json& error = records[i]["error"];
    CHECK_FALSE(error["message"].get<std::string>().empty());
    CHECK(error["line"] == "-:" + std::to_string(2 * i + 2));
    if (offsets[i]) CHECK(error["byte_offset"] == *offsets[i]);
  }
}

TEST_CASE("FAULTS 15: byte order mark, CRLF, blank lines, U+2028 and no last newline; the index is the physical line") {
  const std::string input = "\xEF\xBB\xBF" + kGood + "\r\n\n \t\r\n" + kGood + "\r\n" +
                            "{\"prompt\":\"Once\xE2\x80\xA8upon\",\"max_tokens\":3}\n\n" + kGood;
  const ProcessResult result = run_llm_batch({"--order", "input"}, input);
  CHECK(result.exit_code == 0);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == 4);
  const int expected[] = {0, 3, 4, 6};
  for (int i = 0; i < 4; ++i) CHECK(records[i]["index"] == expected[i]);
  for (const int i : {1, 3}) {
    CHECK(records[i]["text"] == records[0]["text"]);
    CHECK(records[i]["hash"] == records[0]["hash"]);
  }
}

TEST_CASE("FAULTS 18: deep nesting, a million keys, a number of ten megabytes and 1e999 cost one line each") {
  std::string keys = R"({"prompt":5)";
  for (int i = 0; i < 1'000'000; ++i) keys += ",\"k" + std::to_string(i) + "\":0";
  const auto records = records_of_bad_lines(
      {repeat("[", 100'000), R"({"prompt":"x","a":)" + repeat("{\"a\":", 100'000), keys + "}",
       R"({"prompt":"x","max_tokens":)" + repeat("1", 10'000'000) + "}", R"({"prompt":"x","temperature":1e999})"});
  for (const json& record : records) CHECK(record["error"]["message"].get<std::string>().size() < 1000);
  CHECK(records[2]["error"]["param"] == "prompt");
  CHECK(records[3]["error"]["param"] == "max_tokens");
  CHECK(records[4]["error"]["param"] == "temperature");
}

TEST_CASE("FAULTS 19: ids may be repeated, missing, null, numbers or a megabyte; an object is an error") {
  const std::string ids[] = {
      "\"a\"", "\"a\"", "null", "17", "-1.50e2", "true", "\"" + std::string(1 << 20, 'i') + "\"", "\"\\u0000\\u00e9\""};
  std::string input = kGood + "\n";
  for (const std::string& id : ids) input += R"({"id":)" + id + R"(,"prompt":"Once","max_tokens":1})" + "\n";
  const ProcessResult result = run_ledger({"--order", "input"}, input);
  CHECK(result.exit_code == 0);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == std::size(ids) + 1);
  CHECK(records[0]["id"].is_null());
  for (size_t i = 0; i < std::size(ids); ++i) CHECK(records[i + 1]["id"] == json::parse(ids[i]));
  CHECK(records_of_bad_lines({R"({"id":{"a":1},"prompt":"x"})"})[0]["error"]["param"] == "id");
}

TEST_CASE("FAULTS 45: a prompt that cannot fit is refused without being encoded, unless it is to be cut") {
  const std::string words = repeat("word ", 1 << 20);
  const auto records = records_of_bad_lines({R"({"prompt":")" + words + "\"}",
                                             R"({"messages":[{"role":"user","content":")" + words + "\"}]}"});
  for (const json& record : records) {
    CHECK(record["error"]["code"] == "prompt_too_long");
    CHECK(record["error"]["message"].get<std::string>().starts_with("the prompt has at least "));
  }
  const json cut = answer(R"({"prompt":")" + words + R"(","max_tokens":1,"truncate_prompt_tokens":5})");
  CHECK(cut["usage"]["prompt_tokens"] == 5);
  CHECK(cut["usage"]["truncated_prompt_tokens"].get<int>() > 1 << 19);
}

TEST_CASE("FAULTS 20: values out of range are refused, naming the field") {
  struct Case {
    std::string line, param, code;
  };
  const auto prompt = [](const std::string& member) { return R"({"prompt":"x",)" + member + "}"; };
  const Case cases[] = {
      {R"({"prompt":")" + repeat("word ", 5000) + "\"}", "", "prompt_too_long"},
      {R"({"prompt":""})", "prompt", ""},
      {R"({"messages":[]})", "messages", ""},
      {R"({"prompt_token_ids":[]})", "prompt_token_ids", ""},
      {R"({"prompt_token_ids":[1536]})", "prompt_token_ids[0]", ""},
      {prompt(R"("max_tokens":0)"), "max_tokens", ""},
      {prompt(R"("max_tokens":-1)"), "max_tokens", ""},
      {prompt(R"("max_tokens":9223372036854775808)"), "max_tokens", ""},
      {prompt(R"("max_tokens":1.5)"), "max_tokens", ""},
      {prompt(R"("max_tokens":"5")"), "max_tokens", ""},
      {prompt(R"("temperature":-1)"), "temperature", ""},
      {prompt(R"("temperature":NaN)"), "temperature", "invalid_json"},
      {prompt(R"("top_p":0)"), "top_p", ""},
  };
  std::vector<std::string> lines;
  for (const Case& c : cases) lines.push_back(c.line);
  const auto records = records_of_bad_lines(lines);
  for (size_t i = 0; i < records.size(); ++i) {
    const json& error = records[i]["error"];
    CAPTURE(error.dump());
    if (!cases[i].param.empty()) CHECK(error["param"] == cases[i].param);
    if (!cases[i].code.empty()) CHECK(error["code"] == cases[i].code);
  }
}

TEST_CASE("FAULTS 21: a request that fits the context and not the KV pool is answered at once") {
  const std::string big = R"({"prompt":"Once upon a time","max_tokens":1000,"ignore_eos":true})";
  const ProcessResult result =
      run_llm_batch({"--order", "input", "--num-gpu-blocks-override", "9", "--block-size", "16"},
                    kGood + "\n" + big + "\n" + kGood + "\n");
  CHECK(result.exit_code == 3);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == 3);
  CHECK(records[1]["error"]["code"] == "kv_too_small");
  CHECK(records[1]["error"]["message"].get<std::string>().find("blocks, pool has ") != std::string::npos);
  CHECK(records[2]["text"] == records[0]["text"]);
}

TEST_CASE(
    "FAULTS 22: a hundred thousand failing lines end with 3, or with 11 where --max-errors says so; few log lines") {
  const std::string input = repeat("{\"prompt\":\n", 100'000);
  const ProcessResult all = run_ledger({}, input);
  CHECK(all.exit_code == 3);
  CHECK(std::count(all.out.begin(), all.out.end(), '\n') == 100'000);
  CHECK(std::count(all.err.begin(), all.err.end(), '\n') < 100);
  const ProcessResult stopped = run_ledger({"--max-errors", "10"}, input);
  CHECK(stopped.exit_code == 11);
  CHECK(std::count(stopped.out.begin(), stopped.out.end(), '\n') < 100'000);
  CHECK(stopped.err.find("--max-errors") != std::string::npos);
}

TEST_CASE("FAULTS 30 to 33 and 37: the program refuses a bad model with 4 and says which file") {
  const std::string config = read_file(kModel + "/config.json"), tokenizer = read_file(kModel + "/tokenizer.json");
  const auto refused = [](const std::string& name, const std::string& content, const std::string& part) {
    CAPTURE(name);
    const TemporaryDirectory dir;
    copy_model(dir.path(), name);
    write_file(dir.file(name), content);
    check_model_refused(dir.path(), part);
  };
  refused("model.safetensors", std::string(8, '\xFF') + "{}", "model.safetensors");
  json changed = json::parse(config);
  changed["vocab_size"] = 1537;
  refused("config.json", changed.dump(), "embed_tokens");
  changed["model_type"] = "mamba";
  refused("config.json", changed.dump(), "mamba");
  refused("config.json", "{", "config.json");
  refused("tokenizer.json", tokenizer.substr(0, tokenizer.size() / 2), "tokenizer.json");

  const TemporaryDirectory indexed;
  copy_model(indexed.path(), "model.safetensors");
  write_file(indexed.file("model.safetensors.index.json"), R"({"weight_map":{"a":"../x.safetensors"}})");
  check_model_refused(indexed.path(), "../x.safetensors");

  const TemporaryDirectory pickled;
  copy_model(pickled.path(), "model.safetensors");
  write_file(pickled.file("pytorch_model.bin"), "\x80\x02");
  check_model_refused(pickled.path(), "convert to safetensors");
}

TEST_CASE("FAULTS 35: a template that runs wild costs its lines, and never comes from a line") {
  const TemporaryDirectory dir;
  copy_model(dir.path(), "chat_template.jinja");
  write_file(dir.file("chat_template.jinja"),
             "{% if messages[0].content == 'loop' %}{% for i in range(1000000000) %}{% endfor %}"
             "{% elif messages[0].content == 'raise' %}{{ raise_exception('no \x1b[31m') }}"
             "{% else %}{{ messages[0].content }}{% endif %}");
  const auto line = [](const std::string& content, const std::string& more = "") {
    return R"({"messages":[{"role":"user","content":")" + content + "\"}],\"max_tokens\":2" + more + "}\n";
  };
  const ProcessResult result =
      run_process({kProgram, "-m", dir.path(), "--progress", "none", "--order", "input"},
                  line("Once") + line("loop") + line("raise") + line("Once", R"(,"chat_template":"{{ 'mine' }}")") +
                      line("Once") + line("{{ 7 * 7 }}"));
  CHECK(result.exit_code == 3);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == 6);
  CHECK(records[1]["error"]["code"] == "template_error");
  CHECK(records[2]["error"]["code"] == "template_error");
  CHECK(records[3]["error"]["param"] == "chat_template");
  CHECK(records[4]["text"] == records[0]["text"]);
  CHECK(records[5].contains("text"));
  CHECK_FALSE(has_control_characters(result.err));

  write_file(dir.file("chat_template.jinja"), "{{ messages | shell }}");
  const ProcessResult unknown = run_process({kProgram, "-m", dir.path(), "--progress", "none"}, line("Once"));
  CHECK((unknown.exit_code == 4 || unknown.exit_code == 3));
  CHECK((unknown.err + unknown.out).find("shell") != std::string::npos);
}

TEST_CASE("FAULTS 36: a line that asks for an adapter, by name or by path, costs that line, and no file is opened") {
  const TemporaryDirectory dir;
  const std::string path = dir.file("pipe");  // opening it would block
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  const std::string quoted = nlohmann::json(path).dump();
  const ProcessResult result =
      run_llm_batch({"--max-tokens", "2"}, R"({"prompt":"a"})"
                                           "\n"
                                           R"({"prompt":"a","adapter":)" +
                                               quoted + "}\n" + R"({"prompt":"a","lora":"name"})" + "\n" +
                                               R"({"prompt":"a","lora_request":{"lora_path":)" + quoted + "}}\n" +
                                               R"({"prompt":"a"})" + "\n");
  CHECK(result.exit_code == 3);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == 5);
  const char* const fields[] = {nullptr, "adapter", "lora", "lora_request", nullptr};
  for (const auto& record : records) {
    const char* const field = fields[record["index"].get<size_t>()];
    if (field == nullptr) {
      CHECK(record.contains("text"));
      continue;
    }
    CHECK(record["error"]["code"] == (field == std::string("adapter") ? "unknown_adapter" : "unsupported_field"));
    CHECK(record["error"]["param"] == field);
  }
}

TEST_CASE("FAULTS 38: control characters in lines and names are escaped on stderr") {
  const TemporaryDirectory dir;
  const std::string name = dir.file("in\x1b[31m\r\x07.jsonl");
  const ProcessResult missing = run_llm_batch({name});
  CHECK(missing.exit_code == 5);
  CHECK_FALSE(has_control_characters(missing.err));
  CHECK(missing.err.find("\\x1b[31m") != std::string::npos);

  write_file(name, "{\"prompt\":\"x\",\"max_tokens\":\"\x1b[2J\"}\n{\"\x1b]0;title\x07\":1,\"prompt\":5}\n" +
                       std::string(R"({"prompt":"x","temprature\u001b[2J":1,"max_token":"\u001b[2J"})") + "\n");
  const ProcessResult bad = run_llm_batch({"--dry-run", name});
  CHECK(bad.exit_code == 3);
  CHECK_FALSE(has_control_characters(bad.err));
  CHECK_FALSE(has_control_characters(run_llm_batch({name}).out));

  const ProcessResult model = run_process({kProgram, "-m", dir.file("m\x1b[31m\n")}, kGood);
  CHECK(model.exit_code == 4);
  CHECK_FALSE(has_control_characters(model.err));
}

}  // namespace llmb::test
