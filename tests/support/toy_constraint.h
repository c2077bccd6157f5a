// A constraint that needs no grammar: what may come next is a hash of the tokens so far.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/token_constraint.h"

namespace llmb::test {

class ToyConstraint : public TokenConstraint {
 public:
  // About one token in `one_in` is allowed; end tokens are after every third token. Sometimes that is none. Behind such a
  // token come num_forced that there is no choice of.
  ToyConstraint(uint64_t seed, int32_t vocab_size, uint32_t one_in, std::vector<TokenId> end_tokens,
                int64_t num_forced = 0)
      : seed_(seed), vocab_size_(vocab_size), one_in_(one_in), end_tokens_(std::move(end_tokens)), num_forced_(num_forced) {}

  std::unique_ptr<ConstraintState> start() const override { return std::make_unique<State>(*this); }
  size_t num_bytes() const override { return sizeof *this; }

 private:
  class State : public ConstraintState {
   public:
    explicit State(const ToyConstraint& form) : form_(form), hash_(form.seed_) {}

    std::span<const uint32_t> allowed() override {
      mask_.assign(static_cast<size_t>(form_.vocab_size_ + 31) / 32, 0);
      if (count_ % (1 + form_.num_forced_) != 0) {
        const auto token = static_cast<TokenId>(mix(hash_) % static_cast<uint64_t>(form_.vocab_size_));
        mask_[token / 32] |= 1u << token % 32;
        return mask_;
      }
      for (TokenId t = 0; t < form_.vocab_size_; ++t)
        if (mix(hash_ + static_cast<uint64_t>(t)) % form_.one_in_ == 0) mask_[t / 32] |= 1u << t % 32;
      for (const TokenId t : form_.end_tokens_) {
        mask_[t / 32] &= ~(1u << t % 32);
        if (count_ % 3 == 0) mask_[t / 32] |= 1u << t % 32;
      }
      return mask_;
    }

    void advance(TokenId token) override {
      hash_ = mix(hash_ ^ mix(static_cast<uint64_t>(token)));
      ++count_;
    }

    std::unique_ptr<ConstraintState> clone() const override { return std::make_unique<State>(*this); }

   private:
    static uint64_t mix(uint64_t x) {
      x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
      return x ^ x >> 29;
    }

    const ToyConstraint& form_;
    uint64_t hash_;
    int64_t count_ = 0;
    std::vector<uint32_t> mask_;
  };

  const uint64_t seed_;
  const int32_t vocab_size_;
  const uint32_t one_in_;
  const std::vector<TokenId> end_tokens_;
  const int64_t num_forced_;
};

}  // namespace llmb::test
