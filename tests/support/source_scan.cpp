#include "tests/support/source_scan.h"

#include <algorithm>
#include <cctype>
#include <regex>
#include <sstream>

namespace llmb::test {

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The end of the literal whose opening quote is at `at`. One that its line does not close is none (#error don't).
size_t literal_end(std::string_view s, size_t at) {
  const char quote = s[at];
  for (size_t i = at + 1; i < s.size() && s[i] != '\n'; ++i) {
    if (s[i] == '\\') ++i;
    else if (s[i] == quote) return i + 1;
  }
  return at + 1;
}

size_t raw_literal_end(std::string_view s, size_t at) {  // at: of R"delimiter(
  const size_t open = s.find('(', at);
  const std::string close = ")" + std::string(s.substr(at + 2, open - at - 2)) + "\"";
  return std::min(s.find(close, open), s.size() - close.size()) + close.size();
}

struct Word {
  std::string_view text;  // an identifier, a number, "::" or one character
  int line;
};

std::vector<Word> words_of(std::string_view s) {
  std::vector<Word> words;
  int line = 1;
  for (size_t at = 0; at < s.size();) {
    size_t end = at + 1;
    if (is_word(s[at]))
      while (end < s.size() && is_word(s[end])) ++end;
    else if (s.substr(at, 2) == "::") ++end;
    if (s[at] == '\n') ++line;
    else if (std::isspace(static_cast<unsigned char>(s[at])) == 0) words.push_back({s.substr(at, end - at), line});
    at = end;
  }
  return words;
}

// The code without preprocessor lines; line breaks stay.
std::string without_directives(const std::string& code) {
  std::stringstream in(code);
  std::string out;
  bool goes_on = false;
  for (std::string line; std::getline(in, line); out += '\n') {
    const size_t first = line.find_first_not_of(" \t");
    const bool is_directive = goes_on || (first != std::string::npos && line[first] == '#');
    goes_on = is_directive && line.ends_with('\\');
    if (!is_directive) out += line;
  }
  return out;
}

// The code without what stands in angle brackets, so that template arguments are not taken for names.
std::string without_angles(std::string code) {
  static const std::regex kInnermost(R"(<[^<>;(){}]*>)");
  for (;;) {
    std::string shorter = std::regex_replace(code, kInnermost, " ");
    if (shorter.size() == code.size()) return code;
    code = std::move(shorter);
  }
}

bool is_one_of(std::string_view word, const std::vector<std::string_view>& list) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// One declaration as far as it is read, outside parentheses.
struct Statement {
  int first_line = 0;
  bool names_scope = false;      // class, namespace, …
  bool has_parameters = false;   // parentheses
  bool has_initializer = false;  // = …
  bool lists_members = false;    // a constructor's : a_(…), b_{…}
  std::string_view last = {};    // word, also inside parentheses

  void take(std::string_view word) {
    names_scope = names_scope || is_one_of(word, {"namespace", "class", "struct", "enum", "union", "extern"});
    const bool after_name = !last.empty() && (last == "]" || (is_word(last[0]) && last != "operator"));
    has_initializer = has_initializer || (word == "=" && after_name);
    has_parameters = has_parameters || (word == "(" && !is_one_of(last, {"alignas", "__attribute__", "decltype"}));
    lists_members = lists_members || (word == ":" && has_parameters);
  }
};

enum class Brace { kScope, kFunction, kOther };

Brace kind_of_brace(const Statement& s) {
  const bool is_member = s.lists_members && is_word(s.last[0]);
  if (s.has_initializer || is_member) return Brace::kOther;
  return s.has_parameters ? Brace::kFunction : s.names_scope ? Brace::kScope : Brace::kOther;
}

// Walks over declarations: on_word(word before, word, next) for each word at a namespace's or a type's own level outside
// parentheses, on_function(first line, last line) for each function with a body.
template <typename OnWord, typename OnFunction>
void walk_declarations(std::string_view code, const OnWord& on_word, const OnFunction& on_function) {
  struct Open {
    Brace kind;
    int line;
  };
  const auto words = words_of(code);
  std::vector<Open> open;
  int num_parentheses = 0;
  Statement statement;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto [text, line] = words[i];
    const bool declares = num_parentheses == 0 && (open.empty() || open.back().kind == Brace::kScope);
    bool ends = false;
    if (statement.first_line == 0) statement.first_line = line;
    if (text == "{") {
      const Brace kind = declares ? kind_of_brace(statement) : Brace::kOther;
      open.push_back({kind, statement.first_line});
      ends = kind != Brace::kOther;
    } else if (text == "}" && !open.empty()) {
      if (open.back().kind == Brace::kFunction) on_function(open.back().line, line);
      ends = open.back().kind != Brace::kOther;
      open.pop_back();
    } else if (declares) {
      statement.take(text);
      on_word(statement.last, text, i + 1 < words.size() ? words[i + 1].text : std::string_view());
      ends = text == ";" || (text == ":" && is_one_of(statement.last, {"public", "protected", "private"}));
    }
    num_parentheses += text == "(" ? 1 : text == ")" ? -1 : 0;
    if (ends) statement = {};
    else statement.last = text;
  }
}

}  // namespace

std::string without_comments(std::string_view s) {
  std::string out;
  for (size_t at = 0; at < s.size();) {
    size_t end = at + 1;
    const std::string_view two = s.substr(at, 2);
    const bool after_word = at > 0 && is_word(s[at - 1]);  // 1'000, or the R of a name
    if (two == "//") end = std::min(s.find('\n', at), s.size());
    else if (two == "/*") end = std::min(s.find("*/", at + 2), s.size() - 2) + 2;
    else if (two == "R\"" && !after_word) end = raw_literal_end(s, at);
    else if (s[at] == '"' || (s[at] == '\'' && !after_word)) end = literal_end(s, at);
    if (end == at + 1) {
      out += s[at];
    } else {
      if (s[at] != '/') out += s[at] == '\'' ? "''" : "\"\"";
      out.append(static_cast<size_t>(std::count(s.begin() + at, s.begin() + end, '\n')), '\n');
      if (two == "/*") out += ' ';
    }
    at = end;
  }
  return out;
}

std::vector<std::string> quoted_includes(std::string_view source) {
  static const std::regex kInclude(R"(^\s*#\s*include\s+"([^"]+)\")");
  std::vector<std::string> includes;
  std::stringstream lines{std::string(source)};
  for (std::string line; std::getline(lines, line);)
    if (std::smatch match; std::regex_search(line, match, kInclude)) includes.push_back(match[1]);
  return includes;
}

std::set<std::string> identifiers(std::string_view source) {
  const std::string code = without_comments(source);
  std::set<std::string> names;
  for (const Word& word : words_of(code))
    if (is_word(word.text[0])) names.emplace(word.text);
  return names;
}

std::set<std::string> declared_names(std::string_view header) {
  static const std::regex kMacro(R"(#\s*define\s+(\w+))");
  static const std::regex kMacroCall(R"(\n[A-Z][A-Z0-9_]*\(([^()]*)\))");  // may declare what it is called with
  const std::string code = without_comments(header);
  std::set<std::string> names;
  for (std::sregex_iterator it(code.begin(), code.end(), kMacro), end; it != end; ++it) names.insert((*it)[1]);
  for (std::sregex_iterator it(code.begin(), code.end(), kMacroCall), end; it != end; ++it)
    names.merge(identifiers(it->str(1)));
  const auto on_word = [&](std::string_view before, std::string_view text, std::string_view next) {
    const bool is_namespace = before == "namespace" || (before == "::" && next == "{");
    if (!is_namespace && is_word(text[0]) && is_one_of(next, {"(", "=", ";", "{", ",", "[", ":", "}"})) names.emplace(text);
  };
  walk_declarations(without_angles(without_directives(code)), on_word, [](int, int) {});
  return names;
}

std::vector<FunctionExtent> function_extents(std::string_view source) {
  std::vector<FunctionExtent> extents;
  walk_declarations(
      without_directives(without_comments(source)), [](std::string_view, std::string_view, std::string_view) {},
      [&](int first, int last) { extents.push_back({first, last - first + 1}); });
  return extents;
}

}  // namespace llmb::test
