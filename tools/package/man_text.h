// The markup of manual pages, and Markdown turned into it.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace llmb {

inline std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

inline std::string roff(std::string text) {
  text = replace_all(replace_all(replace_all(text, "\\", "\\e"), "-", "\\-"), "…", "...");
  return replace_all(replace_all(text, "'", "\\(aq"), "\n.", "\n\\&.");
}

inline std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
inline std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

// `code` and **strong** words become bold. Neither may hold the other.
inline std::string roff_inline(const std::string& text) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t mark = text.find_first_of("`*", at);
    const std::string quote = mark == std::string::npos ? "" : text[mark] == '`' ? "`" : "**";
    const size_t end = quote.empty() ? mark : text.find(quote, mark + quote.size());
    if (end == std::string::npos || !text.substr(mark).starts_with(quote)) break;
    out += roff(text.substr(at, mark - at)) + bold(text.substr(mark + quote.size(), end - mark - quote.size()));
    at = end + quote.size();
  }
  return out + roff(text.substr(at));
}

// "| a | b |": {"a", "b"}. A stroke inside `code` is part of its cell.
inline std::vector<std::string> table_cells(const std::string& row) {
  std::vector<std::string> cells;
  std::string cell;
  bool in_code = false;
  for (const char c : row.substr(1)) {
    if (c == '`') in_code = !in_code;
    if (c != '|' || in_code) {
      cell += c;
      continue;
    }
    const size_t begin = cell.find_first_not_of(' ');
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, cell.find_last_not_of(' ') - begin + 1));
    cell.clear();
  }
  return cells;
}

constexpr char upper_case(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 0x20) : c; }

// A row is an item: its first cell, then the second, then of each further one its column's name and its text.
inline std::string table_item(const std::vector<std::string>& names, const std::string& row) {
  std::vector<std::string> cells = table_cells(row);
  cells.at(1)[0] = upper_case(cells[1][0]);
  std::string out = ".TP\n" + roff_inline(cells.at(0)) + "\n" + roff_inline(cells.at(1)) + ".\n";
  for (size_t i = 2; i < cells.size(); ++i) {
    std::string name = names.at(i);
    name[0] = upper_case(name[0]);
    if (!cells[i].empty()) out += roff_inline(name + ": " + cells[i]) + ".\n";
  }
  return out;
}

// Sections of a manual page from Markdown: what stands in front of the first "## " is left out; "## ", "### ", "- ",
// tables, lines indented by four spaces, `code` and **strong** have their meaning. Everything else is text.
inline std::string man_sections(const std::string& markdown) {
  std::string out, paragraph, example;
  std::vector<std::string> column_names;
  const auto flush = [&out](std::string& text, const std::string& begin, const std::string& end) {
    if (!text.empty()) out += begin + text + end;
    text.clear();
  };
  std::istringstream lines(markdown.substr(markdown.find("\n## ")) + "\n");
  for (std::string line; std::getline(lines, line);) {
    const bool is_text = !line.empty() && line.find_first_of("#|-") != 0 && !line.starts_with("    ");
    if (!is_text) flush(paragraph = roff_inline(paragraph), ".PP\n", "\n");
    if (!line.starts_with("    ")) flush(example, ".PP\n.EX\n", ".EE\n");
    if (!line.starts_with("|")) column_names.clear();
    if (line.starts_with("    ")) example += roff("\n" + line.substr(4)).substr(1) + "\n";
    else if (line.starts_with("### ")) out += ".SS " + roff(line.substr(4)) + "\n";
    else if (line.starts_with("## ")) {
      std::transform(line.begin(), line.end(), line.begin(), upper_case);
      out += ".SH " + roff(line.substr(3)) + "\n";
    } else if (line.starts_with("- ")) out += ".IP \\(bu 2\n" + roff_inline(line.substr(2)) + "\n";
    else if (line.starts_with("|---")) continue;
    else if (line.starts_with("|") && column_names.empty()) column_names = table_cells(line);
    else if (line.starts_with("|")) out += table_item(column_names, line);
    else if (is_text) paragraph += (paragraph.empty() ? "" : "\n") + line;
  }
  return out;
}

}  // namespace llmb
