// How much processor time masks of structured output take, on one thread: follows answers token by token.
//   bench_grammar TOKENIZER_DIR [--schema FILE --answer FILE | --maskbench DIR]
// Without files, a JSON object, a schema of a person's orders and short regular expressions are followed. DIR holds
// MaskBench's files (guidance-ai/jsonschemabench, maskbench/data): each is a schema with instances. A valid one must be
// reached in some order of its members, since answers have one; an invalid one in none.
//
// 2026-11-23, AMD EPYC 25-17: bench_grammar data/model --maskbench DIR   9,253 of the 10,162 files but BFCL's and JME's
//   passed, and all 1,143 of these; 324 of 11,963 valid instances in another order; 0 of 21,393 invalid ones accepted
// 2026-11-23, Intel Xeon 6-207, ten times as much work as cores: bench_grammar QWEN2.5   151,669 tokens. A JSON object:
//   mean 1.0, p99 11, p99.9 219 us; a schema: 1.7, 36, 163; short regular expressions, 184 masks in all: 46, 404, 740
// 2026-11-26, AMD EPYC 7003, the most of 6 quiet runs: 1.9, 23, 313; 3.3, 68, 281; 43, 507, 547 (means 30 to 43; the
//   code before, in turn: 45 to 77, 891, 1191); all 11,305 files: 12.3, 226, 719 (15.9, 270, 1093), 10,391 passed
#include <CLI/CLI.hpp>

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "core/step_plan.h"
#include "engine/constraint_vocabulary.h"
#include "grammar/answer_forms.h"
#include "grammar/json_schema.h"
#include "grammar/json_spelling.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace llmb;

// Processor time: other work on the machine does not count.
double now_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// A form and a text that has it.
struct Answer {
  std::function<Result<grammar::Rules>()> rules;
  std::string text;
};

struct Case {
  std::string name;
  std::vector<Answer> answers;
};

struct Times {
  std::vector<double> compile_ms, first_us, all_us;

  static double at(std::vector<double>& times, double share) {
    std::sort(times.begin(), times.end());
    return times.empty() ? 0 : times[std::min(times.size() - 1, static_cast<size_t>(share * times.size()))];
  }
  void print(const std::string& name) {
    const double mean = std::accumulate(all_us.begin(), all_us.end(), 0.0) / std::max<size_t>(1, all_us.size());
    std::printf(
        "%-24s compiled p50 %6.2f p99 %7.2f ms   first p99 %8.1f us   %8zu masks: mean %6.1f   p50 %5.1f   "
        "p99 %7.1f   p99.9 %8.1f   most %8.1f us\n",
        name.c_str(), at(compile_ms, 0.5), at(compile_ms, 0.99), at(first_us, 0.99), all_us.size(), mean,
        at(all_us, 0.5), at(all_us, 0.99), at(all_us, 0.999), at(all_us, 1));
  }
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
  const std::pair<const char*, const char*> kRegexes[] = {
      {"([A-Z][a-z]+ )+[0-9]{4}-[0-9]{2}-[0-9]{2}",
       "Written By Somebody In The Quiet Town Of Winterthur On The Long Morning Of The Day 2026-11-22"},
      {"[a-z0-9._]+@[a-z0-9-]+(\\.[a-z0-9-]+)+", "somebody.else_42@mail.example-company.org"},
      {"\\+?[0-9]{1,3}( ?[0-9]{2,4}){2,4}", "+41 52 1234 567"},
      {"https?://[^\\s/]+(/[^\\s/]*)*", "https://www.example.org/some/longer/path/index.html"},
      {"(positive|negative|neutral|mixed)", "neutral"},
      {"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "0123abcd-89ab-4cde-8f01-23456789abcd"},
      {"(Yes|No), because .{1,200}\\.", "No, because the weather in the mountains changed before anybody could leave."},
      {"#[0-9A-F]{6}", "#00FFA3"},
      {"[A-Z]{2}[0-9]{2}( [0-9A-Z]{4}){3,7}", "CH93 0076 2011 6238 5295"},
      {"- .+(\\n- .+){2,9}", "- buy bread and milk\n- write to the landlord\n- read the last chapter"},
      {"-?(0|[1-9][0-9]*)(\\.[0-9]+)?", "-120934.25"},
      {"[01][0-9]:[0-5][0-9] (AM|PM)", "11:45 PM"}};
  Case regexes{"short regular expressions", {}};
  for (const auto& [pattern, text] : kRegexes)
    regexes.answers.push_back({[pattern = pattern] { return grammar::regex_rules(pattern); }, text});
  return {{"a JSON object", {{grammar::json_object_rules, orders_answer()}}},
          {"a schema", {{[] { return grammar::json_schema_rules(kSchema); }, orders_answer()}}},
          std::move(regexes)};
}

// Whether the text is an answer, to its end. Adds how long its masks took.
bool follow(const TokenConstraint& constraint, const std::vector<TokenId>& tokens,
            const grammar::Vocabulary& vocabulary, Times* times) {
  const auto state = constraint.start();
  for (size_t i = 0; i <= tokens.size(); ++i) {
    const double before = now_us();
    const auto allowed = state->allowed();
    times->all_us.push_back(now_us() - before);
    if (i == 0) times->first_us.push_back(times->all_us.back());
    const TokenId token = i < tokens.size() ? tokens[i] : vocabulary.end_tokens().at(0);
    if ((allowed[token / 32] >> token % 32 & 1) == 0) return false;
    if (i < tokens.size()) state->advance(token);
  }
  return true;
}

Result<std::shared_ptr<const TokenConstraint>> compile(const std::function<Result<grammar::Rules>()>& rules,
                                                       const std::shared_ptr<const grammar::Vocabulary>& vocabulary,
                                                       Times* times) {
  const double begin = now_us();
  LLMB_ASSIGN_OR_RETURN(grammar::Rules made, rules());
  LLMB_ASSIGN_OR_RETURN(auto constraint, grammar::make_constraint(std::move(made), vocabulary));
  times->compile_ms.push_back((now_us() - begin) / 1000);
  return constraint;
}

bool run(const Case& c, const Tokenizer& tokenizer, const std::shared_ptr<const grammar::Vocabulary>& vocabulary) {
  Times times;
  for (const Answer& answer : c.answers) {
    const auto constraint = compile(answer.rules, vocabulary, &times);
    if (!constraint.ok())
      return std::fprintf(stderr, "%s: %s\n", c.name.c_str(), constraint.status().message().c_str()), false;
    if (!follow(**constraint, tokenizer.encode(answer.text, false), *vocabulary, &times))
      return std::fprintf(stderr, "%s: \"%s\" is not in the form\n", c.name.c_str(), answer.text.c_str()), false;
  }
  times.print(c.name);
  return true;
}

// ---- MaskBench

using grammar::Json;

std::string quoted(const std::string& text) { return "\"" + grammar::JsonSpelling::json_content(text) + "\""; }

// REQUIRES: no array or object
std::string spelled(const Json& json, bool keeps_numbers) {
  if (json.is_string()) return quoted(json.get_ref<const std::string&>());
  return json.is_number() && !keeps_numbers ? grammar::Decimal::of(json).text() : json.dump();
}

void spell(const Json& json, std::string* out) {
  const char* between = "";
  if (!json.is_structured()) {
    *out += spelled(json, true);
    return;
  }
  *out += json.is_object() ? "{" : "[";
  for (const auto& [name, value] : json.items()) {
    *out += between + (json.is_object() ? quoted(name) + ": " : "");
    spell(value, out);
    between = ", ";
  }
  *out += json.is_object() ? "}" : "]";
}

// Looks for an order of members in which the form reaches a value. It tries the order of the "properties" that name
// most of them, and first the members behind which all may come that might have come instead.
class OrderSearch {
 public:
  OrderSearch(const Json& schema, const Tokenizer& tokenizer, const grammar::Vocabulary& vocabulary, bool keeps_numbers)
      : tokenizer_(tokenizer), vocabulary_(vocabulary), keeps_numbers_(keeps_numbers) {
    find_properties(schema);
  }

  bool reaches(const TokenConstraint& constraint, const Json& json) {
    const State end = behind_value(constraint.start(), json);
    return end != nullptr && is_allowed(end->allowed(), vocabulary_.end_tokens().at(0));
  }

 private:
  using State = std::unique_ptr<ConstraintState>;
  using Names = std::vector<std::string>;

  // Null: not in the form. All others likewise.
  State behind(State state, const std::string& text) const {
    for (const TokenId token : tokenizer_.encode(text, false)) {
      if (state == nullptr || !is_allowed(state->allowed(), token)) return nullptr;
      state->advance(token);
    }
    return state;
  }

  State behind_value(State state, const Json& json) {
    if (json.is_object()) {
      state = behind(std::move(state), "{");
      return state == nullptr ? nullptr : behind_members(*state, json, in_order(json));
    }
    if (!json.is_array()) return behind(std::move(state), spelled(json, keeps_numbers_));
    state = behind(std::move(state), "[");
    for (size_t i = 0; i < json.size() && state != nullptr; ++i) {
      if (i > 0) state = behind(std::move(state), ", ");
      if (state != nullptr) state = behind_value(std::move(state), json[i]);
    }
    return state == nullptr ? nullptr : behind(std::move(state), "]");
  }

  void find_properties(const Json& schema) {
    for (const auto& [name, part] : schema.items()) {
      if (schema.is_object() && name == "properties" && part.is_object()) properties_.push_back(&part);
      if (part.is_structured()) find_properties(part);
    }
  }

  Names in_order(const Json& json) const {
    if (const auto known = order_of_.find(&json); known != order_of_.end()) return known->second;
    Names best;
    for (const Json* properties : properties_) {
      Names named;
      for (const auto& [name, part] : properties->items())
        if (json.contains(name)) named.push_back(name);
      if (named.size() > best.size()) best = std::move(named);
    }
    for (const auto& [name, value] : json.items())
      if (std::find(best.begin(), best.end(), name) == best.end()) best.push_back(name);
    return best;
  }

  State behind_name(const ConstraintState& from, const std::string& name, bool is_first) const {
    return behind(from.clone(), (is_first ? "" : ", ") + quoted(name) + ": ");
  }

  // left: names of the members that are to come
  State behind_members(const ConstraintState& from, const Json& json, const Names& left) {
    if (left.empty()) {
      order_of_[&json].clear();
      return behind(from.clone(), "}");
    }
    struct Way {
      int32_t num_lost;  // names that might have come instead, and cannot come behind it
      State state;
      std::string name;
      Names left;
    };
    std::vector<Way> ways;
    const auto end_of = [&](const Way& way) {
      State end = behind_members(*way.state, json, way.left);
      if (end != nullptr) order_of_[&json].insert(order_of_[&json].begin(), way.name);
      return end;
    };
    const bool is_first = left.size() == json.size();
    Names possible;
    std::copy_if(left.begin(), left.end(), std::back_inserter(possible),
                 [&](const auto& name) { return behind_name(from, name, is_first) != nullptr; });
    for (const std::string& name : possible) {
      if (--tries_left_ < 0) return nullptr;
      Way way = {0, behind_value(behind_name(from, name, is_first), json.at(name)), name, {}};
      if (way.state == nullptr) continue;
      std::copy_if(left.begin(), left.end(), std::back_inserter(way.left), [&](const auto& n) { return n != name; });
      for (const std::string& other : possible)
        way.num_lost += other != name && behind_name(*way.state, other, false) == nullptr;
      if (way.num_lost > 0) ways.push_back(std::move(way));
      else if (State end = end_of(way)) return end;
    }
    std::stable_sort(ways.begin(), ways.end(), [](const auto& a, const auto& b) { return a.num_lost < b.num_lost; });
    for (const Way& way : ways)
      if (State end = end_of(way)) return end;
    return nullptr;
  }

  std::vector<const Json*> properties_;    // of the schema and its parts
  std::map<const Json*, Names> order_of_;  // of objects that were reached
  const Tokenizer& tokenizer_;
  const grammar::Vocabulary& vocabulary_;
  const bool keeps_numbers_;
  int32_t tries_left_ = 2000;
};

struct MaskBench {
  int num_files = 0, num_refused = 0, num_passed = 0, num_valid = 0, num_reordered = 0, num_invalid = 0;
  std::vector<std::string> valid_refused, invalid_accepted;
  std::map<std::string, int> reasons;  // of refusals
  Times times;
};

// The keyword of a refusal, or its words without numbers.
std::string reason_of(const std::string& message) {
  const size_t quote = message.find('"'), at = message.find("\" at #");
  if (quote != std::string::npos && at != std::string::npos) {
    const std::string keyword = message.substr(quote, at + 1 - quote);
    const size_t why = message.find(": ", at);
    return keyword + (why == std::string::npos ? "" : message.substr(why, 60));
  }
  return message.substr(0, 70);
}

void run_file(const std::filesystem::path& path, const Tokenizer& tokenizer,
              const std::shared_ptr<const grammar::Vocabulary>& vocabulary, MaskBench* bench) {
  std::ifstream in(path);
  const Json file = Json::parse(in);
  const std::string schema = file.at("schema").dump(), name = path.filename().string();
  ++bench->num_files;
  const auto constraint = compile([&] { return grammar::json_schema_rules(schema); }, vocabulary, &bench->times);
  if (!constraint.ok()) {
    ++bench->num_refused;
    ++bench->reasons[reason_of(constraint.status().message())];
    return;
  }
  bool is_right = true;
  for (size_t i = 0; file.contains("tests") && i < file["tests"].size(); ++i) {
    const Json& test = file["tests"][i];
    std::string text;
    spell(test.at("data"), &text);
    const bool is_valid = test.at("valid").get<bool>();
    ++(is_valid ? bench->num_valid : bench->num_invalid);
    const bool is_reached = follow(**constraint, tokenizer.encode(text, false), *vocabulary, &bench->times);
    // A number may be wrong for how it is written only: 1.0 is no integer in draft 4.
    const bool is_reordered =
        !is_reached &&
        OrderSearch(file.at("schema"), tokenizer, *vocabulary, !is_valid).reaches(**constraint, test.at("data"));
    bench->num_reordered += is_valid && is_reordered;
    if ((is_reached || is_reordered) == is_valid) continue;
    is_right = false;
    (is_valid ? bench->valid_refused : bench->invalid_accepted).push_back(name + " test " + std::to_string(i));
  }
  bench->num_passed += is_right;
}

bool run_maskbench(const std::string& dir, const Tokenizer& tokenizer,
                   const std::shared_ptr<const grammar::Vocabulary>& vocabulary) {
  MaskBench bench;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) run_file(path, tokenizer, vocabulary, &bench);
  std::printf(
      "%d schemas: %d passed, %d refused, %d wrong; %d valid instances, %d reached in another order of members, %zu "
      "not reached; %d invalid, %zu of them accepted\n",
      bench.num_files, bench.num_passed, bench.num_refused, bench.num_files - bench.num_passed - bench.num_refused,
      bench.num_valid, bench.num_reordered, bench.valid_refused.size(), bench.num_invalid,
      bench.invalid_accepted.size());
  for (const std::string& name : bench.valid_refused) std::printf("valid, not reached: %s\n", name.c_str());
  for (const std::string& name : bench.invalid_accepted) std::printf("invalid, accepted: %s\n", name.c_str());
  std::vector<std::pair<int, std::string>> reasons;
  for (const auto& [reason, count] : bench.reasons) reasons.emplace_back(-count, reason);
  std::sort(reasons.begin(), reasons.end());
  for (const auto& [count, reason] : reasons) std::printf("%6d refused: %s\n", -count, reason.c_str());
  bench.times.print("MaskBench");
  return bench.valid_refused.empty() && bench.invalid_accepted.empty();
}

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

int main(int argc, char** argv) {
  std::string dir, schema, answer, maskbench;
  CLI::App app{"Measures masks of structured output"};
  app.add_option("TOKENIZER_DIR", dir, "A model directory or a GGUF file")->required();
  auto* schema_option = app.add_option("--schema", schema, "A JSON Schema")->check(CLI::ExistingFile);
  app.add_option("--answer", answer, "A text that satisfies it")->check(CLI::ExistingFile)->needs(schema_option);
  app.add_option("--maskbench", maskbench, "MaskBench's files")->check(CLI::ExistingDirectory);
  CLI11_PARSE(app, argc, argv);
  const auto tokenizer = Tokenizer::load(dir);
  if (!tokenizer.ok()) return std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str()), 1;
  const double begin = now_us();
  const auto eos = (*tokenizer)->eos_token_id();
  const auto vocabulary =
      constraint_vocabulary(**tokenizer, (*tokenizer)->vocab_size(), eos ? std::vector{*eos} : std::vector<TokenId>());
  std::printf("%d tokens, trie of %zu nodes in %.0f ms\n", vocabulary->size(), vocabulary->nodes().size(),
              (now_us() - begin) / 1000);
  if (!maskbench.empty()) return run_maskbench(maskbench, **tokenizer, vocabulary) ? 0 : 1;
  std::vector<Case> cases = standard_cases();
  if (!schema.empty())
    cases = {{schema, {{[&] { return grammar::json_schema_rules(read_text(schema)); }, read_text(answer)}}}};
  bool is_ok = true;
  for (const Case& c : cases) is_ok &= run(c, **tokenizer, vocabulary);
  return is_ok ? 0 : 1;
}
