#include "job/speculative_corpus.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "base/utf8.h"
#include "base/whole_file.h"

namespace llmb {

namespace {

constexpr size_t kMaxCorpusTokens = 1 << 22;

std::vector<std::string> texts_of(const std::string& path, std::string content) {
  if (!path.ends_with(".jsonl")) return {std::move(content)};
  std::vector<std::string> texts;
  std::stringstream lines(content);
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.contains("text") && record["text"].is_string())
      texts.push_back(record["text"].get<std::string>());
  }
  return texts;
}

}  // namespace

Result<std::vector<std::vector<TokenId>>> read_corpus(const std::string& path, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return invalid_argument("the model has no tokenizer");
  Result<std::string> content = read_whole_file(path, kMaxTextFileBytes);
  if (!content.ok()) return content.status();
  std::vector<std::vector<TokenId>> corpus;
  size_t num_tokens = 0;
  for (const std::string& text : texts_of(path, std::move(*content))) {
    if (!is_valid_utf8(text)) return invalid_argument(path + " is not UTF-8");
    if (text.empty()) continue;
    std::vector<TokenId> tokens = tokenizer->encode(text, /*add_special_tokens=*/false);
    const bool is_full = num_tokens + tokens.size() > kMaxCorpusTokens;
    if (is_full) tokens.resize(kMaxCorpusTokens - num_tokens);
    num_tokens += tokens.size();
    corpus.push_back(std::move(tokens));
    if (!is_full) continue;
    log_warning(path + ": drafts are looked up in the first " + std::to_string(num_tokens) + " tokens");
    break;
  }
  if (num_tokens == 0) return invalid_argument(path + " holds no text; of a .jsonl file the member \"text\" is read");
  return corpus;
}

}  // namespace llmb
