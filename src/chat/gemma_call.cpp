// Gemma's models write arguments in a notation of their own: {key:<|"|>text<|"|>,list:[1,true],object:{a:1}}.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "chat/tool_calls.h"
#include "formats/json_scanner.h"

namespace llmb {

namespace {

constexpr int kMaxListDepth = 200;

class GemmaReader {
 public:
  GemmaReader(std::string_view text, size_t at, std::string_view quote) : text_(text), at_(at), quote_(quote) {}

  size_t position() const { return at_; }

  // Appends the value as JSON. False: there is none.
  bool read_value(int depth, std::string* json) {
    if (depth > kMaxListDepth) return false;
    if (peek() == '{') return read_list('{', '}', depth, json);
    if (peek() == '[') return read_list('[', ']', depth, json);
    if (text_.substr(at_).starts_with(quote_)) return read_quoted(json);
    return read_scalar(json);
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool read_quoted(std::string* json) {
    const size_t begin = at_ + quote_.size(), end = text_.find(quote_, begin);
    if (end == text_.npos) return false;
    *json += nlohmann::json(text_.substr(begin, end - begin)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    at_ = end + quote_.size();
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
    if (text_.substr(at_).starts_with(quote_)) {
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
  const std::string_view quote_;
};

}  // namespace

GemmaTags gemma_tags(ToolCallFormat format) {
  if (format == ToolCallFormat::kFunctionGemma) return {"<start_function_call>", "<end_function_call>", "<escape>"};
  return {"<|tool_call>", "<tool_call|>", "<|\"|>"};
}

std::optional<ToolCall> read_gemma_call(std::string_view text, size_t begin, std::string_view quote, size_t* end) {
  const size_t brace = text.find('{', begin);
  if (brace == text.npos || brace == begin) return std::nullopt;
  ToolCall call = {std::string(text.substr(begin, brace - begin)), ""};
  if (call.name.find_first_of(" \t\r\n<>:,}") != call.name.npos) return std::nullopt;
  GemmaReader reader(text, brace, quote);
  if (!reader.read_value(0, &call.arguments)) return std::nullopt;
  *end = reader.position();
  return call;
}

}  // namespace llmb
