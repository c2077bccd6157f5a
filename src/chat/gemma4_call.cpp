// Gemma 4 writes arguments in a notation of its own: {key:<|"|>text<|"|>,list:[1,true],object:{a:1}}.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "chat/tool_calls.h"
#include "formats/json_scanner.h"

namespace llmb {

namespace {

constexpr std::string_view kQuote = "<|\"|>";
constexpr int kMaxListDepth = 64;

class Gemma4Reader {
 public:
  Gemma4Reader(std::string_view text, size_t at) : text_(text), at_(at) {}

  size_t position() const { return at_; }

  // Appends the value as JSON. False: there is none.
  bool read_value(int depth, std::string* json) {
    if (depth > kMaxListDepth) return false;
    if (peek() == '{') return read_list('{', '}', depth, json);
    if (peek() == '[') return read_list('[', ']', depth, json);
    if (text_.substr(at_).starts_with(kQuote)) return read_quoted(json);
    return read_scalar(json);
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool read_quoted(std::string* json) {
    const size_t begin = at_ + kQuote.size(), end = text_.find(kQuote, begin);
    if (end == text_.npos) return false;
    *json += nlohmann::json(text_.substr(begin, end - begin)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    at_ = end + kQuote.size();
    return true;
  }

  bool read_scalar(std::string* json) {
    const size_t end = std::min(text_.find_first_of(",}]", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    JsonScanner scanner(word);
    if (word == "None") *json += "null";
    else if (word.empty() || word[0] == '"' || !scanner.skip_value().ok() || !scanner.at_end().ok()) return false;
    else *json += word;
    at_ = end;
    return true;
  }

  bool read_key(std::string* json) {
    if (text_.substr(at_).starts_with(kQuote)) {
      if (!read_quoted(json)) return false;
    } else {
      const size_t end = text_.find_first_of(":,{}[]<", at_);
      if (end == text_.npos || end == at_) return false;
      *json += nlohmann::json(text_.substr(at_, end - at_)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      at_ = end;
    }
    if (peek() != ':') return false;
    ++at_;
    *json += ": ";
    return true;
  }

  bool read_list(char open, char close, int depth, std::string* json) {
    *json += open;
    ++at_;
    for (bool first = true; peek() != close; first = false) {
      if (!first && peek() != ',') return false;
      if (!first) ++at_, *json += ", ";
      if ((open == '{' && !read_key(json)) || !read_value(depth + 1, json)) return false;
    }
    ++at_;
    *json += close;
    return true;
  }

  const std::string_view text_;
  size_t at_;
};

}  // namespace

std::optional<ToolCall> read_gemma4_call(std::string_view text, size_t begin, size_t* end) {
  const size_t brace = text.find('{', begin);
  if (brace == text.npos || brace == begin) return std::nullopt;
  ToolCall call = {std::string(text.substr(begin, brace - begin)), ""};
  if (call.name.find_first_of(" \t\r\n<>:,}") != call.name.npos) return std::nullopt;
  Gemma4Reader reader(text, brace);
  if (!reader.read_value(0, &call.arguments)) return std::nullopt;
  *end = reader.position();
  return call;
}

}  // namespace llmb
