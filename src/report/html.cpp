#include "report/html.h"

#include "report/svg.h"

namespace llmb {

namespace {

// Text from files may hold marks that turn the direction of writing: they end with the element.
std::string isolated(std::string_view text) { return "<bdi>" + escape_html(text) + "</bdi>"; }

std::string cell(const Cell& c, const std::string& element) {
  return "<" + element + (c.is_number ? " class=\"n\">" : ">") + c.html + "</" + element + ">";
}

}  // namespace

Cell text_cell(std::string_view text) { return {isolated(text), false}; }
Cell number_cell(std::string_view text) { return {escape_html(text), true}; }
Cell code_cell(std::string_view text) { return {"<code>" + isolated(text) + "</code>", false}; }
Cell absent_cell(std::string_view why) { return {"<span class=\"none\">" + escape_html(why) + "</span>", true}; }

std::string table(const std::vector<Cell>& columns, const std::vector<TableRow>& rows) {
  std::string out = "<div class=\"scroll\"><table>";
  if (!columns.empty()) {
    out += "<thead><tr>";
    for (const Cell& c : columns) out += cell(c, "th");
    out += "</tr></thead>";
  }
  out += "<tbody>";
  for (const TableRow& row : rows) {
    out += row.differs ? "<tr class=\"differs\">" : "<tr>";
    for (size_t i = 0; i < row.cells.size(); ++i) out += cell(row.cells[i], i == 0 ? "th" : "td");
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string figure(std::string_view title, std::string_view note, const std::string& svg) {
  std::string out = "<figure><figcaption>" + escape_html(title);
  if (!note.empty()) out += " <small>" + escape_html(note) + "</small>";
  return out + "</figcaption>" + svg + "</figure>\n";
}

std::string plots(const std::vector<std::string>& figures) {
  const bool is_even = figures.size() % 2 == 0;  // then two beside each other, else three
  std::string out = is_even ? "<div class=\"plots pairs\">\n" : "<div class=\"plots\">\n";
  for (const std::string& f : figures) out += f;
  return out + "</div>\n";
}

std::string section(std::string_view title, std::string_view lead, const std::string& body) {
  std::string out = "<section><h2>" + escape_html(title) + "</h2>\n";
  if (!lead.empty()) out += "<p class=\"lead\">" + escape_html(lead) + "</p>\n";
  return out + body + "</section>\n";
}

}  // namespace llmb
