// One input line given to a RequestParser, for tests that say what becomes of it.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <variant>
#include <vector>

#include "io/request_parser.h"

namespace llmb::test {

using Parsed = std::variant<InputRequest, ParseFailure>;

inline Parsed parse(const std::string& bytes, const GenerationParams& defaults = {}, RequestLimits limits = {}) {
  RequestParser parser(defaults, limits);
  InputLine line;
  line.line = {3, "in.jsonl", 4, 100, 0xABCD};
  line.bytes = bytes;
  return parser.parse(line);
}

inline InputRequest accepted(const std::string& bytes, const GenerationParams& defaults = {},
                             RequestLimits limits = {}) {
  Parsed parsed = parse(bytes, defaults, limits);
  if (const auto* failure = std::get_if<ParseFailure>(&parsed)) FAIL(bytes.substr(0, 200), ": ", failure->error.message);
  return std::get<InputRequest>(parsed);
}

inline ParseFailure refused(const std::string& bytes, const GenerationParams& defaults = {},
                            RequestLimits limits = {}) {
  Parsed parsed = parse(bytes, defaults, limits);
  if (!std::holds_alternative<ParseFailure>(parsed)) FAIL("accepted: ", bytes.substr(0, 200));
  return std::get<ParseFailure>(parsed);
}

// A native line with more members, and the same as the body of either OpenAI line.
inline std::string native(const std::string& members) { return "{\"prompt\":\"p\"," + members + "}"; }
inline std::string chat(const std::string& members,
                        const std::string& messages = R"([{"role":"user","content":"hi"}])") {
  return R"({"custom_id":"c-1","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":)" +
         messages + (members.empty() ? "" : "," + members) + "}}";
}
inline std::string completion(const std::string& members) {
  return R"({"custom_id":"c-1","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"p")" +
         (members.empty() ? "" : "," + members) + "}}";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::string messages_of(const InputRequest& request) {
  return std::get<ChatMessages>(request.prompt).messages_json;
}
using Tokens = std::vector<TokenId>;

}  // namespace llmb::test
