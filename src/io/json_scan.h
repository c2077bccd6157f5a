// Slow, exact looks at a line of JSON, for error records: where it goes wrong, and where a field stands. The fast
// parser accepts and refuses the same lines but does not say where.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llmb {

inline constexpr int kMaxJsonDepth = 1024;  // of nested containers; the innermost one may only be empty

struct JsonFault {
  int64_t byte_offset = 0;           // from 0
  std::string what;                  // for people
  std::optional<std::string> field;  // the field of the line, or of its "body", in which the fault lies
  bool is_number_range = false;      // the syntax is right, but the number has no place here
};

inline constexpr size_t kMaxIntegerDigits = 300;  // as a double, such an integer is still finite

// The first fault of a text that should be one JSON value (RFC 8259, well-formed UTF-8, no lone surrogates, integers of
// limited length, finite doubles, limited depth), or nullopt. Iterative: memory is one bit a level.
std::optional<JsonFault> find_json_fault(std::string_view text);

// The fast parser holds integers of 64 bits. The text with each larger one as a string instead, marked so that
// large_integer() knows it; nullopt where there is none, or a fault.
std::optional<std::string> mark_large_integers(std::string_view text);

// The digits of a string that mark_large_integers() wrote; "" for any other.
std::string_view large_integer(std::string_view string);

// Offset of the value of the `occurrence`th (from 1) member `name` of the line's object, or of its first "body" object.
// REQUIRES: text has no fault. Keys written with escapes are not found.
std::optional<int64_t> find_member(std::string_view text, bool in_body, std::string_view name, int occurrence = 1);

// Brackets, commas, colons and the beginnings of strings and other scalars, as the fast parser will find them: it needs
// memory for each. For any text, at the speed of one look at each byte.
int64_t count_json_parts(std::string_view text);

}  // namespace llmb
