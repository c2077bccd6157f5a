// JSON text in and out: the writer, the scan that locates faults, the hash of a line. FAULTS rows 14 and 18.
#include <doctest/doctest.h>
#include <simdjson.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/content_hash.h"
#include "base/utf8.h"
#include "io/json_scan.h"
#include "io/json_writer.h"

namespace llmb {

namespace {

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

template <typename Write>
std::string written(Write write) {
  std::string out = "before:";
  JsonWriter json(out);
  write(json);
  return out.substr(7);
}

std::string repeat(std::string_view text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

bool simdjson_accepts(const std::string& text) {
  simdjson::dom::parser parser;
  return parser.parse(mark_large_integers(text).value_or(text)).error() == simdjson::SUCCESS;
}

}  // namespace

// Published test vectors of XXH64, seed 0.
TEST_CASE("content_hash is XXH64") {
  CHECK(content_hash("") == 0xEF46DB3751D8E999u);
  CHECK(content_hash("a") == 0xD24EC4F1A98C6E5Bu);
  CHECK(content_hash("abc") == 0x44BC2CF5AD770999u);
  CHECK(content_hash("Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1u);
}

TEST_CASE("content_hash does not depend on how the bytes are cut") {
  std::string bytes;
  for (int i = 0; i < 200; ++i) bytes += static_cast<char>(i * 37);
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const std::string_view text(bytes.data(), size);
    for (const size_t piece : {1, 7, 31, 32, 33, 64}) {
      ContentHash hash;
      for (size_t i = 0; i < size; i += piece) hash.update(text.substr(i, piece));
      CHECK(hash.digest() == content_hash(text));
    }
  }
}

TEST_CASE("utf8_length accepts exactly the code points of Unicode in their shortest form") {
  for (uint32_t code = 0; code <= 0x11FFFF; ++code) {
    std::string s;
    if (code < 0x80) s = {static_cast<char>(code)};
    else if (code < 0x800) s = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    else if (code < 0x10000)
      s = {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
           static_cast<char>(0x80 | (code & 63))};
    else
      s = {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
           static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    const bool valid = code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
    if (utf8_length(s.data(), s.data() + s.size()) != (valid ? s.size() : 0)) FAIL("code point ", code);
    for (size_t cut = 1; cut < s.size(); ++cut)
      if (utf8_length(s.data(), s.data() + cut) != 0) FAIL("cut code point ", code);
  }
  for (const std::string_view bad : {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xF0\x80\x80\x80",
                                     "\xF0\x8F\xBF\xBF", "\x80", "\xBF", "\xF8\x88\x80\x80\x80", "\xFF"})
    CHECK(utf8_length(bad.data(), bad.data() + bad.size()) == 0);
}

TEST_CASE("strings are escaped, and read back as they were") {
  CHECK(json_string("") == "\"\"");
  CHECK(json_string("a\"b\\c/d\n\r\t\b\f\x01\x1f\x7f") == "\"a\\\"b\\\\c/d\\n\\r\\t\\b\\f\\u0001\\u001f\x7f\"");
  CHECK(json_string(std::string_view("\0", 1)) == "\"\\u0000\"");
  CHECK(json_string("\xE2\x80\xA8 \xF0\x9F\x98\x80") == "\"\xE2\x80\xA8 \xF0\x9F\x98\x80\"");
}

TEST_CASE("bytes that are not UTF-8 become U+FFFD, whatever stands around them") {
  CHECK(json_string("a\xFF"
                    "b") ==
        "\"a\xEF\xBF\xBD"
        "b\"");
  CHECK(json_string("\xF0\x9F\x98") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  CHECK(json_string("\xED\xA0\x80") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  CHECK(json_string("\xC3\"") == "\"\xEF\xBF\xBD\\\"\"");
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 12, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 3 == 0 ? 0x80 + random() % 128 : random());
    const std::string text = json_string(bytes);
    CHECK(nlohmann::json::accept(text));
    CHECK(!find_json_fault(text));
  }
}

TEST_CASE("numbers of the writer") {
  const auto ms = [](double value) { return written([&](JsonWriter& json) { json.milliseconds(value); }); };
  CHECK(ms(0) == "0");
  CHECK(ms(-0.0) == "0");
  CHECK(ms(1) == "1");
  CHECK(ms(1.5) == "1.5");
  CHECK(ms(1.25) == "1.25");
  CHECK(ms(12.0625) == "12.063");
  CHECK(ms(0.001) == "0.001");
  CHECK(ms(0.0004) == "0");
  CHECK(ms(0.9996) == "1");
  CHECK(ms(-1.05) == "-1.05");
  CHECK(ms(123456789.1) == "123456789.1");
  CHECK(ms(1e300) == "1e+300");
  CHECK(ms(std::numeric_limits<double>::quiet_NaN()) == "null");
  CHECK(ms(std::numeric_limits<double>::infinity()) == "null");
  CHECK(written([](JsonWriter& json) { json.single(-0.1f); }) == "-0.1");
  CHECK(written([](JsonWriter& json) { json.single(-std::numeric_limits<float>::infinity()); }) == "null");
  CHECK(written([](JsonWriter& json) { json.integer(INT64_MIN); }) == "-9223372036854775808");
  CHECK(written([](JsonWriter& json) { json.unsigned_integer(UINT64_MAX); }) == "18446744073709551615");
}

TEST_CASE("the writer puts commas where they belong, also after text that was there") {
  CHECK(written([](JsonWriter& json) {
          json.begin_object();
          json.key("a");
          json.begin_array();
          json.end_array();
          json.key("b:");
          json.begin_array();
          json.integer(1);
          json.string("[");
          json.null();
          json.begin_object();
          json.end_object();
          json.end_array();
          json.key("{");
          json.boolean(true);
          json.end_object();
        }) == R"({"a":[],"b:":[1,"[",null,{}],"{":true})");
}

TEST_CASE("a fault is found at its byte, with the field that it is in") {
  struct Case {
    std::string text;
    int64_t offset;
    std::string what;
    std::string field;
  };
  const Case cases[] = {
      {"", 0, "ends", ""},
      {"   ", 3, "ends", ""},
      {"{", 1, "ends", ""},
      {"{\"prompt\":\"abc", 14, "ends", ""},
      {"{\"prompt\":\"a\", \"x\":tru}", 19, "expected a JSON value", "x"},
      {"{\"prompt\":\"a\",}", 14, "field name", "prompt"},
      {"{prompt:1}", 1, "field name", ""},
      {"{\"a\" 1}", 5, "':'", ""},
      {"{\"a\":1 \"b\":2}", 7, "',' or '}'", "a"},
      {"[1 2]", 3, "',' or ']'", ""},
      {"{\"a\":[1}", 7, "',' or ']'", "a"},
      {"{} x", 3, "after the end", ""},
      {"{}{}", 2, "after the end", ""},
      {"{\"a\":NaN}", 5, "JSON value", "a"},
      {"{\"a\":01}", 5, "cannot start with 0", "a"},
      {"{\"a\":1.}", 7, "JSON value", "a"},
      {"{\"a\":-}", 6, "JSON value", "a"},
      {"{\"a\":1e}", 7, "JSON value", "a"},
      {"{\"a\":0x1}", 6, "in a number", "a"},
      {"{\"a\":'b'}", 5, "JSON value", "a"},
      {"{\"prompt\":\"a\tb\"}", 12, "\\u0009", "prompt"},
      {std::string("{\"prompt\":\"a\0b\"}", 16), 12, "\\u0000", "prompt"},
      {"{\"prompt\":\"a\xFF\"}", 12, "UTF-8", "prompt"},
      {"{\"prompt\":\"\xED\xA0\x80\"}", 11, "UTF-8", "prompt"},
      {"{\"prompt\":\"\\ud800\"}", 11, "lone surrogate", "prompt"},
      {"{\"prompt\":\"\\udc00\"}", 11, "lone surrogate", "prompt"},
      {"{\"prompt\":\"\\ud800\\ud800\"}", 11, "lone surrogate", "prompt"},
      {"{\"prompt\":\"\\ud83d\\u0041\"}", 11, "lone surrogate", "prompt"},
      {"{\"prompt\":\"\\x41\"}", 11, "unknown escape", "prompt"},
      {"{\"prompt\":\"\\u12g4\"}", 15, "hexadecimal", "prompt"},
      {"{\"body\":{\"temperature\":NaN}}", 23, "JSON value", "temperature"},
      {"{\"body\":{\"a\":{\"b\":NaN}}}", 18, "JSON value", "a"},
      {"{\"x\":{\"temperature\":NaN}}", 20, "JSON value", "x"},
      {"{\"body\":{\"temperature\":1},\"y\":NaN}", 30, "JSON value", "y"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    const auto fault = find_json_fault(c.text);
    REQUIRE(fault);
    CHECK(fault->byte_offset == c.offset);
    CHECK(fault->what.find(c.what) != std::string::npos);
    if (!c.field.empty()) CHECK(fault->field == c.field);
    CHECK(!fault->is_number_range);
    CHECK(!simdjson_accepts(c.text));
  }
}

TEST_CASE("integers beyond 64 bits are marked, others and strings that look alike are not") {
  const std::string digits = "123456789012345678901234567890", most = repeat("7", 300);
  for (const std::string number : {"18446744073709551616", "-9223372036854775809", digits.c_str(), most.c_str()}) {
    CAPTURE(number);
    const std::string text = "{\"a\":[1," + number + ",\"x\"],\"b\":" + number + "}";
    CHECK(!find_json_fault(text));
    const auto marked = mark_large_integers(text);
    REQUIRE(marked);
    const auto parsed = nlohmann::json::parse(*marked);
    CHECK(large_integer(parsed["a"][1].get<std::string>()) == number);
    CHECK(large_integer(parsed["b"].get<std::string>()) == number);
    CHECK(parsed["a"][0] == 1);
  }
  for (const std::string text : {"18446744073709551615", "-9223372036854775808", "[1,2.5]", "{\"a\":99999999999999999999",
                                 "123456789012345678901234567890.5", "\"123456789012345678901234567890\""}) {
    CAPTURE(text);
    CHECK(!mark_large_integers(text));
  }
  for (const std::string text : {"", "1", digits.c_str(), "\U0010FFFF", "\U0010FFFF12", "\U0010FFFFa", "\U0010FFFF-"})
    CHECK(large_integer(text).empty());
}

TEST_CASE("numbers beyond 300 digits and beyond double are told apart from bad syntax") {
  const std::string long_integer = repeat("7", 301);
  for (const std::string number : {"1e999", "-1e999", long_integer.c_str()}) {
    CAPTURE(number);
    const std::string text = "{\"seed\":" + number + "}";
    const auto fault = find_json_fault(text);
    REQUIRE(fault);
    CHECK(fault->is_number_range);
    CHECK(fault->byte_offset == 8);
    CHECK(fault->field == "seed");
    CHECK(!simdjson_accepts(text));
  }
  for (const char* number : {"18446744073709551615", "9223372036854775808", "-9223372036854775808", "1e308", "1e-999",
                             "-0", "123456789012345678901234567890.5", "0.1e1", "1E+2"}) {
    CAPTURE(number);
    CHECK(!find_json_fault(number));
    CHECK(simdjson_accepts(number));
  }
  const auto fault = find_json_fault("{\"a\":" + repeat("7", 10'000'000) + "}");
  REQUIRE(fault);
  CHECK(fault->is_number_range);
  CHECK(fault->what.size() < 200);
}

TEST_CASE("depth: the limit is the fast parser's, and 100,000 levels cost no stack") {
  for (const int depth : {1, 1022, 1023, 1024, 1025, 2000}) {
    CAPTURE(depth);
    const std::string empty = repeat("[", depth) + repeat("]", depth);
    const std::string full = repeat("[", depth) + "1" + repeat("]", depth);
    const std::string objects = repeat("{\"a\":", depth) + "1" + repeat("}", depth);
    CHECK(simdjson_accepts(empty) == (depth <= 1024));
    CHECK(simdjson_accepts(full) == (depth <= 1023));
    CHECK(simdjson_accepts(objects) == (depth <= 1023));
    CHECK(!find_json_fault(empty) == (depth <= 1024));
    CHECK(!find_json_fault(full) == (depth <= 1023));
    CHECK(!find_json_fault(objects) == (depth <= 1023));
  }
  const auto fault = find_json_fault(repeat("[", 100'000));
  REQUIRE(fault);
  CHECK(fault->what.find("deeper") != std::string::npos);
}

TEST_CASE("scan and fast parser agree on mutated lines") {
  const std::string seeds[] = {
      R"({"prompt":"a\u00e9\ud83d\ude00\n","max_tokens":16,"temperature":0.5e-3,"stop":["x","y"],"id":null})",
      R"({"custom_id":"r","method":"POST","url":"/v1/completions","body":{"prompt":[1,2,-3],"logit_bias":{"5":-100.0}}})",
      "{\"prompt\":\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\", \"a\" : [ true , false,{ } , [] ] }",
  };
  const std::string_view alphabet = "{}[]\",:\\u0123456789eE+-.tfn ad8\t\x01\xC3\xA9\xE2\xED\xA0\xF0\xFF";
  std::mt19937 random(7);
  int num_valid = 0;
  for (int round = 0; round < 60000; ++round) {
    std::string text = seeds[random() % 3];
    for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      if (const unsigned kind = random() % 4; kind == 0) text[at] = c;
      else if (kind == 1) text.insert(at, 1, c);
      else if (kind == 2) text.erase(at, 1 + random() % 3);
      else text.resize(at + 1);
      if (text.empty()) text = " ";
    }
    const bool valid = !find_json_fault(text);
    num_valid += valid;
    if (valid != simdjson_accepts(text)) FAIL("disagree on ", text);
  }
  CHECK(num_valid > 1000);
}

TEST_CASE("find_member finds the value's offset at the top, in the body, and by occurrence") {
  const std::string text = R"({"a":1,"b":{"a":2},"body":{"a": 3,"c":{"a":4},"a":5},"a":6})";
  CHECK(find_member(text, false, "a") == 5);
  CHECK(find_member(text, false, "a", 2) == 57);
  CHECK(find_member(text, true, "a") == 32);
  CHECK(find_member(text, true, "a", 2) == 50);
  CHECK(find_member(text, true, "a", 3) == std::nullopt);
  CHECK(find_member(text, false, "c") == std::nullopt);
}

}  // namespace llmb
