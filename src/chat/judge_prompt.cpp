#include "chat/judge_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace llmb {

namespace {

constexpr std::string_view kSystem =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
constexpr std::string_view kInstruction = "Given a web search query, retrieve relevant passages that answer the query";
constexpr std::string_view kAfter = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

Result<std::string> render(const ChatTemplate& chat_template, const std::string& instruction, const std::string& query,
                           const std::string& document) {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  const auto add = [&](const char* role, const std::string& content) {
    messages.push_back({{"role", role}, {"content", content}});
  };
  if (!instruction.empty()) add("system", instruction);
  add("query", query);
  add("document", document);
  ChatMessages chat;
  chat.messages_json = messages.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  chat.add_generation_prompt = false;
  return chat_template.render(chat);
}

std::string_view without_ends(std::string_view text) {
  constexpr std::string_view kWhite = " \t\r\n\v\f";
  const size_t begin = std::min(text.find_first_not_of(kWhite), text.size());
  return text.substr(begin, text.find_last_not_of(kWhite) + 1 - begin);
}

}  // namespace

JudgePrompt::JudgePrompt(std::shared_ptr<const ChatTemplate> chat_template) {
  if (chat_template == nullptr) return;
  const std::string query = "query-7c1f", document = "document-7c1f";
  const Result<std::string> text = render(*chat_template, "", query, document);
  if (!text.ok() || text->find(query) == text->npos) return;
  const size_t at = text->rfind(document);
  if (at == text->npos) return;
  after_ = text->substr(at + document.size());
  chat_template_ = std::move(chat_template);
}

Result<JudgePrompt::Text> JudgePrompt::text_of(const std::string& instruction, const std::string& query,
                                               const std::string& document) const {
  Text out;
  if (chat_template_ == nullptr) {
    out.text.append(kSystem).append("<Instruct>: ").append(instruction.empty() ? kInstruction : instruction);
    out.text.append("\n<Query>: ").append(query).append("\n<Document>: ");
    out.document_begin = out.text.size();
    out.document_end = out.document_begin + document.size();
    out.text.append(document).append(kAfter);
    return out;
  }
  LLMB_ASSIGN_OR_RETURN(out.text, render(*chat_template_, instruction, query, document));
  out.document_end = out.text.size() - (out.text.ends_with(after_) ? after_.size() : 0);
  const std::string_view shown = without_ends(document);  // templates may leave out white space around it
  const bool has_room = shown.size() <= out.document_end;
  const size_t begin = has_room ? out.text.rfind(shown, out.document_end - shown.size()) : std::string::npos;
  out.document_begin = begin == std::string::npos ? out.document_end : begin;
  return out;
}

}  // namespace llmb
