// Rules of objects: declared properties in their order, then required ones that nothing describes, then others.
#include "grammar/regex_expr.h"
#include "grammar/schema_rules.h"

namespace llmb::grammar {

namespace {

constexpr size_t kMaxPatterns = 6, kMaxMembers = 2000;
constexpr int64_t kMembersOfUnion = 64;
constexpr int64_t kMaxMemberStates = 50'000;

bool holds(const auto& list, const auto& value) { return std::find(list.begin(), list.end(), value) != list.end(); }

}  // namespace

ExprId SchemaRules::pattern(const std::string& pattern, const std::string& pointer) {
  const auto known = patterns_.find(pattern);
  if (known != patterns_.end()) return known->second;
  const auto spelling = [this](const CharSet& set) { return spelling_.string_char(set); };
  const auto e = regex_expr(pattern, RegexScope::kAnywhere, spelling, &rules_.arena);
  if (!e.ok()) throw SchemaError{e.status().with_context("schema: patternProperties at #" + pointer)};
  return patterns_[pattern] = *e;
}

// The language of properties' names, as they are spelled.
ExprId SchemaRules::name_language(const Branch& branch) {
  std::vector<ExprId> all;
  for (const Term& term : branch.names) {
    std::vector<ExprId> parts;
    for (const Branch& name : branches_of({term})) {
      if ((name.types & kStringType) == 0) continue;
      const bool is_any = name.strings.empty() && name.min_length == 0 && name.max_length == kNoBound;
      Branch bounded = name;
      bounded.strings.push_back(spelling_.string_chars());  // names have one spelling
      parts.push_back(is_any ? spelling_.string_chars() : string_content_of(bounded));
    }
    all.push_back(rules_.arena.either(std::move(parts)));
  }
  if (all.empty()) return spelling_.string_chars();
  return rules_.arena.both(std::move(all));
}

Goal SchemaRules::goal_of_name(const Branch& branch, const std::string& name) {
  Goal goal;
  for (const ObjectSpec& spec : branch.objects) {
    rules_.arena.spend(1 + static_cast<int64_t>(spec.properties.size()) / 32);
    bool is_known = false;
    for (const auto& [property, term] : spec.properties)
      if (property == name) goal.push_back(term), is_known = true;
    for (const auto& [text, term] : spec.patterns)
      if (rules_.arena.contains(pattern(text, term.pointer), spelling_.string_content(name)))
        goal.push_back(term), is_known = true;
    if (!is_known && spec.additional) goal.push_back(*spec.additional);
  }
  return goal;
}

SchemaRules::Members SchemaRules::members_of(const Branch& branch) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  const auto add = [&](const std::string& name) {
    if (seen.insert(name).second) names.push_back(name);
  };
  for (const ObjectSpec& spec : branch.objects)
    for (const auto& [name, term] : spec.properties) add(name);
  for (const std::string& name : branch.required) add(name);
  for (const std::string& name : branch.forbidden) add(name);
  if (names.size() > kMaxMembers)
    throw SchemaError{
        resource_exhausted("schema: an object has more than " + std::to_string(kMaxMembers) + " properties")};
  Members members;
  const std::set<std::string> required(branch.required.begin(), branch.required.end());
  const ExprId language = branch.names.empty() ? kNothing : name_language(branch);
  for (const std::string& name : names) {
    rules_.arena.spend(1 + static_cast<int64_t>(branch.forbidden.size()) / 32);
    const bool may_be = !holds(branch.forbidden, name) &&
                        (branch.names.empty() || rules_.arena.contains(language, spelling_.string_content(name)));
    const bool is_required = required.contains(name);
    members.num_required += is_required;
    // One that may not be and must be makes the list impossible.
    if (may_be) members.named.push_back({name, goal_of_name(branch, name), is_required});
    else if (is_required) members.named.push_back({name, {{Term::kNever, nullptr, ""}}, true});
  }
  add_others(branch, names, &members);
  return members;
}

// For each set of patterns the names that match these and no others.
void SchemaRules::add_others(const Branch& branch, const std::vector<std::string>& taken, Members* members) {
  ExprArena& arena = rules_.arena;
  std::vector<std::string> patterns, contents;
  for (const ObjectSpec& spec : branch.objects)
    for (const auto& [text, term] : spec.patterns)
      if (!holds(patterns, text)) patterns.push_back(text);
  if (patterns.size() > kMaxPatterns)
    throw SchemaError{
        resource_exhausted("schema: an object has more than " + std::to_string(kMaxPatterns) + " patternProperties")};
  for (const std::string& name : taken) contents.push_back(spelling_.string_content(name));
  std::vector<ExprId> pairs;
  for (uint32_t matched = 0; matched < 1u << patterns.size(); ++matched) {
    const auto matches = [&](const std::string& text) {
      return (matched >> (std::find(patterns.begin(), patterns.end(), text) - patterns.begin()) & 1) != 0;
    };
    Goal goal;
    for (const ObjectSpec& spec : branch.objects) {
      bool is_known = false;
      for (const auto& [text, term] : spec.patterns)
        if (matches(text)) goal.push_back(term), is_known = true;
      if (!is_known && spec.additional) goal.push_back(*spec.additional);
    }
    const auto is_never = [](const Term& term) {
      return term.kind == Term::kNever ||
             (term.kind == Term::kSchema && term.json->is_boolean() && !term.json->get<bool>());
    };
    if (std::any_of(goal.begin(), goal.end(), is_never)) continue;
    std::vector<ExprId> language = {name_language(branch)};
    for (const std::string& text : patterns)
      language.push_back(matches(text) ? pattern(text, "") : arena.complement(pattern(text, "")));
    if (!contents.empty()) language.push_back(arena.complement(arena.one_of({contents.begin(), contents.end()})));
    const ExprId name = arena.both(std::move(language));
    if (!arena.is_empty(name)) pairs.push_back(pair(shared(spelling_.name(name)), goal));
  }
  members->others = arena.either(std::move(pairs));
}

ExprId SchemaRules::pair(ExprId quoted_name, const Goal& goal) {
  ExprArena& arena = rules_.arena;
  const ExprId value = arena.concat(spelling_.space_after_colon(), value_of(goal));
  return arena.concat(quoted_name, arena.concat(arena.byte(':'), value));
}

// Other members behind `count` of them, in a list that counts up to `last`.
ExprId SchemaRules::others_from(const Branch& branch, const Members& members, int64_t count, int64_t last) {
  ExprArena& arena = rules_.arena;
  const auto end = [&](int64_t n) { return n >= branch.min_properties ? kEmptyString : kNothing; };
  if (members.others == kNothing) return end(count);
  const ExprId next = arena.concat(comma(), members.others);
  ExprId list;
  if (branch.max_properties == kNoBound) {
    list = arena.concat(arena.star(next), end(last));
    for (int64_t n = last - 1; n >= std::max<int64_t>(count, 1); --n)
      list = arena.either(arena.concat(next, list), end(n));
  } else {
    list = end(branch.max_properties);
    for (int64_t n = branch.max_properties - 1; n >= std::max<int64_t>(count, 1); --n)
      list = arena.either(arena.concat(next, list), end(n));
  }
  if (count > 0) return list;
  // The first of all has no comma before it.
  return branch.max_properties == 0 ? end(0) : arena.either(arena.concat(members.others, list), end(0));
}

// The same, not taken into unions member by member: of many optional properties each would be in a union with all that
// follow it.
ExprId SchemaRules::apart(ExprId list) {
  const ExprId call = shared(list);
  return rules_.arena.is_nullable(list) ? rules_.arena.optional(call) : call;
}

// list[i][count]: from member i on, when `count` are there, where more than `last` count as `last`.
ExprId SchemaRules::member_list(const Branch& branch, const Members& members) {
  ExprArena& arena = rules_.arena;
  const bool is_bounded = branch.max_properties != kNoBound;
  const int64_t last = is_bounded ? branch.max_properties + 1 : std::max<int64_t>(branch.min_properties, 1);
  const auto num_named = static_cast<int64_t>(members.named.size());
  if ((num_named + 1) * last > kMaxMemberStates || last > 1000)
    throw SchemaError{resource_exhausted("schema: minProperties or maxProperties is too large")};
  std::vector<ExprId> list(static_cast<size_t>(last) + 1, kNothing);
  for (int64_t count = 0; count <= last; ++count)
    if (!is_bounded || count <= branch.max_properties) list[count] = others_from(branch, members, count, last);
  for (int64_t i = num_named - 1; i >= 0; --i) {
    const Member& member = members.named[i];
    const ExprId one = pair(spelling_.name_of(member.name), member.goal), next = arena.concat(comma(), one);
    for (int64_t count = 0; count <= last; ++count) {
      const ExprId behind = list[std::min(count + 1, last)];
      const ExprId with = arena.concat(count == 0 ? one : next, behind);
      list[count] = member.is_required ? with : arena.either(with, list[count]);
      if (i > 0 && i % kMembersOfUnion == 0) list[count] = apart(list[count]);
    }
  }
  return list[0];
}

ExprId SchemaRules::object_of(const Branch& branch) {
  if (branch.min_properties > branch.max_properties) return kNothing;
  const Members members = members_of(branch);
  // Other members may repeat a name, so only the first of them is sure to count.
  if (members.others != kNothing && branch.min_properties > members.num_required + 1)
    refuse(branch.min_properties_pointer, "minProperties",
           "more than one beyond the required properties cannot be enforced while others are allowed");
  return enclosed('{', member_list(branch, members), '}');
}

}  // namespace llmb::grammar
