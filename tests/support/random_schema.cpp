#include "tests/support/random_schema.h"

#include <algorithm>

#include "base/utf8.h"

namespace llmb::test {

namespace {

struct Part {
  std::string schema;
  Naive naive;
};

// A notation of values: JSON, or Gemma's with this quote.
struct Notation {
  std::string quote;  // "": JSON

  Naive space() const;
  Naive comma() const { return Naive::sequence({Naive::text(","), space()}); }
  Naive behind_colon() const { return quote.empty() ? Naive::one_of({"", " "}) : Naive::text(""); }
  std::string mark() const { return quote.empty() ? "\"" : quote; }
  Naive quoted(Naive inner) const { return Naive::sequence({Naive::text(mark()), std::move(inner), Naive::text(mark())}); }
  std::string name(const std::string& text) const { return quote.empty() ? "\"" + text + "\"" : text; }
};

Naive Notation::space() const {
  if (!quote.empty()) return Naive::text("");
  const Naive indent = Naive::repeat(Naive::one_of({" ", "\t"}), 0, 32);
  return Naive::either({Naive::text(""), Naive::text(" "), Naive::sequence({Naive::text("\n"), indent})});
}

// Digits of \u, hex, in a range; -1: the text ends before the last.
int hex4(const std::string& text, size_t at, int low, int high) {
  std::string digits;
  for (size_t i = at; i < at + 4 && i < text.size(); ++i) {
    if (!std::isxdigit(static_cast<unsigned char>(text[i]))) return 0;
    digits += text[i];
  }
  std::string least = digits, most = digits;
  least.resize(4, '0'), most.resize(4, 'f');
  const int from = std::stoi(least, nullptr, 16), to = std::stoi(most, nullptr, 16);
  if (to < low || from > high) return 0;
  return digits.size() < 4 ? -1 : 4;
}

// One character of a JSON string, as it is or escaped in any way.
int any_string_char(const std::string& text, size_t at) {
  if (at >= text.size()) return -1;
  const char c = text[at];
  if (c == '"' || static_cast<unsigned char>(c) < 0x20) return 0;
  if (c != '\\') {
    const Utf8Step step = utf8_step(std::string_view(text).substr(at));
    return step.kind == Utf8Step::kValid ? static_cast<int>(step.length) : step.kind == Utf8Step::kIncomplete ? -1 : 0;
  }
  if (at + 1 >= text.size()) return -1;
  if (std::string("\"\\/bfnrt").find(text[at + 1]) != std::string::npos) return 2;
  if (text[at + 1] != 'u') return 0;
  for (const auto& [low, high] : {std::pair{0, 0xD7FF}, {0xE000, 0xFFFF}})
    if (const int digits = hex4(text, at + 2, low, high); digits != 0) return digits < 0 ? -1 : 6;
  const int first = hex4(text, at + 2, 0xD800, 0xDBFF);
  if (first <= 0) return first;
  if (at + 6 >= text.size()) return -1;
  if (text[at + 6] != '\\') return 0;
  if (at + 7 >= text.size()) return -1;
  if (text[at + 7] != 'u') return 0;
  const int second = hex4(text, at + 8, 0xDC00, 0xDFFF);
  return second <= 0 ? second : 12;
}

// One character in the spelling of names: escaped only where it must be.
int name_char(const std::string& text, size_t at) {
  const int length = any_string_char(text, at);
  if (length == 0 || at >= text.size() || text[at] != '\\' || at + 1 >= text.size()) return length;
  if (text[at + 1] == '/') return 0;
  if (text[at + 1] != 'u') return length;
  const std::string rest = text.substr(at + 2, 4), zeros = "00";
  if (rest.compare(0, std::min<size_t>(rest.size(), 2), zeros, 0, std::min<size_t>(rest.size(), 2)) != 0) return 0;
  if (rest.size() > 2 && rest[2] != '0' && rest[2] != '1') return 0;
  if (rest.size() > 3 && std::isupper(static_cast<unsigned char>(rest[3]))) return 0;
  if (rest.size() < 4) return -1;
  return std::string("\b\f\n\r\t").find(static_cast<char>(std::stoi(rest, nullptr, 16))) == std::string::npos ? 6 : 0;
}

// A quoted name that is none of those.
Naive other_name(std::vector<std::string> names) {
  return Naive::scanned([names = std::move(names)](const std::string& text, size_t at) {
    if (at >= text.size()) return -1;
    if (text[at] != '"') return 0;
    for (size_t i = at + 1;;) {
      if (i >= text.size()) return -1;
      if (text[i] == '"')
        return std::count(names.begin(), names.end(), text.substr(at + 1, i - at - 1)) > 0
                   ? 0
                   : static_cast<int>(i + 1 - at);
      const int length = name_char(text, i);
      if (length <= 0) return length;
      i += static_cast<size_t>(length);
    }
  });
}

// How many characters the text has, the last of them perhaps in part; -1: it is no UTF-8.
int count_chars(const std::string& text, size_t begin, size_t end) {
  int count = 0;
  for (size_t at = begin; at < end; ++count) {
    const Utf8Step step = utf8_step(std::string_view(text).substr(at, end - at));
    if (step.kind == Utf8Step::kInvalid) return -1;
    at += step.length;
  }
  return count;
}

// A string of min to max characters between quotes, up to the first of these that can end it.
Naive string_between(const std::string& quote, int min, int max) {
  return Naive::scanned([=](const std::string& text, size_t at) {
    const std::string_view rest = std::string_view(text).substr(at);
    if (rest.size() < quote.size()) return quote.starts_with(rest) ? -1 : 0;
    if (!rest.starts_with(quote)) return 0;
    const size_t begin = at + quote.size(), end = text.find(quote, begin);
    const auto fits = [&](int count) { return count >= 0 && (max < 0 || count <= max); };
    if (end != text.npos) {
      const int count = count_chars(text, begin, end);
      return fits(count) && count >= min ? static_cast<int>(end + quote.size() - at) : 0;
    }
    if (fits(count_chars(text, begin, text.size()))) return -1;
    for (size_t size = 1; size < quote.size() && begin + size <= text.size(); ++size) {
      if (!quote.starts_with(std::string_view(text).substr(text.size() - size))) continue;
      const int count = count_chars(text, begin, text.size() - size);
      if (fits(count) && count >= min) return -1;
    }
    return 0;
  });
}

// A name that is none of those: bare, or between quotes where it could not be bare.
Naive other_bare_name(const std::string& quote, std::vector<std::string> names) {
  const std::string marks = ":,{}[]<";
  const Naive in_quotes = string_between(quote, 0, -1);
  return Naive::scanned([=, names = std::move(names)](const std::string& text, size_t at) {
    if (at < text.size() && text[at] == '<') {
      const int length = in_quotes.scan(text, at);
      if (length <= 0) return length;
      const std::string inner = text.substr(at + quote.size(), static_cast<size_t>(length) - 2 * quote.size());
      return inner.empty() || inner.find_first_of(marks) != inner.npos ? length : 0;
    }
    const size_t end = std::min(text.find_first_of(marks, at), text.size());
    if (count_chars(text, at, end) < 0) return 0;
    if (end == text.size()) return -1;
    const std::string name = text.substr(at, end - at);
    return !name.empty() && std::count(names.begin(), names.end(), name) == 0 ? static_cast<int>(name.size()) : 0;
  });
}

class Maker {
 public:
  Maker(TestRng& rng, Notation notation) : rng_(rng), notation_(std::move(notation)) {}

  Part any(int depth) {
    const int kind = rng_.between(0, depth > 0 ? 9 : 5);
    switch (kind) {
      case 0:
        return constants();
      case 1:
        return integers();
      case 2:
      case 3:
        return strings();
      case 4:
        return {R"({"type":"boolean"})", Naive::one_of({"true", "false"})};
      case 5:
        return {R"({"type":"null"})", Naive::text("null")};
      case 6:
        return arrays(depth);
      case 7:
        return either(depth);
      default:
        return objects(depth);
    }
  }

 private:
  std::string count(const char* name, int value) { return std::string(",\"") + name + "\":" + std::to_string(value); }

  Part constants() {
    // As JSON, and the contents of strings.
    const std::vector<std::pair<std::string, std::string>> all = {
        {"\"red\"", "red"}, {"\"re\"", "re"}, {"\"größe\"", "größe"}, {"\"a\\\"b\"", "a\"b"}, {"1", ""},
        {"-20", ""},        {"2.5", ""},      {"null", ""},           {"true", ""},              {"\"\"", ""}};
    std::vector<std::string> texts;
    std::string list;
    for (int i = rng_.between(1, 4); i > 0; --i) {
      const auto& [json, content] = all[rng_.between(0, static_cast<int32_t>(all.size()) - 1)];
      const bool is_raw = !notation_.quote.empty() && json[0] == '"';
      texts.push_back(is_raw ? notation_.quote + content + notation_.quote : json);
      list += (list.empty() ? "" : ",") + json;
    }
    if (texts.size() == 1 && rng_.chance(0.5)) return {"{\"const\":" + list + "}", Naive::one_of(texts)};
    return {"{\"enum\":[" + list + "]}", Naive::one_of(texts)};
  }

  Part integers() {
    const int low = rng_.between(-130, 120), high = low + rng_.between(0, 130),
              step = rng_.chance(0.3) ? rng_.between(2, 9) : 1;
    std::vector<std::string> texts;
    for (int i = low; i <= high; ++i)
      if (i % step == 0) texts.push_back(std::to_string(i));
    if (texts.empty()) return constants();
    std::string bounds = count("maximum", high);
    bounds += rng_.chance(0.5) ? count("minimum", low) : count("exclusiveMinimum", low - 1);
    if (step > 1) bounds += count("multipleOf", step);
    return {R"({"type":"integer")" + bounds + "}", Naive::one_of(texts)};
  }

  Part strings() {
    const bool is_json = notation_.quote.empty();
    const auto quoted = [&](Naive inner) { return notation_.quoted(std::move(inner)); };
    if (rng_.chance(0.3)) {
      const std::vector<std::pair<std::string, Naive>> patterns = {
          {"^[ab]{1,3}$", Naive::repeat(Naive::one_of({"a", "b"}), 1, 3)},
          {"^(the|an?)( e)*$",
           Naive::sequence({Naive::one_of({"the", "an", "a"}), Naive::repeat(Naive::text(" e"), 0, -1)})},
          {"^é?\\\\n[\\\"2]$",
           Naive::sequence({Naive::one_of({"", "é"}), Naive::text(is_json ? "\\n" : "\n"),
                            Naive::one_of({is_json ? "\\\"" : "\"", "2"})})}};
      const auto& [pattern, naive] = patterns[rng_.between(0, 2)];
      return {R"({"type":"string","pattern":")" + pattern + "\"}", quoted(naive)};
    }
    const Naive one = Naive::scanned(any_string_char);
    const auto text = [&](int least, int most) {
      return is_json ? quoted(Naive::repeat(one, least, most)) : string_between(notation_.quote, least, most);
    };
    if (rng_.chance(0.4)) return {R"({"type":"string"})", text(0, -1)};
    const int min = rng_.between(0, 3), max = rng_.chance(0.3) ? -1 : min + rng_.between(0, 4);
    return {R"({"type":"string")" + (min > 0 ? count("minLength", min) : "") +
                (max >= 0 ? count("maxLength", max) : "") + "}",
            text(min, max)};
  }

  Part arrays(int depth) {
    const Part item = any(depth - 1);
    const int min = rng_.between(0, 2), max = rng_.chance(0.5) ? -1 : min + rng_.between(0, 2);
    std::vector<Naive> lists;
    if (min == 0) lists.push_back(space());
    const Naive more = Naive::repeat(Naive::sequence({comma(), item.naive}), std::max(min - 1, 0),
                                     max < 0 ? -1 : std::max(max - 1, 0));
    if (max != 0) lists.push_back(Naive::sequence({space(), item.naive, more, space()}));
    else lists = {Naive::sequence({space(), Naive::text("")}), Naive::sequence({space(), space()})};
    if (min == 0) lists.push_back(Naive::sequence({space(), space()}));
    const Naive naive = Naive::sequence({Naive::text("["), Naive::either(lists), Naive::text("]")});
    return {R"({"type":"array","items":)" + item.schema + (min > 0 ? count("minItems", min) : "") +
                (max >= 0 ? count("maxItems", max) : "") + "}",
            naive};
  }

  Part either(int depth) {
    const Part a = any(depth - 1), b = any(depth - 1);
    return {"{\"anyOf\":[" + a.schema + "," + b.schema + "]}", Naive::either({a.naive, b.naive})};
  }

  // Every subset of the properties that holds the required ones is a list of its own.
  Part objects(int depth) {
    const int num_named = rng_.between(0, 3);
    const std::vector<std::string> names = {"a", "name", "né"};
    std::string properties, required;
    std::vector<Naive> pairs;
    int required_bits = 0;
    for (int i = 0; i < num_named; ++i) {
      const Part value = any(depth - 1);
      properties += (i > 0 ? "," : "") + ("\"" + names[i] + "\":") + value.schema;
      pairs.push_back(
          Naive::sequence({Naive::text(notation_.name(names[i]) + ":"), notation_.behind_colon(), value.naive}));
      if (rng_.chance(0.5)) required_bits |= 1 << i, required += (required.empty() ? "\"" : ",\"") + names[i] + "\"";
    }
    const bool is_open = rng_.chance(0.3);
    const Part other = is_open ? any(depth - 1) : Part{"false", {}};
    const std::vector<std::string> taken(names.begin(), names.begin() + num_named);
    const Naive other_one = notation_.quote.empty() ? other_name(taken) : other_bare_name(notation_.quote, taken);
    const Naive other_pair =
        Naive::sequence({other_one, Naive::text(":"), notation_.behind_colon(), other.naive});
    std::vector<Naive> lists;
    for (int bits = 0; bits < 1 << num_named; ++bits) {
      if ((bits & required_bits) != required_bits) continue;
      std::vector<Naive> list = {space()};
      for (int i = 0; i < num_named; ++i) {
        if ((bits >> i & 1) == 0) continue;
        if (list.size() > 1) list.push_back(comma());
        list.push_back(pairs[i]);
      }
      if (list.size() == 1) lists.push_back(space());
      if (is_open && list.size() == 1)
        lists.push_back(Naive::sequence(
            {space(), other_pair, Naive::repeat(Naive::sequence({comma(), other_pair}), 0, -1), space()}));
      if (is_open) list.push_back(Naive::repeat(Naive::sequence({comma(), other_pair}), 0, bits == 0 ? 0 : -1));
      list.push_back(space());
      lists.push_back(Naive::sequence(list));
    }
    const Naive naive = Naive::sequence({Naive::text("{"), Naive::either(lists), Naive::text("}")});
    return {"{\"type\":\"object\",\"properties\":{" + properties + "},\"required\":[" + required +
                "],\"additionalProperties\":" + other.schema + "}",
            naive};
  }

  Naive space() const { return notation_.space(); }
  Naive comma() const { return notation_.comma(); }

  TestRng& rng_;
  const Notation notation_;
};

// The part, or a list of it and of such lists, by the name "node".
Naive nested(const Part& part, const Notation& notation) {
  const Naive space = notation.space(), more = Naive::sequence({notation.comma(), Naive::call("node")});
  const Naive list = Naive::sequence(
      {Naive::text("["), space, Naive::call("node"), Naive::repeat(more, 0, -1), space, Naive::text("]")});
  const Naive none = Naive::sequence({Naive::text("["), space, Naive::either({space, Naive::text("")}), Naive::text("]")});
  return Naive::either({part.naive, list, none});
}

}  // namespace

RandomSchema random_schema(TestRng& rng) {
  RandomSchema out;
  const Notation json;
  const Part part = Maker(rng, json).any(2);
  // Now and then a list of such values that refers to itself.
  if (!rng.chance(0.3)) return out.schema = part.schema, out.naive = part.naive, out;
  out.rules["node"] = nested(part, json);
  out.naive = Naive::call("node");
  out.schema = "{\"$defs\":{\"part\":" + part.schema +
               "},\"anyOf\":[{\"$ref\":\"#/$defs/part\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}]}";
  return out;
}

RandomSchema random_arguments(TestRng& rng, const std::string& quote) {
  const Notation notation{quote};
  const Part part = Maker(rng, notation).any(2);
  const bool is_nested = rng.chance(0.3);
  RandomSchema out;
  out.rules["node"] = is_nested ? nested(part, notation) : part.naive;
  out.naive = Naive::sequence({Naive::text("{v:"), Naive::call("node"), Naive::text("}")});
  const std::string node = is_nested ? R"({"anyOf":[{"$ref":"#/$defs/part"},{"type":"array","items":{"$ref":"#/$defs/node"}}]})"
                                     : R"({"$ref":"#/$defs/part"})";
  out.schema = R"({"$defs":{"part":)" + part.schema + R"(,"node":)" + node +
               R"(},"type":"object","properties":{"v":{"$ref":"#/$defs/node"}},"required":["v"],"additionalProperties":false})";
  return out;
}

}  // namespace llmb::test
