#include "io/row_records.h"

#include <charconv>

#include "base/base64.h"

namespace llmb {

namespace {

// Takes `text` off the beginning of `from`.
bool take(std::string_view text, std::string_view* from) {
  if (!from->starts_with(text)) return false;
  from->remove_prefix(text.size());
  return true;
}

template <typename Number>
bool take_number(std::string_view* from, Number* number) {
  const auto [end, error] = std::from_chars(from->data(), from->data() + from->size(), *number);
  if (error != std::errc() || *number < 0) return false;
  from->remove_prefix(static_cast<size_t>(end - from->data()));
  return true;
}

// Base64 and the quotes around it hold no bracket.
bool take_rows(std::string_view* from, RowRecord* record) {
  const size_t end = from->find(']');
  if (end == from->npos) return false;
  record->rows = from->substr(0, end);
  from->remove_prefix(end + 1);
  return true;
}

bool take_place(std::string_view* from, RowRecord* record) {
  int64_t row = 0;
  if (take(",\"file\":", from) && !take_number(from, &record->file)) return false;
  if (!take(",\"row\":", from)) return true;
  if (!take_number(from, &row) || !take(",\"num_rows\":", from) || !take_number(from, &record->num_rows)) return false;
  record->first_row = row;
  return record->num_rows > 0;
}

}  // namespace

std::optional<RowRecord> parse_row_record(std::string_view record) {
  RowRecord parsed;
  std::string_view rest = record;
  int64_t index = 0;
  if (!take("{\"index\":", &rest) || !take_number(&rest, &index)) return std::nullopt;
  parsed.head = record.substr(0, record.size() - rest.size());
  const bool is_whole = take(",\"rows\":[", &rest) ? take_rows(&rest, &parsed) : take_place(&rest, &parsed);
  if (!is_whole || !rest.starts_with(",\"id\":") || !rest.ends_with("}\n")) return std::nullopt;
  parsed.rest = rest;
  return parsed;
}

bool decode_rows(std::string_view rows, std::string* values, int64_t* num_rows) {
  const size_t begin = values->size();
  std::string vector;
  size_t row_bytes = 0;
  *num_rows = 0;
  while (!rows.empty()) {
    if (*num_rows > 0 && !take(",", &rows)) return false;
    if (!take("\"", &rows)) return false;
    const size_t end = rows.find('"');
    vector.clear();
    if (end == rows.npos || !decode_base64(rows.substr(0, end), &vector)) return false;
    rows.remove_prefix(end + 1);
    if (*num_rows == 0) row_bytes = vector.size();
    if (vector.empty() || vector.size() % 4 != 0 || vector.size() != row_bytes) return false;
    *values += vector;
    ++*num_rows;
  }
  return values->size() > begin;
}

void append_row_record(const RowRecord& record, std::string_view values, int64_t num_rows, std::string* out) {
  out->append(record.head).append(",\"rows\":[");
  const size_t row_bytes = values.size() / static_cast<size_t>(num_rows);
  for (int64_t i = 0; i < num_rows; ++i) {
    out->append(i > 0 ? ",\"" : "\"");
    out->append(encode_base64(values.substr(static_cast<size_t>(i) * row_bytes, row_bytes))).append("\"");
  }
  out->append("]").append(record.rest);
}

void append_index_record(const RowRecord& record, int64_t first_row, int64_t num_rows, std::string* out) {
  out->append(record.head).append(",\"row\":").append(std::to_string(first_row));
  out->append(",\"num_rows\":").append(std::to_string(num_rows)).append(record.rest);
}

void append_with_file(const RowRecord& record, int32_t file, std::string* out) {
  RowRecord named = record;
  std::string head(record.head);
  head += ",\"file\":" + std::to_string(file);
  named.head = head;
  if (record.first_row) append_index_record(named, *record.first_row, record.num_rows, out);
  else out->append(record.head).append(record.rest);
}

}  // namespace llmb
