// Pieces of a page. Text is escaped where it enters a piece.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace llmb {

// A cell: text, or a piece of HTML made by these functions.
struct Cell {
  std::string html;
  bool is_number = false;
};

Cell text_cell(std::string_view text);
Cell number_cell(std::string_view text);
Cell code_cell(std::string_view text);
Cell absent_cell(std::string_view why = "–");

struct TableRow {
  std::vector<Cell> cells;  // the first names the row, where the table has no columns' names
  bool differs = false;     // shown in bold
};

// `columns` may be empty.
std::string table(const std::vector<Cell>& columns, const std::vector<TableRow>& rows);
// A plot with a title above and, smaller, a note behind it.
std::string figure(std::string_view title, std::string_view note, const std::string& svg);
std::string plots(const std::vector<std::string>& figures);
std::string section(std::string_view title, std::string_view lead, const std::string& body);

}  // namespace llmb
