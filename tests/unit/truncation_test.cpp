// Prompts that are too long: what is cut, where, and how much.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "engine/request_preparer.h"
#include "io/request_parser.h"
#include "io/result_writer.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace {

std::variant<InputRequest, ParseFailure> parse(const std::string& text, std::optional<TruncateSide> side = {}) {
  GenerationParams defaults;
  defaults.prompt.truncate = side;
  RequestParser parser(defaults, {});
  InputLine line;
  line.bytes = text;
  line.has_newline = true;
  return parser.parse(line);
}

ModelContext context(int32_t max_model_len, std::shared_ptr<const Tokenizer> tokenizer = nullptr) {
  ModelContext model;
  model.vocab_size = 1 << 20;
  model.max_model_len = max_model_len;
  model.tokenizer = std::move(tokenizer);
  return model;
}

using Prepared = std::variant<std::shared_ptr<Request>, RequestError>;

Prepared prepare(const std::string& line, const ModelContext& model, std::optional<TruncateSide> side = {}) {
  auto parsed = parse(line, side);
  if (auto* failure = std::get_if<ParseFailure>(&parsed)) FAIL(failure->error.message);
  return prepare_request(std::move(std::get<InputRequest>(parsed)), model, 0);
}

std::shared_ptr<Request> made(Prepared prepared) {
  if (auto* error = std::get_if<RequestError>(&prepared)) FAIL(error->message);
  return std::get<std::shared_ptr<Request>>(std::move(prepared));
}

// {"prompt_token_ids": [0, 1, …], …}
std::string ids_line(int size, const std::string& more = "") {
  std::string ids;
  for (int i = 0; i < size; ++i) ids += (i > 0 ? "," : "") + std::to_string(i);
  return R"({"prompt_token_ids":[)" + ids + "]" + more + "}";
}

std::vector<TokenId> range(int begin, int end) {
  std::vector<TokenId> out(end - begin);
  std::iota(out.begin(), out.end(), begin);
  return out;
}

constexpr auto kLeft = TruncateSide::kLeft, kRight = TruncateSide::kRight;

}  // namespace

TEST_CASE("only a prompt that would be refused is cut, and room is made for the answer") {
  const ModelContext model = context(100);
  CHECK(std::get<RequestError>(prepare(ids_line(100), model)).code == "prompt_too_long");
  CHECK(std::get<RequestError>(prepare(ids_line(100), model)).message.find("--truncate") != std::string::npos);
  for (const auto side : {kLeft, kRight}) {
    const auto fits = made(prepare(ids_line(99, R"(,"max_tokens":20)"), model, side));
    CHECK(fits->prompt_tokens == range(0, 99));
    CHECK(fits->num_truncated_tokens == 0);
    CHECK(fits->params.stop.max_tokens == 1);
  }
  const auto left = made(prepare(ids_line(100, R"(,"max_tokens":20)"), model, kLeft));
  CHECK(left->prompt_tokens == range(20, 100));
  CHECK(left->num_truncated_tokens == 20);
  CHECK(left->params.stop.max_tokens == 20);
  const auto right = made(prepare(ids_line(250, R"(,"max_tokens":1)"), model, kRight));
  CHECK(right->prompt_tokens == range(0, 99));
  CHECK(right->num_truncated_tokens == 151);
  // At most half of the context is kept for the answer, of an open end 256 tokens.
  CHECK(made(prepare(ids_line(250, R"(,"max_tokens":90)"), model, kLeft))->prompt_tokens == range(200, 250));
  CHECK(made(prepare(ids_line(250), model, kLeft))->prompt_tokens == range(200, 250));
  CHECK(made(prepare(ids_line(1000), context(1000), kRight))->prompt_tokens == range(0, 744));
}

TEST_CASE("what is cut where nothing is generated leaves room for one token, whichever of a line's inputs it is") {
  ModelContext model = context(100);
  for (const Task task : {Task::kEmbed, Task::kScore, Task::kClassify}) {
    auto parsed = parse(ids_line(250), kLeft);
    InputRequest input = std::get<InputRequest>(std::move(parsed));
    input.params.task = task;
    input.more_prompts.push_back(range(0, 250));
    const auto request = made(prepare_request(std::move(input), model, 0));
    CHECK(request->prompt_tokens == range(151, 250));
    REQUIRE(request->parts.size() == 2);
    for (const auto& part : request->parts) CHECK(part->prompt_tokens == range(151, 250));
  }
}

TEST_CASE("the smallest contexts") {
  CHECK(std::get<RequestError>(prepare(ids_line(1), context(1), kLeft)).code == "prompt_too_long");
  CHECK(made(prepare(ids_line(2), context(2), kLeft))->prompt_tokens == range(1, 2));
  CHECK(made(prepare(ids_line(3), context(3), kRight))->prompt_tokens == range(0, 2));
}

TEST_CASE("truncate_prompt_tokens and truncation_side of a line") {
  const ModelContext model = context(100);
  const auto tokens = [&](int size, const std::string& more, std::optional<TruncateSide> side = {}) {
    return made(prepare(ids_line(size, more + R"(,"max_tokens":10)"), model, side))->prompt_tokens;
  };
  CHECK(tokens(50, R"(,"truncate_prompt_tokens":7)") == range(43, 50));
  CHECK(tokens(50, R"(,"truncate_prompt_tokens":7)", kRight) == range(0, 7));
  CHECK(tokens(50, R"(,"truncate_prompt_tokens":7,"truncation_side":"right")", kLeft) == range(0, 7));
  CHECK(tokens(50, R"(,"truncate_prompt_tokens":50)") == range(0, 50));
  CHECK(tokens(50, R"(,"truncate_prompt_tokens":51)") == range(0, 50));
  CHECK(tokens(150, R"(,"truncate_prompt_tokens":99)") == range(51, 150));
  CHECK(tokens(150, R"(,"truncate_prompt_tokens":100)") == range(60, 150));
  CHECK(tokens(150, R"(,"truncate_prompt_tokens":-1)") == range(60, 150));
  CHECK(tokens(150, R"(,"truncation_side":"right")", kLeft) == range(0, 90));
  for (const auto& [more, param] :
       {std::pair<std::string, std::string>{R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens"},
        {R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens"},
        {R"("truncate_prompt_tokens":1.5)", "truncate_prompt_tokens"},
        {R"("truncation_side":"left")", "truncation_side"},
        {R"("truncate_prompt_tokens":5,"truncation_side":"middle")", "truncation_side"},
        {R"("truncate_prompt_tokens":5,"truncation_side":1)", "truncation_side"}}) {
    CAPTURE(more);
    const auto parsed = parse(R"({"prompt":"x",)" + more + "}");
    REQUIRE(std::holds_alternative<ParseFailure>(parsed));
    CHECK(std::get<ParseFailure>(parsed).error.param == param);
  }
}

TEST_CASE("special tokens around a text stay, those of a conversation are its template's") {
  auto loaded = Tokenizer::load(source_dir() + "/data/fixtures/tokenizers/llama2");
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
  const std::shared_ptr<const Tokenizer> tokenizer = std::move(loaded).value();
  const std::string text = "abcdefghijklmnopqrstuvwxyz";
  const auto plain = tokenizer->encode(text, false), full = tokenizer->encode(text, true);
  REQUIRE(full.size() > plain.size());
  const size_t num_specials = full.size() - plain.size();
  const auto size = static_cast<int>(full.size());
  for (int limit = 1; limit <= size; ++limit)
    for (const auto side : {kLeft, kRight}) {
      CAPTURE(limit);
      const std::string line = R"({"prompt":")" + text + R"(","truncate_prompt_tokens":)" + std::to_string(limit) + "}";
      const auto request = made(prepare(line, context(1000, tokenizer), side));
      const auto& tokens = request->prompt_tokens;
      REQUIRE(static_cast<int>(tokens.size()) == limit);
      CHECK(request->num_truncated_tokens == size - limit);
      if (limit <= static_cast<int>(num_specials)) continue;
      // Some whole prefix and suffix of specials, and between them one end of the text.
      std::vector<TokenId> inner = tokens;
      for (const TokenId id : full)
        if (tokenizer->is_special(id))
          CHECK(std::count(inner.begin(), inner.end(), id) == std::count(full.begin(), full.end(), id));
      std::erase_if(inner, [&](TokenId id) { return tokenizer->is_special(id); });
      REQUIRE(inner.size() == limit - num_specials);
      const auto expected_begin = side == kLeft ? plain.end() - inner.size() : plain.begin();
      CHECK(std::equal(inner.begin(), inner.end(), expected_begin));
    }
}

TEST_CASE("usage says how many tokens were cut, only where some were") {
  Completion completion;
  completion.num_prompt_tokens = 5;
  completion.choices.emplace_back();
  completion.choices[0].num_output_tokens = 2;
  const auto text = [&] { return ResultFormatter().format(completion); };
  CHECK(text().find(R"("usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7})") != std::string::npos);
  completion.num_truncated_tokens = 3;
  CHECK(text().find(R"("total_tokens":7,"truncated_prompt_tokens":3})") != std::string::npos);
}

}  // namespace llmb::test
