// Python's str over UTF-8, at the edges that templates seldom reach.
#include "jinja/text.h"

#include <doctest/doctest.h>

#include <cmath>

namespace llmb::jinja {

TEST_CASE("characters are counted, found and walked over both ways") {
  const std::string text = "a\u00e9\u4f60\U0001F600";
  CHECK(count_chars("") == 0);
  CHECK(count_chars(text) == 4);
  CHECK(count_chars(text + text + text) == 12);
  CHECK(char_offset(text, 0) == 0);
  CHECK(char_offset(text, 2) == 3);
  CHECK(char_offset(text, 4) == text.size());
  CHECK(char_offset(text, 99) == text.size());
  const uint32_t expected[] = {'a', 0xe9, 0x4f60, 0x1F600};
  size_t at = 0;
  for (const uint32_t c : expected) CHECK(next_char(text, &at) == c);
  for (int i = 3; i >= 0; --i) CHECK(previous_char(text, &at) == expected[i]);
  CHECK(at == 0);
  std::string back;
  for (const uint32_t c : expected) append_utf8(&back, c);
  CHECK(back == text);
}

TEST_CASE("what is not UTF-8 is seen") {
  CHECK(is_valid_utf8(""));
  CHECK(is_valid_utf8("a\u00e9\U0010FFFF"));
  for (const char* bad : {"\xff", "\x80", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\xe4\xbd"})
    CHECK_FALSE(is_valid_utf8(bad));
}

TEST_CASE("text is found from any place on, and nothing behind the end") {
  CHECK(find_text("abcabc", "abc") == 0);
  CHECK(find_text("abcabc", "abc", 1) == 3);
  CHECK(find_text("abc", "", 3) == 3);
  CHECK(find_text("abc", "", 4) == std::string::npos);
  CHECK(find_text("abc", "abcd") == std::string::npos);
}

TEST_CASE("floats print as Python's repr") {
  CHECK(repr_float(0.0) == "0.0");
  CHECK(repr_float(-0.0) == "-0.0");
  CHECK(repr_float(1e15) == "1000000000000000.0");
  CHECK(repr_float(9999999999999998.0) == "9999999999999998.0");
  CHECK(repr_float(1e16) == "1e+16");
  CHECK(repr_float(0.0001) == "0.0001");
  CHECK(repr_float(0.00001234) == "1.234e-05");
  CHECK(repr_float(1.5e300) == "1.5e+300");
  CHECK(repr_float(5e-324) == "5e-324");
  CHECK(repr_float(123456.789) == "123456.789");
  CHECK(repr_float(std::nan("")) == "nan");
  CHECK(repr_float(-HUGE_VAL) == "-inf");
}

TEST_CASE("integers and floats are read as Python reads them") {
  CHECK(parse_int("  -42\n", 10) == -42);
  CHECK(parse_int("9223372036854775807", 10) == INT64_MAX);
  CHECK(parse_int("-9223372036854775808", 10) == INT64_MIN);
  CHECK(parse_int("1_000", 10) == 1000);
  CHECK(parse_int("0x_1F", 0) == 31);
  CHECK(parse_int("z", 36) == 35);
  CHECK(parse_int("00", 0) == 0);
  for (const char* bad :
       {"", "-", "1.5", "1__0", "_1", "1_", "0x", "9223372036854775808", "-9223372036854775809", "012a", "1 2"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_int(bad, 10).has_value());
  }
  CHECK_FALSE(parse_int("012", 0).has_value());
  CHECK_FALSE(parse_int("1", 1).has_value());
  CHECK(parse_float(" 1_0.5e1 ") == 105.0);
  CHECK(parse_float(".5") == 0.5);
  CHECK(parse_float("5.") == 5.0);
  CHECK(parse_float("-Infinity") == -HUGE_VAL);
  CHECK(parse_float("1e999") == HUGE_VAL);
  CHECK(parse_float("1e-999") == 0.0);
  for (const char* bad : {"", "-", ".", "e5", "1e", "0x1", "1 2", "infi", "1__0", "--1"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_float(bad).has_value());
  }
}

TEST_CASE("repr quotes and escapes as Python does") {
  CHECK(repr_text("it's") == "\"it's\"");
  CHECK(repr_text("it's \"x\"") == "'it\\'s \"x\"'");
  CHECK(repr_text("\n\t\\\x01\x7f\u00a0\u00ad\u200b\U000E0001é") ==
        "'\\n\\t\\\\\\x01\\x7f\\xa0\\xad\\u200b\\U000e0001é'");
}

}  // namespace llmb::jinja
