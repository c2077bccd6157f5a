#include "tests/support/schema_cases.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"

namespace llmb::test {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSpellings = 5000;

// Decimal and without exponent, as far as tests need it.
std::string number_text(const Json& number) {
  if (number.is_number_integer()) return number.dump();
  const double value = number.get<double>();
  if (value == std::floor(value) && std::abs(value) < 1e300) {
    char text[400];
    std::snprintf(text, sizeof(text), "%.0f", value);
    return text;
  }
  const std::string text = number.dump();
  if (text.find('e') == std::string::npos) return text;
  char fixed[400];
  std::snprintf(fixed, sizeof(fixed), "%.20f", value);
  std::string trimmed = fixed;
  trimmed.erase(trimmed.find_last_not_of('0') + 1);
  return trimmed;
}

std::vector<std::string> joined(const std::vector<std::vector<std::string>>& parts) {
  std::vector<std::string> all = {""};
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<std::string> longer;
    for (const std::string& text : all)
      for (const std::string& part : parts[i])
        if (longer.size() < kMaxSpellings) longer.push_back(text + (i > 0 ? "," : "") + part);
    all = std::move(longer);
  }
  return all;
}

}  // namespace

std::vector<std::string> spellings(const Json& instance) {
  if (instance.is_number()) return {number_text(instance)};
  if (!instance.is_structured()) return {instance.dump()};
  std::vector<std::vector<std::string>> parts;
  if (instance.is_array()) {
    for (const Json& item : instance) parts.push_back(spellings(item));
    std::vector<std::string> all = joined(parts);
    for (std::string& text : all) text = "[" + text + "]";
    return all;
  }
  for (const auto& [name, value] : instance.items()) {
    parts.emplace_back();
    for (const std::string& text : spellings(value)) parts.back().push_back(Json(name).dump() + ":" + text);
  }
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::string> all;
  do {
    std::vector<std::vector<std::string>> ordered;
    for (const size_t i : order) ordered.push_back(parts[i]);
    for (const std::string& text : joined(ordered)) all.push_back("{" + text + "}");
  } while (std::next_permutation(order.begin(), order.end()) && all.size() < kMaxSpellings);
  return all;
}

struct SchemaJudge::State {
  grammar::Rules rules;
};

SchemaJudge::SchemaJudge(const std::string& schema) {
  auto rules = grammar::json_schema_rules(schema);
  status_ = rules.ok() ? Status() : rules.status();
  if (!status_.ok()) return;
  state_ = std::make_unique<State>(State{std::move(*rules)});
  status_ = state_->rules.arena.settle(&state_->rules.bodies);
}

SchemaJudge::~SchemaJudge() = default;

bool SchemaJudge::accepts(const std::string& text) {
  grammar::ExprArena& arena = state_->rules.arena;
  grammar::Matcher matcher(&arena, state_->rules.bodies);
  grammar::MatcherState state = matcher.start(arena.call(0)), next;
  for (const char c : text) {
    if (!matcher.step(state, arena.byte_class(static_cast<uint8_t>(c)), &next)) return false;
    state = next;
  }
  return state.is_complete;
}

bool SchemaJudge::accepts(const Json& instance) {
  const std::vector<std::string> all = spellings(instance);
  return std::any_of(all.begin(), all.end(), [this](const std::string& text) { return accepts(text); });
}

void check_schema_cases(const Json& cases, const std::string& name, SchemaOutcome* outcome) {
  for (const Json& group : cases) {
    SchemaJudge judge(group["schema"].dump());
    const std::string title = name + ": " + group["description"].get<std::string>();
    if (!judge.status().ok()) {
      outcome->num_refused += static_cast<int>(group["tests"].size());
      outcome->refusals.push_back(title + ": " + judge.status().message());
      continue;
    }
    for (const Json& test : group["tests"]) {
      ++outcome->num_enforced;
      const bool is_valid = test["valid"].get<bool>();
      if (judge.accepts(test["data"]) == is_valid) continue;
      outcome->wrong.push_back(title + ": " + test["description"].get<std::string>() + ": " + test["data"].dump() +
                               (is_valid ? " is valid and cannot be reached" : " is not valid and is accepted"));
    }
  }
}

}  // namespace llmb::test
