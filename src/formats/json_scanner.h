// A strict forward-only JSON reader for file headers: no tree is built, memory and stack are bounded whatever the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace llmb {

// Every function skips white space first and leaves the scanner behind what it read. Messages name the byte offset.
// Not thread-safe. `text` must outlive the scanner.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  // The next character that is not white space; '\0' at the end.
  char peek();
  size_t position() const { return pos_; }  // bytes read
  Status at_end();  // ok when only white space is left

  // Decoded to UTF-8. More than max_bytes is an error.
  Status read_string(std::string* out, size_t max_bytes = 512);
  Status skip_string();
  // A plain non-negative integer: no sign, fraction, exponent or leading zero.
  Status read_unsigned(uint64_t* out);
  Status skip_value(int max_depth = 32);

  // Calls on_member(key) at each value of an object; it must read exactly that value. Keys may repeat: the caller
  // checks.
  template <typename OnMember>
  Status read_object(const OnMember& on_member) {
    LLMB_RETURN_IF_ERROR(expect('{'));
    if (peek() == '}') return expect('}');
    std::string key;
    while (true) {
      LLMB_RETURN_IF_ERROR(read_string(&key));
      LLMB_RETURN_IF_ERROR(expect(':'));
      LLMB_RETURN_IF_ERROR(on_member(key));
      if (peek() != ',') return expect('}');
      LLMB_RETURN_IF_ERROR(expect(','));
    }
  }

  // Calls on_element() at each element of an array; it must read exactly that value.
  template <typename OnElement>
  Status read_array(const OnElement& on_element) {
    LLMB_RETURN_IF_ERROR(expect('['));
    if (peek() == ']') return expect(']');
    while (true) {
      LLMB_RETURN_IF_ERROR(on_element());
      if (peek() != ',') return expect(']');
      LLMB_RETURN_IF_ERROR(expect(','));
    }
  }

  Status error(const std::string& what) const;

 private:
  Status expect(char c);
  Status scan_string(std::string* out, size_t max_bytes);  // out may be null
  Status scan_escape(std::string* out);
  Status scan_hex4(uint32_t* out);
  Status skip_scalar();
  Status skip_number();

  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace llmb
