#include "tokenizer/added_vocabulary.h"

#include <algorithm>

#include "base/log.h"
#include "text/unicode.h"

namespace llmb {

void StringMatcher::add(std::string_view text, TokenId id) {
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    auto& children = nodes_[node].children;
    const auto it = std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
    if (it != children.end() && it->first == byte) {
      node = it->second;
      continue;
    }
    const auto next = static_cast<uint32_t>(nodes_.size());
    children.insert(it, {byte, next});
    nodes_.emplace_back();
    node = next;
  }
  nodes_[node].id = id;
  if (!text.empty()) starts_[static_cast<uint8_t>(text[0])] = true;
}

bool StringMatcher::find(std::string_view text, size_t from, TextSegment* match) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    uint32_t node = 0;
    match->token = -1;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      const auto& children = nodes_[node].children;
      const auto it = std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
      if (it == children.end() || it->first != byte) break;
      node = it->second;
      if (nodes_[node].id >= 0) *match = {begin, i + 1, nodes_[node].id};
    }
    if (match->token >= 0) return true;
  }
  return false;
}

Status AddedVocabulary::add(const AddedToken& token, const Vocab& vocab) {
  if (token.content.empty()) return {};
  TokenId id = std::max(end_id_, vocab.size());
  const auto known = by_content_.find(token.content);
  const std::string quoted = "added token \"" + escape_control(token.content) + "\"";
  if (known != by_content_.end()) {
    id = known->second;
  } else if (const auto in_vocab = vocab.find(token.content)) {
    id = *in_vocab;
    if (token.id >= 0 && token.id != id) {
      log_warning(quoted + " is declared with id " + std::to_string(token.id) + "; the vocabulary's id " +
                  std::to_string(id) + " is used");
    }
  } else if (token.id >= 0 && token.id != id) {
    return data_loss(quoted + " has id " + std::to_string(token.id) + ", expected " + std::to_string(id) +
                     ": ids have a gap or are taken");
  }
  if (id >= static_cast<TokenId>(kMaxVocabEntries)) return data_loss("too many added tokens");
  by_id_[id] = token;
  by_content_[token.content] = id;
  end_id_ = std::max(end_id_, id + 1);
  return {};
}

void AddedVocabulary::finish(const Normalizer* normalizer) {
  RegexScratch scratch;
  for (const auto& [id, token] : by_id_) {
    if (!token.normalized) {
      before_.add(token.content, id);
      continue;
    }
    std::string content = token.content;
    if (normalizer != nullptr) normalizer->apply(&content, scratch);
    if (!content.empty()) after_.add(content, id);
  }
}

// Applies the token's flags to a match; false where it does not count. Text before `done` is taken already.
bool AddedVocabulary::adjust(std::string_view text, size_t done, TextSegment* match) const {
  const AddedToken& token = by_id_.at(match->token);
  if (token.single_word) {
    size_t before = match->begin, after = match->end;
    if (before > 0) {
      before = last_char_start(text.substr(0, before));
      if (is_word_char(next_char(text, &before))) return false;
    }
    if (after < text.size() && is_word_char(next_char(text, &after))) return false;
  }
  if (token.lstrip) match->begin = std::max(match->begin, done);
  while (token.lstrip && match->begin > done) {
    const size_t start = last_char_start(text.substr(0, match->begin));
    size_t pos = start;
    if (!is_whitespace(next_char(text, &pos))) break;
    match->begin = start;
  }
  while (token.rstrip && match->end < text.size()) {
    size_t pos = match->end;
    if (!is_whitespace(next_char(text, &pos))) break;
    match->end = pos;
  }
  return true;
}

void AddedVocabulary::split(std::string_view text, bool normalized, std::vector<TextSegment>* segments) const {
  segments->clear();
  const StringMatcher& matcher = normalized ? after_ : before_;
  size_t done = 0, from = 0;
  TextSegment match{};
  while (!matcher.empty() && matcher.find(text, from, &match)) {
    from = match.end;  // before rstrip moves it: a token of white space may follow, and Hugging Face finds it
    if (!adjust(text, done, &match)) continue;
    if (done < match.begin) segments->push_back({done, match.begin, -1});
    segments->push_back(match);
    done = match.end;
  }
  if (done < text.size()) segments->push_back({done, text.size(), -1});
}

const AddedToken* AddedVocabulary::find(TokenId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &it->second;
}

std::optional<TokenId> AddedVocabulary::find_id(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it == by_content_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace llmb
