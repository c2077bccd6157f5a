#include "grammar/grammar_constraint.h"

#include <mutex>

#include "base/check.h"
#include "grammar/matcher.h"
#include "grammar/token_masks.h"

namespace llmb::grammar {

namespace {

// The automaton grows while it is walked, by whichever answer: a lock guards all of it. What an answer is told does not
// depend on what others have made of it.
class Walker {
 public:
  Walker(Rules rules, std::shared_ptr<const Vocabulary> vocabulary)
      : rules_(std::move(rules)),
        vocabulary_(std::move(vocabulary)),
        matcher_(&rules_.arena, rules_.bodies),
        masks_(&matcher_, &rules_.arena, rules_.bodies, vocabulary_.get()),
        start_(matcher_.save(matcher_.start(rules_.arena.call(0)))),
        num_bytes_(rules_.arena.num_bytes()) {}

  const Configuration& start() const { return start_; }
  size_t num_bytes() const { return num_bytes_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }

  std::shared_ptr<const Mask> mask(const Configuration& configuration) {
    const std::lock_guard lock(mutex_);
    return masks_.mask(configuration);
  }

  Configuration advance(const Configuration& configuration, TokenId token) {
    const std::lock_guard lock(mutex_);
    if (vocabulary_->is_end_token(token)) return {0};
    MatcherState state = matcher_.load(configuration);
    const std::string& text = vocabulary_->text(token);
    LLMB_CHECK(!text.empty());
    for (const char c : text) {
      MatcherState next;
      LLMB_CHECK(matcher_.step(state, rules_.arena.byte_class(static_cast<uint8_t>(c)), &next));
      state = next;
    }
    return matcher_.save(state);
  }

 private:
  std::mutex mutex_;
  Rules rules_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  Matcher matcher_;
  TokenMasks masks_;
  const Configuration start_;
  const size_t num_bytes_;
};

class GrammarState : public ConstraintState {
 public:
  explicit GrammarState(std::shared_ptr<Walker> walker)
      : walker_(std::move(walker)), configuration_(walker_->start()) {}

  std::span<const uint32_t> allowed() override {
    if (mask_ == nullptr) mask_ = walker_->mask(configuration_);
    return *mask_;
  }

  void advance(TokenId token) override {
    configuration_ = walker_->advance(configuration_, token);
    mask_ = nullptr;
  }

 private:
  const std::shared_ptr<Walker> walker_;
  Configuration configuration_;
  std::shared_ptr<const Mask> mask_;
};

class GrammarConstraint : public TokenConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<Walker> walker) : walker_(std::move(walker)) {}
  std::unique_ptr<ConstraintState> start() const override { return std::make_unique<GrammarState>(walker_); }
  size_t num_bytes() const override { return walker_->num_bytes(); }

 private:
  const std::shared_ptr<Walker> walker_;
};

}  // namespace

Result<std::shared_ptr<const TokenConstraint>> make_constraint(Rules rules,
                                                               std::shared_ptr<const Vocabulary> vocabulary) {
  LLMB_RETURN_IF_ERROR(rules.arena.settle(&rules.bodies));
  if (rules.bodies[0] == kNothing) return invalid_argument("no answer can satisfy it");
  return std::shared_ptr<const TokenConstraint>(
      std::make_shared<GrammarConstraint>(std::make_shared<Walker>(std::move(rules), std::move(vocabulary))));
}

}  // namespace llmb::grammar
