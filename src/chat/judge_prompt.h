// Prompts for models that judge pairs of texts: behind one the model says "yes" where the document answers the query,
// else "no", as Qwen3-Reranker does (Zhang et al. 2025, "Qwen3 Embedding").
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "chat/chat_template.h"

namespace llmb {

// Immutable; thread-safe.
class JudgePrompt {
 public:
  // The chat template, where it prints messages of the roles "query" and "document", as sentence-transformers gives
  // them to it; else, and where it is null, Qwen3-Reranker's text as it was published.
  explicit JudgePrompt(std::shared_ptr<const ChatTemplate> chat_template);

  struct Text {
    std::string text;
    size_t document_begin = 0, document_end = 0;  // the document in it: what may be cut
  };
  // instruction: what it is to judge by; "": the template's own. Errors as of ChatTemplate::render().
  Result<Text> text_of(const std::string& instruction, const std::string& query, const std::string& document) const;

 private:
  std::shared_ptr<const ChatTemplate> chat_template_;  // null: the published text
  std::string after_;                                  // of the template's text: what stands behind the document
};

}  // namespace llmb
