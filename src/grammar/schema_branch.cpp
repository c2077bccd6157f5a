#include "grammar/schema_branch.h"

#include <map>
#include <string_view>

namespace llmb::grammar {

namespace {

void append(auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); }

std::string unescape_pointer(std::string_view part) {
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    const bool is_percent = part[i] == '%' && i + 2 < part.size() &&
                            std::isxdigit(static_cast<unsigned char>(part[i + 1])) &&
                            std::isxdigit(static_cast<unsigned char>(part[i + 2]));
    if (is_percent) {
      out += static_cast<char>(std::stoi(std::string(part.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      out += part[i];
    }
  }
  std::string plain;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool is_escape = out[i] == '~' && i + 1 < out.size() && (out[i + 1] == '0' || out[i + 1] == '1');
    plain += is_escape ? (out[++i] == '0' ? '~' : '/') : out[i];
  }
  return plain;
}

// The schemas with `$anchor`: name, wherever they are but in constants.
void find_anchor(const Json& json, const std::string& name, const std::string& pointer, ExprArena* arena,
                 std::vector<Term>* found) {
  arena->spend(static_cast<int64_t>(json.size()));
  if (json.is_object())
    for (const auto& [key, value] : json.items()) {
      if (key == "$anchor" && value == name) found->push_back({Term::kSchema, &json, pointer});
      if (key != "const" && key != "enum" && value.is_structured())
        find_anchor(value, name, join_pointer(pointer, key), arena, found);
    }
  if (json.is_array())
    for (size_t i = 0; i < json.size(); ++i)
      if (json[i].is_structured()) find_anchor(json[i], name, join_pointer(pointer, std::to_string(i)), arena, found);
}

}  // namespace

void Branch::merge(const Branch& other) {
  types &= other.types;
  append(numbers, other.numbers);
  append(strings, other.strings);
  min_length = std::max(min_length, other.min_length);
  max_length = std::min(max_length, other.max_length);
  append(arrays, other.arrays);
  append(contains, other.contains);
  min_items = std::max(min_items, other.min_items);
  max_items = std::min(max_items, other.max_items);
  if (!other.unique_pointer.empty()) unique_pointer = other.unique_pointer;
  append(objects, other.objects);
  append(names, other.names);
  append(required, other.required);
  append(forbidden, other.forbidden);
  if (other.min_properties > min_properties)
    min_properties = other.min_properties, min_properties_pointer = other.min_properties_pointer;
  max_properties = std::min(max_properties, other.max_properties);
}

size_t Branch::size() const {
  size_t count = numbers.size() + strings.size() + contains.size() + names.size() + required.size() + forbidden.size();
  for (const ArraySpec& spec : arrays) count += 1 + spec.prefix.size();
  for (const ObjectSpec& spec : objects) count += 1 + 2 * (spec.properties.size() + spec.patterns.size());
  return count;
}

std::string join_pointer(const std::string& pointer, const std::string& member) {
  std::string out = pointer + "/";
  for (const char c : member) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

void refuse(const std::string& pointer, const std::string& keyword, const std::string& why) {
  throw SchemaError{unsupported("schema: \"" + keyword + "\" at #" + join_pointer(pointer, keyword) + ": " + why)};
}

int32_t SchemaDocument::draft_at(const std::string& pointer) const {
  for (const auto& [place, its_draft] : drafts)
    if ((pointer + "/").starts_with(place + "/")) return its_draft;
  return draft;
}

void SchemaDocument::check_known(const std::string& keyword, const std::string& pointer) const {
  static const std::map<std::string_view, int32_t> kFirstDrafts = {{"const", 6},
                                                                   {"contains", 6},
                                                                   {"propertyNames", 6},
                                                                   {"if", 7},
                                                                   {"minContains", 2019},
                                                                   {"maxContains", 2019},
                                                                   {"dependentRequired", 2019},
                                                                   {"dependentSchemas", 2019},
                                                                   {"unevaluatedItems", 2019},
                                                                   {"unevaluatedProperties", 2019},
                                                                   {"prefixItems", 2020}};
  const auto first = kFirstDrafts.find(keyword);
  if (first == kFirstDrafts.end() || draft_at(pointer) >= first->second) return;
  refuse(pointer, keyword,
         "the draft that \"$schema\" names ignores it; name a later one there, or take the keyword out");
}

// In draft 4 an "id" changes what references below it refer to.
void SchemaDocument::check_base(const std::string& pointer) const {
  const Json* at = &root;
  for (size_t begin = 1; begin <= pointer.size();) {
    const size_t end = std::min(pointer.find('/', begin), pointer.size());
    const std::string member = unescape_pointer(std::string_view(pointer).substr(begin, end - begin));
    at = at->is_array() ? &(*at)[std::stoul(member)] : &(*at)[member];
    const bool is_document = std::any_of(drafts.begin(), drafts.end(),
                                         [&](const auto& part) { return part.first == pointer.substr(0, end); });
    const auto id = at->is_object() && !is_document ? at->find("id") : at->end();
    if (at->is_object() && id != at->end() && id->is_string() && !id->get<std::string>().starts_with('#'))
      refuse(pointer, "$ref", "draft 4 takes it relative to an \"id\" above it, which cannot be enforced");
    begin = end + 1;
  }
}

Term SchemaDocument::resolve(const std::string& ref, const std::string& pointer, ExprArena* arena) const {
  const bool is_draft_4 = draft_at(pointer) == 4;
  if (is_draft_4) check_base(pointer);
  const auto id = root.is_object() ? root.find(is_draft_4 ? "id" : "$id") : root.end();
  const std::string root_id = id != root.end() && id->is_string() ? id->get<std::string>() : "";
  std::string part = ref;
  if (!root_id.empty() && part.starts_with(root_id)) part = part.substr(root_id.size());
  if (part == "#" || part.empty()) return {Term::kSchema, &root, ""};
  if (part[0] != '#') refuse(pointer, "$ref", "\"" + ref + "\" is outside of this schema");
  if (part[1] != '/') {
    std::vector<Term> found;
    find_anchor(root, part.substr(1), "", arena, &found);
    if (found.size() != 1) refuse(pointer, "$ref", "\"" + ref + "\" is not the $anchor of one schema");
    return found[0];
  }
  const Json* at = &root;
  std::string path;
  for (size_t begin = 2; begin <= part.size();) {
    const size_t end = std::min(part.find('/', begin), part.size());
    const std::string member = unescape_pointer(std::string_view(part).substr(begin, end - begin));
    path = join_pointer(path, member);
    arena->spend(1 + static_cast<int64_t>(at->size()) / 8);
    const bool is_index =
        !member.empty() && member.size() < 9 && member.find_first_not_of("0123456789") == std::string::npos;
    if (at->is_object() && at->contains(member)) at = &(*at)[member];
    else if (at->is_array() && is_index && std::stoul(member) < at->size()) at = &(*at)[std::stoul(member)];
    else refuse(pointer, "$ref", "\"" + ref + "\" leads nowhere");
    begin = end + 1;
  }
  return {Term::kSchema, at, path};
}

}  // namespace llmb::grammar
