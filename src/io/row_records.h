// Records of runs whose vectors become rows of a .npy file, whatever the form of the lines.
//
// While the run goes on, a record holds its vectors, one for each of the line's inputs:
//   {"index", "rows": ["base64 of little-endian fp32 values", …], "id", "usage", "input"*, "hash", "metrics"*}
// In the index of the finished file it has in their place where they are:
//   {"index", "row", "num_rows", "id", "usage", "input"*, "hash", "metrics"*}    input i of the line is row `row` + i
// Error records are native ones (io/result_writer.h) and have no rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llmb {

// A record taken apart; views of its text.
struct RowRecord {
  std::string_view head;             // {"index":12
  std::string_view rest;             // from the comma behind the rows to the end of the line
  std::string_view rows;             // of a record that holds its vectors: texts in quotes, with commas between them
  std::optional<int64_t> first_row;  // of an index's record
  int64_t num_rows = 0;
  int32_t file = 0;                  // of a record that is being merged: which of the files has the rows
};

// nullopt: no record of such a run.
std::optional<RowRecord> parse_row_record(std::string_view record);

// Appends the values of RowRecord::rows. False: they are not vectors of one length.
bool decode_rows(std::string_view rows, std::string* values, int64_t* num_rows);

// Append a record that holds the vectors in `values`, and one that names rows of a file.
void append_row_record(const RowRecord& record, std::string_view values, int64_t num_rows, std::string* out);
void append_index_record(const RowRecord& record, int64_t first_row, int64_t num_rows, std::string* out);
// Appends a record of an index that also says which file has the rows.
void append_with_file(const RowRecord& record, int32_t file, std::string* out);

}  // namespace llmb
