#include "grammar/grammar_constraint.h"

#include <mutex>

#include "base/check.h"
#include "grammar/matcher.h"
#include "grammar/token_masks.h"

namespace llmb::grammar {

namespace {

// How far an answer has come, in the walker's numbers. These change where the walker has forgotten: then the text is
// followed again.
struct Progress {
  Configuration configuration;
  int64_t generation = -1;
  std::string text;
  bool has_ended = false;
};

// The automaton grows while it is walked, by whichever answer: a lock guards all of it. What an answer is told does not
// depend on what others have made of it, nor on what was forgotten.
class Walker : public Forgetful {
 public:
  Walker(Rules rules, std::shared_ptr<const Vocabulary> vocabulary)
      : rules_(std::move(rules)),
        vocabulary_(std::move(vocabulary)),
        matcher_(&rules_.arena, rules_.bodies),
        masks_(&matcher_, &rules_.arena, rules_.bodies, vocabulary_.get()),
        root_(rules_.arena.call(0)) {
    rules_.arena.keep_settled();
    num_bytes_ = rules_.arena.num_bytes();
    vocabulary_->walk_memory().add(this);
  }
  ~Walker() override { vocabulary_->walk_memory().remove(this); }

  size_t num_bytes() const { return num_bytes_; }

  std::shared_ptr<const Mask> mask(Progress* progress) {
    const std::lock_guard lock(mutex_);
    find_again(progress);
    auto mask = masks_.mask(progress->configuration);
    count_memory();
    return mask;
  }

  void advance(TokenId token, Progress* progress) {
    const std::lock_guard lock(mutex_);
    find_again(progress);
    if (vocabulary_->is_end_token(token)) {
      progress->has_ended = true;
      progress->configuration = {0};
      return;
    }
    const std::string& text = vocabulary_->text(token);
    LLMB_CHECK(!text.empty());
    progress->configuration = behind(text, matcher_.load(progress->configuration));
    progress->text += text;
    count_memory();
  }

  bool try_forget() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) forget();
    return lock.owns_lock();
  }

 private:
  Configuration behind(std::string_view text, MatcherState state) {
    for (const char c : text) {
      MatcherState next;
      LLMB_CHECK(matcher_.step(state, rules_.arena.byte_class(static_cast<uint8_t>(c)), &next));
      state = next;
    }
    return matcher_.save(state);
  }

  void find_again(Progress* progress) {
    if (progress->generation == generation_) return;
    progress->generation = generation_;
    if (!progress->has_ended) progress->configuration = behind(progress->text, matcher_.start(root_));
  }

  void count_memory() {
    constexpr size_t kNoted = size_t{256} << 10;
    const size_t num_bytes = rules_.arena.num_bytes() - num_bytes_ + masks_.num_bytes();
    if (num_bytes < noted_bytes_ + kNoted) return;
    noted_bytes_ = num_bytes;
    if (vocabulary_->walk_memory().grew(this, num_bytes)) forget();
  }

  void forget() {
    masks_.forget();
    rules_.arena.forget_walk();
    noted_bytes_ = 0;
    ++generation_;
  }

  std::mutex mutex_;
  Rules rules_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  Matcher matcher_;
  TokenMasks masks_;
  const ExprId root_;
  size_t num_bytes_ = 0;    // when it began
  size_t noted_bytes_ = 0;  // more than these, as the budget knows
  int64_t generation_ = 0;  // how often it has forgotten
};

class GrammarState : public ConstraintState {
 public:
  explicit GrammarState(std::shared_ptr<Walker> walker) : walker_(std::move(walker)) {}

  std::span<const uint32_t> allowed() override {
    if (mask_ == nullptr) mask_ = walker_->mask(&progress_);
    return *mask_;
  }

  void advance(TokenId token) override {
    walker_->advance(token, &progress_);
    mask_ = nullptr;
  }

  std::unique_ptr<ConstraintState> clone() const override { return std::make_unique<GrammarState>(*this); }

 private:
  const std::shared_ptr<Walker> walker_;
  Progress progress_;
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
