// Lines on their way to the engine: what they ask for is known before they are tokenised.
#include "job/request_intake.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "job/equal_rows.h"
#include "tests/support/process.h"

namespace llmb::test {

TEST_CASE("a line is tokenised by prepare() alone, so a line equal to another one need not be") {
  TemporaryDirectory dir;
  write_file(dir.file("in"), R"({"id":1,"prompt_token_ids":[1,2,3],"temperature":0})"
                             "\n"
                             R"({"temperature":0,"prompt_token_ids":[1, 2, 3],"id":2})"
                             "\n"
                             R"({"prompt":"no tokenizer is there"})"
                             "\n"
                             R"({"prompt":5})"
                             "\n");
  auto model = std::make_shared<ModelContext>();
  model->vocab_size = model->max_model_len = 100;
  RequestIntake intake(std::make_unique<LineReader>(std::vector<std::string>{dir.file("in")}),
                       std::make_unique<RequestParser>(GenerationParams(), RequestLimits()), model,
                       std::make_shared<SteadyClock>(), IntakeOptions());
  std::vector<IntakeItem> items;
  REQUIRE(intake.run([&](IntakeItem item) { return items.push_back(std::move(item)), true; }).ok());
  REQUIRE(items.size() == 4);
  for (const IntakeItem& item : items) CHECK_FALSE(item.request);
  REQUIRE(items[0].input);
  REQUIRE(items[1].input);
  CHECK(EqualRows::key_of(*items[0].input));
  CHECK(EqualRows::key_of(*items[0].input) == EqualRows::key_of(*items[1].input));

  intake.prepare(&items[0]);
  CHECK_FALSE(items[0].input);
  REQUIRE(items[0].request);
  CHECK(items[0].request->prompt_tokens == std::vector<TokenId>{1, 2, 3});
  intake.prepare(&items[2]);
  CHECK_FALSE(items[2].request);
  CHECK(items[2].failure.error->code == "no_tokenizer");
  CHECK(items[2].failure.line.line_number == 3);
  CHECK_FALSE(items[3].input);
  CHECK(items[3].failure.error);
}

}  // namespace llmb::test
