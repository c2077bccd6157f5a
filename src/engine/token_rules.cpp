#include "engine/token_rules.h"

#include <algorithm>
#include <utility>

namespace llmb {

namespace {

using Words = std::vector<uint32_t>;

void forbid(TokenId token, Words* mask) { (*mask)[token / 32] &= ~(1u << token % 32); }

class RuledConstraint : public TokenConstraint {
 public:
  RuledConstraint(std::shared_ptr<const TokenConstraint> form, std::vector<TokenId> allowed,
                  std::vector<std::vector<TokenId>> bad, int32_t vocab_size)
      : form_(std::move(form)), allowed_(std::move(allowed)), bad_(std::move(bad)), vocab_size_(vocab_size) {}

  std::unique_ptr<ConstraintState> start() const override {
    return std::make_unique<State>(*this, form_ == nullptr ? nullptr : form_->start());
  }
  size_t num_bytes() const override {
    size_t count = allowed_.size();
    for (const auto& sequence : bad_) count += sequence.size() + 8;
    return sizeof *this + count * sizeof(TokenId) + (form_ == nullptr ? 0 : form_->num_bytes());
  }

 private:
  class State : public ConstraintState {
   public:
    State(const RuledConstraint& rules, std::unique_ptr<ConstraintState> form)
        : rules_(rules), form_(std::move(form)), all_(rules.all()) {}

    std::span<const uint32_t> allowed() override {
      mask_ = all_;
      if (form_ != nullptr) {
        const std::span<const uint32_t> form = form_->allowed();
        for (size_t i = 0; i < mask_.size(); ++i) mask_[i] &= form[i];
      }
      for (const std::vector<TokenId>& bad : rules_.bad_)
        if (tokens_.size() + 1 >= bad.size() && std::equal(bad.begin(), bad.end() - 1, tokens_.end() - (bad.size() - 1)))
          forbid(bad.back(), &mask_);
      return mask_;
    }

    void advance(TokenId token) override {
      if (form_ != nullptr) form_->advance(token);
      tokens_.push_back(token);
    }

    std::unique_ptr<ConstraintState> clone() const override {
      auto copy = std::make_unique<State>(rules_, form_ == nullptr ? nullptr : form_->clone());
      copy->tokens_ = tokens_;
      return copy;
    }

   private:
    const RuledConstraint& rules_;
    const std::unique_ptr<ConstraintState> form_;
    const Words all_;  // without what is never allowed
    Words mask_;
    std::vector<TokenId> tokens_;
  };

  Words all() const {
    Words mask(static_cast<size_t>(vocab_size_ + 31) / 32, allowed_.empty() ? ~0u : 0u);
    for (const TokenId token : allowed_) mask[token / 32] |= 1u << token % 32;
    if (vocab_size_ % 32 != 0) mask.back() &= ~(~0u << vocab_size_ % 32);
    return mask;
  }

  const std::shared_ptr<const TokenConstraint> form_;
  const std::vector<TokenId> allowed_;
  const std::vector<std::vector<TokenId>> bad_;  // none empty
  const int32_t vocab_size_;
};

}  // namespace

std::vector<std::vector<TokenId>> bad_sequences(const std::vector<std::string>& bad_words, const Tokenizer& tokenizer) {
  std::vector<std::vector<TokenId>> sequences;
  for (const std::string& word : bad_words) {
    const size_t begin = word.find_first_not_of(" \t\n\r");
    const std::string stripped = begin == word.npos ? word : word.substr(begin);
    std::vector<TokenId> plain = tokenizer.encode(stripped, /*add_special_tokens=*/false);
    std::vector<TokenId> spaced = tokenizer.encode(" " + stripped, /*add_special_tokens=*/false);
    if (!spaced.empty() && !plain.empty() && spaced[0] != plain[0] && spaced.size() == plain.size())
      sequences.push_back(std::move(spaced));
    if (!plain.empty()) sequences.push_back(std::move(plain));
  }
  return sequences;
}

std::shared_ptr<const TokenConstraint> with_token_rules(std::shared_ptr<const TokenConstraint> form,
                                                        std::vector<TokenId> allowed,
                                                        std::vector<std::vector<TokenId>> bad, int32_t vocab_size) {
  return std::make_shared<const RuledConstraint>(std::move(form), std::move(allowed), std::move(bad), vocab_size);
}

}  // namespace llmb
