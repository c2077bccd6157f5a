// Appends JSON text to a string, without a tree in between. Whatever the bytes, the text is valid UTF-8: a byte that is
// not part of a well-formed character is written as U+FFFD. Numbers that JSON cannot express are written as null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace llmb {

// `text` with quotes around it, escaped as in RFC 8259.
void append_json_string(std::string& out, std::string_view text);

// Puts the commas; the caller balances the brackets. Not thread-safe.
class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out), start_(out.size()) {}

  void begin_object() { open('{'); }
  void end_object() { out_ += '}'; }
  void begin_array() { open('['); }
  void end_array() { out_ += ']'; }
  void key(std::string_view name);  // any text

  void string(std::string_view text);
  void integer(int64_t value);
  void unsigned_integer(uint64_t value);
  void floating(double value);      // shortest text that reads back as the same double
  void single(float value);         // … as the same float
  void milliseconds(double value);  // rounded to three decimals
  void boolean(bool value);
  void null();
  void raw(std::string_view json);  // already JSON text
  void members(std::string_view json) { separate(), out_ += json; }  // of an object, at least one: "a":1,"b":2

 private:
  void separate();
  void open(char bracket);

  std::string& out_;
  const size_t start_;
};

}  // namespace llmb
