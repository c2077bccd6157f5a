// Rows of CSV and TSV files, as RFC 4180 and Python's csv module read them: fields are separated by a comma or a tab; a
// field that begins with a quote ends at the next quote that is not doubled, and may hold separators and line breaks. A
// quote elsewhere in a field stands for itself.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace llmb {

// Whether a row goes on behind a line break: follows a row piece by piece.
class CsvQuotes {
 public:
  explicit CsvQuotes(char separator) : separator_(separator) {}

  void read(std::string_view piece);
  bool is_open() const { return state_ == State::kQuoted; }  // the field is quoted and has not ended
  void end_row() { state_ = State::kFieldBegins; }

 private:
  enum class State { kFieldBegins, kPlain, kQuoted, kQuoteInQuoted };
  char separator_;
  State state_ = State::kFieldBegins;
};

// The fields of a whole row. kInvalidArgument: a quote that never ends, or text behind a closing quote.
Result<std::vector<std::string>> split_csv_row(std::string_view row, char separator);

// A header's names. kInvalidArgument: an empty name, or the same name twice.
using CsvColumns = std::vector<std::string>;
Result<std::shared_ptr<const CsvColumns>> parse_csv_header(std::string_view row, char separator);

// The row as the JSON object {"column": "field", …}; fields that are missing at its end are left out. kInvalidArgument:
// as split_csv_row, or more fields than columns.
Result<std::string> csv_row_to_json(std::string_view row, char separator, const CsvColumns& columns);

}  // namespace llmb
