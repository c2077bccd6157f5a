#include "text/regex_properties.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <cstdio>
#include <map>

#include "text/unicode_tables.h"

namespace llmb {

namespace {

constexpr const char* kSpaceItems =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr const char* kHexItems = "0-9A-Fa-f";

// The ranges of a table whose name begins with `name`, neighbours joined.
std::string new_items(const CategoryRange* ranges, size_t num_ranges, std::string_view name) {
  std::string items;
  for (size_t i = 0; i < num_ranges;) {
    if (!std::string_view(ranges[i].name).starts_with(name)) {
      ++i;
      continue;
    }
    const char32_t first = ranges[i].first;
    char32_t last = ranges[i].last;
    for (++i; i < num_ranges && ranges[i].first == last + 1 && std::string_view(ranges[i].name).starts_with(name);
         ++i) {
      last = ranges[i].last;
    }
    items += hex_escape(first) + "-" + hex_escape(last);
  }
  return items;
}

// Names as they are looked up: lower case, without what separates words.
std::string fold_name(std::string_view name) {
  std::string key;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return key;
}

// Long names of general categories.
const std::map<std::string, std::string>& category_names() {
  static const std::map<std::string, std::string> table = {{"letter", "L"},
                                                           {"uppercaseletter", "Lu"},
                                                           {"lowercaseletter", "Ll"},
                                                           {"titlecaseletter", "Lt"},
                                                           {"modifierletter", "Lm"},
                                                           {"otherletter", "Lo"},
                                                           {"mark", "M"},
                                                           {"nonspacingmark", "Mn"},
                                                           {"spacingmark", "Mc"},
                                                           {"enclosingmark", "Me"},
                                                           {"number", "N"},
                                                           {"decimalnumber", "Nd"},
                                                           {"letternumber", "Nl"},
                                                           {"othernumber", "No"},
                                                           {"punctuation", "P"},
                                                           {"connectorpunctuation", "Pc"},
                                                           {"dashpunctuation", "Pd"},
                                                           {"openpunctuation", "Ps"},
                                                           {"closepunctuation", "Pe"},
                                                           {"initialpunctuation", "Pi"},
                                                           {"finalpunctuation", "Pf"},
                                                           {"otherpunctuation", "Po"},
                                                           {"symbol", "S"},
                                                           {"mathsymbol", "Sm"},
                                                           {"currencysymbol", "Sc"},
                                                           {"modifiersymbol", "Sk"},
                                                           {"othersymbol", "So"},
                                                           {"separator", "Z"},
                                                           {"spaceseparator", "Zs"},
                                                           {"lineseparator", "Zl"},
                                                           {"paragraphseparator", "Zp"},
                                                           {"other", "C"},
                                                           {"control", "Cc"},
                                                           {"format", "Cf"},
                                                           {"privateuse", "Co"}};
  return table;
}

bool compiles(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &offset, nullptr);
  const bool ok = code != nullptr;
  pcre2_code_free(code);
  return ok;
}

// The POSIX classes, as properties. Between [: and :] punct has the symbols too.
std::string posix_property(const std::string& key) {
  if (key == "alpha") return "\\p{Alphabetic}" + new_items(kNewCharacters, kNumNewCharacters, "L");
  if (key == "alnum") return posix_property("alpha") + category_items("Nd");
  if (key == "upper") return "\\p{Uppercase}" + new_items(kNewCharacters, kNumNewCharacters, "Lu");
  if (key == "lower") return "\\p{Lowercase}" + new_items(kNewCharacters, kNumNewCharacters, "Ll");
  if (key == "digit") return category_items("Nd");
  if (key == "punct") return category_items("P");
  if (key == "space") return space_items();
  if (key == "word") return word_items();
  if (key == "xdigit") return hex_digit_items();
  if (key == "blank") return "\\t\\p{Zs}";
  if (key == "cntrl") return "\\p{Cc}";
  if (key == "ascii") return "\\x{0}-\\x{7f}";
  if (key == "any") return "\\x{0}-\\x{10ffff}";
  return "";
}

}  // namespace

std::string hex_escape(char32_t c) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "\\x{%x}", static_cast<unsigned>(c));
  return buffer;
}

std::string space_items() { return kSpaceItems; }
std::string hex_digit_items() { return kHexItems; }

// A general category such as L or Lu, with the characters that Oniguruma's Unicode 16 has and PCRE2 10.42's 14 has not.
std::string category_items(const std::string& name) {
  return "\\p{" + name + "}" + new_items(kNewCharacters, kNumNewCharacters, name);
}

const std::string& word_items() {
  static const std::string items = category_items("L") + category_items("M") + category_items("Nd") +
                                   category_items("Nl") + category_items("Pc") +
                                   "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
  return items;
}

// Outside brackets Oniguruma counts the numerals of Latin-1 in.
std::string lone_word_items() { return word_items() + "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"; }

// The items of \p{name}; a name that PCRE2 does not know either makes the pattern's compilation fail.
std::string property_items(const std::string& name) {
  const std::string key = fold_name(name);
  const std::string posix = posix_property(key);
  if (!posix.empty()) return posix;
  const auto known = category_names().find(key);
  if (known != category_names().end()) return category_items(known->second);
  if (key.size() <= 2 && std::string_view("lmnpszc").find(key[0]) != std::string_view::npos) {
    std::string category = key;
    category[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(category[0])));
    if (compiles("\\p{" + category + "}")) return category_items(category);
  }
  const std::string script = "\\p{sc:" + name + "}";  // PCRE2's plain name would be the script extensions
  if (compiles(script)) {
    std::string title = key;
    title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
    return script + new_items(kNewScriptCharacters, kNumNewScriptCharacters, title);
  }
  return "\\p{" + name + "}";
}

std::string posix_items(std::string_view name) {
  const std::string key = fold_name(name);
  return key == "punct" ? category_items("P") + category_items("S") : posix_property(key);
}

}  // namespace llmb
