// Template NUL messages NUL template_kwargs: refused by a Status, or valid UTF-8 within the limit, the same each time.
#include "chat/chat_template.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace llmb::test {

namespace {
constexpr const char* kMessages =
    R"([{"role":"system","content":"Be brief."},{"role":"user","content":" H\u00e9llo <b> 'x' \n"},)"
    R"({"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"a":[1,2.5,true]}}}]},)"
    R"({"role":"user","content":"again"}])";
constexpr const char* kTools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
constexpr size_t kMaxOutputBytes = size_t{16} << 20;
}  // namespace

}  // namespace llmb::test

LLMB_FUZZ_TARGET(chat_template) {
  const std::string_view source = take_part(&input);
  const auto parsed = llmb::ChatTemplate::parse(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  if (!parsed.ok()) {
    LLMB_CHECK(llmb::is_valid_utf8(parsed.status().message()));
    return;
  }
  llmb::ChatMessages chat;
  chat.messages_json = take_part(&input);
  if (chat.messages_json.empty()) {
    chat.messages_json = kMessages;
    chat.tools_json = kTools;
  }
  chat.template_kwargs_json = take_part(&input);
  const auto first = (*parsed)->render(chat);
  if (!first.ok()) {
    LLMB_CHECK(llmb::is_valid_utf8(first.status().message()));
    return;
  }
  LLMB_CHECK(llmb::is_valid_utf8(*first));
  LLMB_CHECK(first->size() <= kMaxOutputBytes);
  if (source.find("strftime_now") != std::string_view::npos) return;
  const auto second = (*parsed)->render(chat);
  LLMB_CHECK(second.ok() && *first == *second);
}
