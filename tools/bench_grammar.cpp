// How long masks of structured output take, on one thread: follows answers token by token.
//   bench_grammar TOKENIZER_DIR [--schema FILE --answer FILE]
// Without files, a JSON object, a schema of a person's orders and a regular expression are followed.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "engine/constraint_vocabulary.h"
#include "grammar/answer_forms.h"
#include "grammar/json_schema.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace llmb;

double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

struct Case {
  std::string name;
  std::function<Result<grammar::Rules>()> rules;
  std::string answer;
};

const char kSchema[] = R"({"type":"object","properties":{
  "name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string","maxLength":60},
  "address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"},
    "zip":{"type":"string","pattern":"^[0-9]{5}$"}},"required":["street","city"],"additionalProperties":false},
  "orders":{"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"},"price":{"type":"number"},
    "state":{"enum":["new","paid","sent","returned"]},"note":{"type":"string"}},"required":["id","state"],
    "additionalProperties":false}}},"required":["name","orders"],"additionalProperties":false})";

std::string orders_answer() {
  std::string text =
      R"({"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "address": {"street": "12 St James's Square", "city": "London", "zip": "12345"}, "orders": [)";
  for (int i = 0; i < 40; ++i)
    text += (i > 0 ? ", " : "") + (R"({"id": )" + std::to_string(1000 + i * 37)) + R"(, "price": )" +
            std::to_string(i * 3) + R"(.95, "state": ")" + (i % 2 ? "paid" : "returned") +
            R"(", "note": "Delivered to the neighbour at number )" + std::to_string(i) +
            R"(; please call before you come."})";
  return text + "]}";
}

std::vector<Case> standard_cases() {
  return {{"a JSON object", grammar::json_object_rules, orders_answer()},
          {"a schema", [] { return grammar::json_schema_rules(kSchema); }, orders_answer()},
          {"a regular expression", [] { return grammar::regex_rules("([A-Z][a-z]+ )+[0-9]{4}-[0-9]{2}-[0-9]{2}"); },
           "Written By Somebody In The Quiet Town Of Winterthur On The Long Morning Of The Day 2026-11-22"}};
}

bool run(const Case& c, const Tokenizer& tokenizer, const std::shared_ptr<const grammar::Vocabulary>& vocabulary) {
  const double begin = now_us();
  auto rules = c.rules();
  if (!rules.ok()) return std::fprintf(stderr, "%s: %s\n", c.name.c_str(), rules.status().message().c_str()), false;
  const auto constraint = grammar::make_constraint(std::move(*rules), vocabulary);
  if (!constraint.ok())
    return std::fprintf(stderr, "%s: %s\n", c.name.c_str(), constraint.status().message().c_str()), false;
  const double compiled = now_us();
  const std::vector<TokenId> tokens = tokenizer.encode(c.answer, false);
  std::vector<double> times;
  const auto state = (*constraint)->start();
  for (const TokenId token : tokens) {
    const double before = now_us();
    const auto allowed = state->allowed();
    times.push_back(now_us() - before);
    if ((allowed[token / 32] >> token % 32 & 1) == 0)
      return std::fprintf(stderr, "%s: the answer leaves the form at its token %zu\n", c.name.c_str(), times.size()),
             false;
    state->advance(token);
  }
  const double first = times[0], mean = std::accumulate(times.begin(), times.end(), 0.0) / times.size();
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) { return times[std::min(times.size() - 1, static_cast<size_t>(q * times.size()))]; };
  std::printf(
      "%-22s compiled %7.2f ms   masks %5zu   first %8.1f us   mean %7.1f   p50 %6.1f   p99 %8.1f   p99.9 %8.1f us\n",
      c.name.c_str(), (compiled - begin) / 1000, times.size(), first, mean, at(0.5), at(0.99), at(0.999));
  return true;
}

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

int main(int argc, char** argv) {
  std::string dir, schema, answer;
  CLI::App app{"Measures masks of structured output"};
  app.add_option("TOKENIZER_DIR", dir, "A model directory or a GGUF file")->required();
  auto* schema_option = app.add_option("--schema", schema, "A JSON Schema")->check(CLI::ExistingFile);
  app.add_option("--answer", answer, "A text that satisfies it")->check(CLI::ExistingFile)->needs(schema_option);
  CLI11_PARSE(app, argc, argv);
  const auto tokenizer = Tokenizer::load(dir);
  if (!tokenizer.ok()) return std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str()), 1;
  const double begin = now_us();
  const auto eos = (*tokenizer)->eos_token_id();
  const auto vocabulary =
      constraint_vocabulary(**tokenizer, (*tokenizer)->vocab_size(), eos ? std::vector{*eos} : std::vector<TokenId>());
  std::printf("%d tokens, trie of %zu nodes in %.0f ms\n", vocabulary->size(), vocabulary->nodes().size(),
              (now_us() - begin) / 1000);
  std::vector<Case> cases = standard_cases();
  if (!schema.empty())
    cases = {{schema, [&] { return grammar::json_schema_rules(read_text(schema)); }, read_text(answer)}};
  bool is_ok = true;
  for (const Case& c : cases) is_ok &= run(c, **tokenizer, vocabulary);
  return is_ok ? 0 : 1;
}
