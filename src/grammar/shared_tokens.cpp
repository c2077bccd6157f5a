#include "grammar/shared_tokens.h"

namespace llmb::grammar {

std::shared_ptr<const ExprTokens> SharedTokens::find(const std::string& written) const {
  const std::lock_guard lock(mutex_);
  const auto at = tokens_.find(written);
  return at == tokens_.end() ? nullptr : at->second;
}

void SharedTokens::add(const std::string& written, std::shared_ptr<const ExprTokens> tokens) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  const std::lock_guard lock(mutex_);
  const size_t num_bytes = written.size() + tokens->num_bytes();
  if (num_bytes_ + num_bytes > kMaxBytes) return;
  if (tokens_.emplace(written, std::move(tokens)).second) num_bytes_ += num_bytes;
}

size_t SharedTokens::size() const {
  const std::lock_guard lock(mutex_);
  return tokens_.size();
}

}  // namespace llmb::grammar
