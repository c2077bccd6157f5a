// Prompts that cannot fit: refused before the parser copies them, with the record that any other error gets.
#include <random>

#include "base/utf8.h"
#include "engine/request_preparer.h"
#include "io/long_strings.h"
#include "tests/support/source_dir.h"
#include "tests/support/tokenizer_fixtures.h"
#include "tests/unit/parsed_line.h"

namespace llmb {

using namespace test;

namespace {

constexpr size_t kMegabyte = 1 << 20;

// One token for every 16 bytes, a context of 1,000.
RequestLimits limits() {
  RequestLimits limits;
  limits.prompt.max_model_len = 1000;
  limits.prompt.num_tokens_at_least = [](std::string_view text) { return (text.size() + 15) / 16; };
  return limits;
}

std::string words(size_t num_bytes) {
  std::string text;
  while (text.size() < num_bytes) text += "words ";
  return text;
}

std::string user(const std::string& content) { return R"([{"role":"user","content":)" + content + "}]"; }

}  // namespace

TEST_CASE("a large prompt that cannot fit is refused in every form, with its id, name and place") {
  const std::string text = "\"" + words(2 * kMegabyte) + "\"";
  for (const std::string& line :
       {R"({"id":7,"prompt":)" + text + "}", R"({"prompt":)" + text + R"(,"id":7})", R"({"id":7,"prompt":[)" + text + "]}",
        R"({"notes":)" + text + R"(,"id":7,"prompt":)" + text + "}"}) {
    const ParseFailure failure = refused(line, {}, limits());
    CHECK(failure.error.code == "prompt_too_long");
    CHECK(failure.error.param == "prompt");
    CHECK(contains(failure.error.message, "at least 13"));  // 131,072 and less for the pieces
    CHECK(failure.id_json == "7");
    CHECK(failure.line.index == 3);
    CHECK(!failure.is_chat);
    CHECK(failure.error.byte_offset.has_value());
  }
  const ParseFailure batch = refused(
      R"({"custom_id":"c-1","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":)" + text + "}}", {}, limits());
  CHECK(batch.error.code == "prompt_too_long");
  CHECK(batch.form == ApiForm::kOpenAiCompletion);
  CHECK(batch.id_json == "\"c-1\"");
  CHECK(batch.model_name == "m");
}

TEST_CASE("a conversation is refused for a text that every template shows, and for no other") {
  const std::string text = words(2 * kMegabyte), quoted = "\"" + text + "\"";
  const std::string part = R"([{"type":"text","text":"short"},{"type":"text","text":)" + quoted + "}]";
  for (const std::string& messages : {user(quoted), user(part), R"([{"role":"system","content":)" + quoted + "}," + user("\"hi\"").substr(1)}) {
    CHECK(refused(chat("", messages), {}, limits()).error.code == "prompt_too_long");
    CHECK(refused(chat("", messages), {}, limits()).is_chat);
    CHECK(refused(R"({"messages":)" + messages + "}", {}, limits()).error.param == "messages");
  }
  // Templates leave out what an assistant thought, though not everything, and trim.
  RequestLimits large = limits();
  large.prompt.max_model_len = 20'000;
  const std::string thought = R"([{"role":"user","content":"a"},{"role":"assistant","content":)" + quoted + "}," + user("\"b\"").substr(1);
  CHECK(messages_of(accepted(chat("", thought), {}, large)).size() > text.size());
  CHECK(refused(chat("", thought), {}, limits()).error.code == "prompt_too_long");
  const std::string spaces = "\"" + std::string(2 * kMegabyte, ' ') + "\\n" + std::string(kMegabyte, ' ') + "x\"";
  CHECK(messages_of(accepted(chat("", user(spaces)), {}, limits())).size() > kMegabyte);
}

TEST_CASE("what may be answered is parsed whole, and other errors stay what they are") {
  const std::string text = words(2 * kMegabyte), quoted = "\"" + text + "\"";
  // Cut, within a larger context, or long only beside the prompt.
  CHECK(std::get<std::string>(accepted(R"({"truncate_prompt_tokens":5,"prompt":)" + quoted + "}", {}, limits()).prompt) == text);
  CHECK(std::get<std::string>(accepted(R"({"prompt":)" + quoted + "}").prompt) == text);
  CHECK(std::get<std::string>(accepted(R"({"prompt":"short","notes":)" + quoted + "}", {}, limits()).prompt) == "short");
  // Escape sequences stand for fewer bytes than there are.
  std::string escaped;
  for (size_t i = 0; i < kMegabyte / 4; ++i) escaped += "\\u0041";
  RequestLimits just_enough = limits();
  just_enough.prompt.max_model_len = kMegabyte / 4 / 16 + 1;
  CHECK(std::get<std::string>(accepted(R"({"prompt":")" + escaped + "\"}", {}, just_enough).prompt) == std::string(kMegabyte / 4, 'A'));
  CHECK(refused(R"({"prompt":")" + escaped + "\"}", {}, limits()).error.code == "prompt_too_long");
  for (const auto& [line, code] : std::vector<std::pair<std::string, std::string>>{
           {R"({"temperature":-1,"prompt":)" + quoted + "}", "invalid_value"},
           {R"({"messages":[],"prompt":)" + quoted + "}", "invalid_request"},
           {R"({"prompt":)" + quoted, "invalid_json"},
           {R"({"prompt":")" + text, "invalid_json"},
           {R"({"id":)" + quoted + R"(,"temperature":-1,"prompt":"p"})", "invalid_value"}})
    CHECK(refused(line, {}, limits()).error.code == code);
  const ParseFailure failure = refused(R"({"prompt":"p","temperature":)" + quoted + "}", {}, limits());
  CHECK(contains(failure.error.message, "got \"words words"));
}

TEST_CASE("the context's length decides, to the last token that is certain") {
  const std::string text = words(2 * kMegabyte);
  RequestLimits limits;
  limits.prompt.num_tokens_at_least = [](std::string_view piece) { return piece.size(); };
  limits.prompt.max_model_len = static_cast<int32_t>(text.size()) + 1;
  CHECK(std::holds_alternative<InputRequest>(parse(R"({"prompt":")" + text + "\"}", {}, limits)));
  limits.prompt.max_model_len = static_cast<int32_t>(text.size() - 100);
  CHECK(std::holds_alternative<ParseFailure>(parse(R"({"prompt":")" + text + "\"}", {}, limits)));
}

TEST_CASE("pieces of a string hold its text but for escapes, cut between characters") {
  std::mt19937 rng(5);
  const std::vector<std::string> units = {"a", " ", "é", "中", "\U0001F600", "longer words "};
  const std::vector<std::pair<std::string, std::string>> escapes = {
      {"\\n", "\n"}, {"\\\"", "\""}, {"\\/", "/"}, {"\\u00e9", "é"}, {"\\u4E2d", "中"}, {"\\ud83d\\ude00", "\U0001F600"}, {"\\ud83d", ""}, {"\\x", ""}};
  for (int trial = 0; trial < 20; ++trial) {
    std::string json, plain, without_spaces;
    while (json.size() < 300'000) {
      const auto& [escape, character] = escapes[rng() % escapes.size()];
      const bool is_escaped = rng() % 2 == 0;
      const std::string unit = is_escaped ? character : units[rng() % units.size()];
      json += is_escaped ? escape : unit;
      plain += unit;
      for (const char c : unit)
        if (c != ' ' && c != '\n') without_spaces += c;
    }
    std::string all, all_without;
    for_each_piece(json, false, [&](std::string_view piece) {
      CHECK(is_valid_utf8(piece));
      CHECK(piece.size() < 70'000);
      all += piece;
    });
    for_each_piece(json, true, [&](std::string_view piece) { all_without += piece; });
    CHECK(all == plain);
    CHECK(all_without == without_spaces);
  }
  for (const std::string& broken : {std::string("\\"), std::string("a\\u12"), std::string("\x80\x80")})
    for_each_piece(broken, false, [](std::string_view) {});
}

TEST_CASE("a line is shortened where something is long, whatever it is, and not beyond its limit") {
  for (const std::string& line : {std::string(), std::string("\""), std::string("{\"a\":\"b\\"), std::string("\"\"\"\\\"\"")}) {
    CHECK(!ShortenedLine::make(line, 1, 1000));
  }
  const std::string a(4096, 'a'), b(5000, 'b');
  const std::string long_line = "[\"" + a + "\",\"short\",\"" + b + "\",\"" + a;
  CHECK(!ShortenedLine::make(long_line, 0xAB, 4096));
  const ShortenedLine shortened = *ShortenedLine::make(long_line, 0xAB, 5000);
  CHECK(shortened.text().substr(0, shortened.text().size() - a.size()) ==
        "[\"long string ab 0\",\"short\",\"long string ab 1\",\"");
  CHECK(shortened.string_for("long string ab 1") == b);
  for (const char* other : {"long string ab 2", "long string ab ", "long string ab x", "short", ""})
    CHECK(!shortened.string_for(other));
}

TEST_CASE("a tokenizer without a bound: texts of more than 64 bytes a token of the context are not encoded") {
  ModelContext model;
  model.tokenizer = load_tokenizer(source_dir() + "/data/fixtures/tokenizers/bert");
  model.vocab_size = 1 << 20;
  model.max_model_len = 100;
  const auto prepare = [&](const std::string& text) {
    InputRequest input;
    input.prompt = text;
    return prepare_request(std::move(input), model, 0);
  };
  CHECK(std::holds_alternative<std::shared_ptr<Request>>(prepare("hello" + std::string(6395, ' '))));
  const auto refused_text = prepare("hello" + std::string(6396, ' '));
  CHECK(contains(std::get<RequestError>(refused_text).message, "6401 bytes; texts of more than 6400 are not encoded"));
  CHECK(std::get<RequestError>(refused_text).code == "prompt_too_long");
}

}  // namespace llmb
