#include "io/csv.h"

#include <algorithm>
#include <set>
#include <utility>

#include "io/json_writer.h"

namespace llmb {

void CsvQuotes::read(std::string_view piece) {
  for (const char c : piece) {
    if (state_ == State::kQuoted) {
      if (c == '"') state_ = State::kQuoteInQuoted;
    } else if (c == separator_) {
      state_ = State::kFieldBegins;
    } else if (c == '"' && state_ != State::kPlain) {
      state_ = State::kQuoted;  // a field begins with it, or it is the second of two
    } else {
      state_ = State::kPlain;
    }
  }
}

Result<std::vector<std::string>> split_csv_row(std::string_view row, char separator) {
  std::vector<std::string> fields;
  size_t pos = 0;
  while (true) {
    std::string field;
    if (pos < row.size() && row[pos] == '"') {
      const size_t begin = pos++;
      while (true) {
        const size_t quote = row.find('"', pos);
        if (quote == row.npos)
          return invalid_argument("the quote that opens at byte " + std::to_string(begin) + " of the row never closes");
        field.append(row, pos, quote - pos);
        pos = quote + 1;
        if (pos == row.size() || row[pos] != '"') break;
        field += row[pos++];
      }
      if (pos < row.size() && row[pos] != separator)
        return invalid_argument("text follows the closing quote at byte " + std::to_string(pos - 1) + " of the row");
    } else {
      const size_t end = std::min(row.find(separator, pos), row.size());
      field = row.substr(pos, end - pos);
      pos = end;
    }
    fields.push_back(std::move(field));
    if (pos == row.size()) return fields;
    ++pos;
  }
}

Result<std::shared_ptr<const CsvColumns>> parse_csv_header(std::string_view row, char separator) {
  LLMB_ASSIGN_OR_RETURN(std::vector<std::string> names, split_csv_row(row, separator));
  std::set<std::string_view> seen;
  for (const std::string& name : names) {
    if (name.empty()) return invalid_argument("a column has no name");
    if (!seen.insert(name).second) return invalid_argument("two columns are named " + name);
  }
  return std::make_shared<const CsvColumns>(std::move(names));
}

Result<std::string> csv_row_to_json(std::string_view row, char separator, const CsvColumns& columns) {
  LLMB_ASSIGN_OR_RETURN(const std::vector<std::string> fields, split_csv_row(row, separator));
  if (fields.size() > columns.size())
    return invalid_argument("the row has " + std::to_string(fields.size()) + " fields, the header " +
                            std::to_string(columns.size()));
  std::string json;
  JsonWriter writer(json);
  writer.begin_object();
  for (size_t i = 0; i < fields.size(); ++i) {
    writer.key(columns[i]);
    writer.string(fields[i]);
  }
  writer.end_object();
  return json;
}

}  // namespace llmb
