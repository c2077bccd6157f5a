#include "grammar/schema_rules.h"

#include "grammar/regex_expr.h"

namespace llmb::grammar {

namespace {

constexpr int32_t kMaxBranches = 4096, kMaxSchemaDepth = 128;

[[noreturn]] void too_large(const std::string& what) { throw SchemaError{resource_exhausted("schema: " + what)}; }

}  // namespace

Goal normalised(Goal goal) {
  std::sort(goal.begin(), goal.end());
  goal.erase(std::unique(goal.begin(), goal.end()), goal.end());
  return goal;
}

Rules SchemaRules::compile(const Goal& goal, int64_t work) {
  rules_.arena.spend(work);
  rule_of(goal);
  return std::move(rules_);
}

Rules SchemaRules::compile(const std::vector<FramedGoal>& goals, std::string_view between, bool has_several,
                           int64_t work) {
  ExprArena& arena = rules_.arena;
  arena.spend(work);
  rules_.bodies.push_back(kNothing);
  std::vector<ExprId> framed;
  for (const FramedGoal& goal : goals)
    framed.push_back(arena.literal(goal.before, arena.concat(value_of(goal.goal), arena.literal(goal.after))));
  const ExprId one = arena.either(std::move(framed));
  rules_.bodies[0] = has_several ? arena.concat(one, arena.star(arena.literal(between, one))) : one;
  return std::move(rules_);
}

RuleId SchemaRules::rule_of(Goal goal) {
  goal = normalised(std::move(goal));
  const auto [at, is_new] = rule_of_goal_.emplace(goal, static_cast<RuleId>(rules_.bodies.size()));
  const RuleId rule = at->second;
  if (!is_new) return rule;
  rules_.bodies.push_back(kNothing);
  if (++depth_ > kMaxSchemaDepth) too_large("nested more than " + std::to_string(kMaxSchemaDepth) + " deep");
  std::vector<ExprId> bodies;
  for (const Branch& branch : branches_of(goal)) bodies.push_back(body_of(branch));
  rules_.bodies[rule] = rules_.arena.either(std::move(bodies));
  --depth_;
  return rule;
}

ExprId SchemaRules::shared(ExprId body) {
  if (body == kNothing) return kNothing;
  const auto [at, is_new] = rule_of_body_.emplace(body, static_cast<RuleId>(rules_.bodies.size()));
  if (is_new) rules_.bodies.push_back(body);
  return rules_.arena.call(at->second);
}

std::vector<Branch> SchemaRules::branches_of(const Goal& goal) {
  std::vector<Branch> out;
  expand({}, goal, {}, {}, &out);
  return out;
}

void SchemaRules::expand(Branch branch, std::vector<Term> pending, std::vector<Choice> choices, std::set<Term> seen,
                         std::vector<Branch>* out) {
  while (!pending.empty() || !choices.empty()) {
    if (branch.types == 0) return;
    if (!pending.empty()) {
      const Term term = pending.front();
      pending.erase(pending.begin());
      rules_.arena.spend(4);
      if (!seen.insert(term).second) continue;
      if (seen.size() > 1000) too_large("more than 1000 schemas hold at one place");
      // A single alternative holds at once, so that properties stand in the order of the schema.
      std::vector<Term> inner;
      for (Choice& choice : choices_of(term, document_, &rules_.arena)) {
        if (choice.size() != 1 || !choice[0].excluded.empty()) {
          choices.push_back(std::move(choice));
          continue;
        }
        branch.merge(choice[0].bounds);
        inner.insert(inner.end(), choice[0].terms.begin(), choice[0].terms.end());
      }
      pending.insert(pending.begin(), inner.begin(), inner.end());
      continue;
    }
    // A choice with one way or none comes first: it may rule out much.
    auto at = std::find_if(choices.begin(), choices.end(), [](const Choice& choice) { return choice.size() <= 1; });
    if (at == choices.end()) at = choices.begin();
    const Choice choice = std::move(*at);
    choices.erase(at);
    if (choice.empty()) return;
    for (size_t i = 0; i < choice.size(); ++i) {
      rules_.arena.spend(8 + static_cast<int64_t>(pending.size() + choices.size() + seen.size() + branch.size()));
      const bool is_last = i + 1 == choice.size();
      Branch bounds = branch;
      bounds.merge(choice[i].bounds);
      // Terms in the schema's order, each with what it refers to before the next: so stand the properties.
      std::vector<Term> terms = choice[i].terms;
      terms.insert(terms.end(), pending.begin(), pending.end());
      for (const Term& other : choice[i].excluded)
        if (!excludes(choice[i].terms, other)) terms.push_back({Term::kNotSchema, other.json, other.pointer});
      if (is_last) {
        branch = std::move(bounds), pending = std::move(terms);
      } else if (bounds.types != 0) {
        if (++num_branches_ > kMaxBranches)
          too_large("its choices multiply to more than " + std::to_string(kMaxBranches));
        expand(std::move(bounds), std::move(terms), choices, seen, out);
      }
    }
  }
  if (branch.types != 0) out->push_back(std::move(branch));
}

bool SchemaRules::excludes(const std::vector<Term>& terms, const Term& other) {
  Goal together = terms;
  together.push_back(other);
  if (++depth_ > kMaxSchemaDepth) too_large("nested more than " + std::to_string(kMaxSchemaDepth) + " deep");
  const std::vector<Branch> branches = branches_of(normalised(together));
  --depth_;
  return std::all_of(branches.begin(), branches.end(),
                     [this](const Branch& branch) { return is_surely_empty(branch, 0); });
}

// No value is in the branch; false where that would take long to find out.
bool SchemaRules::is_surely_empty(const Branch& branch, int depth) {
  ExprArena& arena = rules_.arena;
  if (branch.types & (kNullType | kTrueType | kFalseType)) return false;
  if (branch.types & kNumberTypes && (branch.numbers.empty() || !arena.is_empty(number_of(branch)))) return false;
  if (branch.types & kStringType && (branch.strings.empty() || !arena.is_empty(string_content_of(branch))))
    return false;
  if (branch.types & kArrayType && branch.min_items <= branch.max_items) return false;
  if ((branch.types & kObjectType) == 0) return true;
  for (const std::string& name : branch.required) {
    if (std::find(branch.forbidden.begin(), branch.forbidden.end(), name) != branch.forbidden.end()) return true;
    if (depth >= 2) continue;
    const std::vector<Branch> inner = branches_of(normalised(goal_of_name(branch, name)));
    if (std::all_of(inner.begin(), inner.end(), [&](const Branch& b) { return is_surely_empty(b, depth + 1); }))
      return true;
  }
  return false;
}

ExprId SchemaRules::body_of(const Branch& branch) {
  ExprArena& arena = rules_.arena;
  std::vector<ExprId> parts;
  if (branch.types & kNullType) parts.push_back(arena.literal("null"));
  if (branch.types & kTrueType) parts.push_back(arena.literal("true"));
  if (branch.types & kFalseType) parts.push_back(arena.literal("false"));
  if (branch.types & kNumberTypes) parts.push_back(shared(number_of(branch)));
  if (branch.types & kStringType) parts.push_back(shared(string_of(branch)));
  if (branch.types & kArrayType && branch.min_items <= branch.max_items) parts.push_back(array_of(branch));
  if (branch.types & kObjectType) parts.push_back(object_of(branch));
  return arena.either(std::move(parts));
}

ExprId SchemaRules::number_of(const Branch& branch) {
  const uint32_t types = branch.types & kNumberTypes;
  std::vector<ExprId> all = branch.numbers;
  all.push_back(types == kWholeType      ? spelling_.whole_number()
                : types == kFractionType ? spelling_.fractional_number()
                                         : spelling_.number());
  return rules_.arena.both(std::move(all));
}

ExprId SchemaRules::string_content_of(const Branch& branch) {
  ExprArena& arena = rules_.arena;
  if (branch.min_length > branch.max_length) return kNothing;
  const auto min = static_cast<int32_t>(branch.min_length);
  const int32_t max = branch.max_length == kNoBound ? kUnlimited : static_cast<int32_t>(branch.max_length);
  if (branch.strings.empty() && spelling_.is_json()) return arena.repeat(spelling_.any_string_char(), min, max);
  std::vector<ExprId> all = branch.strings;
  if (!spelling_.is_json()) all.push_back(spelling_.string_chars());
  if (min > 0 || max != kUnlimited) all.push_back(arena.repeat(spelling_.string_char(CharSet::all()), min, max));
  return arena.both(std::move(all));
}

ExprId SchemaRules::string_of(const Branch& branch) { return spelling_.quoted(string_content_of(branch)); }

ExprId SchemaRules::enclosed(char open, ExprId inside, char close) {
  ExprArena& arena = rules_.arena;
  const ExprId space = spelling_.space(), end = arena.byte(static_cast<uint8_t>(close));
  const ExprId empty = arena.is_nullable(inside) ? arena.concat(space, end) : kNothing;
  const ExprId full = arena.concat(space, arena.concat(inside, arena.concat(space, end)));
  return arena.concat(arena.byte(static_cast<uint8_t>(open)), arena.either(empty, full));
}

// ---- arrays

size_t SchemaRules::prefix_size(const Branch& branch) const {
  size_t size = 0;
  for (const ArraySpec& spec : branch.arrays) size = std::max(size, spec.prefix.size());
  return size;
}

Goal SchemaRules::items_goal(const Branch& branch, size_t index) const {
  Goal goal;
  for (const ArraySpec& spec : branch.arrays) {
    if (index < spec.prefix.size()) goal.push_back(spec.prefix[index]);
    else if (spec.items) goal.push_back(*spec.items);
  }
  return goal;
}

ExprId SchemaRules::array_of(const Branch& branch) {
  Branch bounded = branch;
  if (!branch.unique_pointer.empty() && branch.max_items > 1)
    refuse(branch.unique_pointer.substr(0, branch.unique_pointer.size() - 1), "uniqueItems",
           "equal items cannot be told apart from unequal ones; only maxItems of 1 can be enforced with it");
  return enclosed('[', branch.contains.empty() ? list_of(bounded) : list_with_contains(bounded), ']');
}

ExprId SchemaRules::list_of(const Branch& branch) {
  ExprArena& arena = rules_.arena;
  const auto num_prefix = static_cast<int64_t>(std::min(prefix_size(branch), static_cast<size_t>(branch.max_items)));
  const auto left = [&](int64_t bound, int64_t done) {
    return static_cast<int32_t>(std::max<int64_t>(bound - done, 0));
  };
  const auto rest_from = [&](int64_t done) {
    const ExprId item = arena.concat(comma(), value_of(items_goal(branch, static_cast<size_t>(done))));
    const bool is_open = branch.max_items == kNoBound;
    return arena.repeat(item, left(branch.min_items, done), is_open ? kUnlimited : left(branch.max_items, done));
  };
  ExprId list;
  if (num_prefix > 0) {
    list = rest_from(num_prefix);
  } else {
    if (branch.max_items == 0) return kEmptyString;
    list = rest_from(1);
  }
  for (int64_t i = std::max<int64_t>(num_prefix, 1) - 1; i >= 0; --i) {
    list = arena.concat(value_of(items_goal(branch, static_cast<size_t>(i))), list);
    if (i > 0) list = arena.concat(comma(), list);
    if (i >= branch.min_items) list = arena.optional(list);
  }
  return list;
}

// Items that need not match, between those that do.
ExprId SchemaRules::list_with_contains(const Branch& branch) {
  ExprArena& arena = rules_.arena;
  const ContainsSpec& spec = branch.contains[0];
  const bool is_bounded = branch.max_items != kNoBound || branch.min_items > spec.min;
  if (branch.contains.size() > 1 || prefix_size(branch) > 0 || is_bounded)
    refuse(branch.contains.back().pointer, "contains",
           "beside prefixItems, minItems, maxItems or another \"contains\" it cannot be enforced");
  if (spec.min > spec.max) return kNothing;
  Goal matching = items_goal(branch, 0), other = matching;
  matching.push_back(spec.term);
  Term failing = spec.term;
  failing.kind = failing.kind == Term::kSchema ? Term::kNotSchema : Term::kSchema;
  if (spec.max != kNoBound) other.push_back(failing);
  const ExprId match = value_of(matching), between = value_of(other);
  const ExprId others = arena.star(arena.concat(comma(), between));
  const int64_t last = spec.max == kNoBound ? spec.min : spec.max;
  if (last > 1000) too_large("minContains or maxContains above 1000");
  // behind[i]: what follows once there is an item, i of which matched.
  std::vector<ExprId> behind(static_cast<size_t>(last) + 2, kNothing);
  for (int64_t i = last; i >= 0; --i) {
    const ExprId next = i < last ? arena.concat(comma(), arena.concat(match, behind[i + 1])) : kNothing;
    behind[i] = arena.concat(others, arena.either(i >= spec.min ? kEmptyString : kNothing, next));
  }
  const ExprId first_matches = last > 0 ? arena.concat(match, behind[1]) : kNothing;
  return arena.either({arena.concat(between, behind[0]), first_matches, spec.min == 0 ? kEmptyString : kNothing});
}

}  // namespace llmb::grammar
