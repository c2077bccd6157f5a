#include "engine/thinking.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/request.h"

namespace llmb {

namespace {

using Words = std::vector<uint32_t>;

void set_bit(Words* mask, TokenId token) { (*mask)[token / 32] |= 1u << token % 32; }
void clear_bit(Words* mask, TokenId token) { (*mask)[token / 32] &= ~(1u << token % 32); }
bool has_bit(std::span<const uint32_t> mask, TokenId token) { return (mask[token / 32] >> token % 32 & 1u) != 0; }

// A special token's own text.
std::string_view text_of(const grammar::Vocabulary& vocabulary, TokenId token) {
  const std::string_view text = vocabulary.text(token);
  return text.starts_with(kSpecialMark) ? text.substr(1) : text;
}

class ThinkingConstraint : public TokenConstraint {
 public:
  ThinkingConstraint(std::shared_ptr<const TokenConstraint> form, ThinkingRules rules,
                     std::shared_ptr<const grammar::Vocabulary> vocabulary)
      : form_(std::move(form)), rules_(std::move(rules)), vocabulary_(std::move(vocabulary)), all_(all_tokens()), inside_(inside_tokens()) {}

  std::unique_ptr<ConstraintState> start() const override;
  size_t num_bytes() const override {
    return sizeof *this + all_.size() * sizeof(uint32_t) + (form_ == nullptr ? 0 : form_->num_bytes());
  }

 private:
  class State;

  Words all_tokens() const {
    Words mask(static_cast<size_t>(vocabulary_->num_words()), ~0u);
    if (vocabulary_->size() % 32 != 0) mask.back() &= ~(~0u << vocabulary_->size() % 32);
    return mask;
  }

  // With a form: no token that ends the answer, none that holds the end of the reasoning and more.
  Words inside_tokens() const {
    Words mask = all_;
    if (form_ == nullptr) return mask;
    for (const TokenId token : vocabulary_->end_tokens())
      if (text_of(*vocabulary_, token) != rules_.end) clear_bit(&mask, token);
    for (TokenId token = 0; token < vocabulary_->size(); ++token) {
      const std::string_view text = text_of(*vocabulary_, token);
      const size_t end = text.size() > rules_.end.size() ? text.find(rules_.end) : text.npos;
      if (end != text.npos && end + rules_.end.size() < text.size()) clear_bit(&mask, token);
    }
    return mask;
  }

  const std::shared_ptr<const TokenConstraint> form_;
  const ThinkingRules rules_;
  const std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  const Words all_, inside_;
};

class ThinkingConstraint::State : public ConstraintState {
 public:
  explicit State(const ThinkingConstraint& owner)
      : owner_(owner), form_(owner.form_ == nullptr ? nullptr : owner.form_->start()) {
    if (owner.rules_.starts_inside) enter();
    else if (form_ != nullptr && owner.rules_.must_open) put(owner.rules_.opening, Phase::kInside);
  }
  State(const State& other)
      : owner_(other.owner_),
        form_(other.form_ == nullptr ? nullptr : other.form_->clone()),
        phase_(other.phase_),
        behind_forced_(other.behind_forced_),
        forced_(other.forced_),
        text_(other.text_),
        num_inside_(other.num_inside_) {}

  std::unique_ptr<ConstraintState> clone() const override { return std::make_unique<State>(*this); }

  std::span<const uint32_t> allowed() override {
    const ThinkingRules& rules = owner_.rules_;
    if (!forced_.empty()) {
      mask_.assign(owner_.all_.size(), 0);
      set_bit(&mask_, forced_.front());
      return mask_;
    }
    if (phase_ == Phase::kInside) return inside();
    if (form_ == nullptr) return owner_.all_;
    if (phase_ == Phase::kBehind || rules.opening.empty()) return form_->allowed();
    const std::span<const uint32_t> form = form_->allowed();
    mask_.assign(form.begin(), form.end());
    set_bit(&mask_, rules.opening.front());
    return mask_;
  }

  void advance(TokenId token) override {
    const ThinkingRules& rules = owner_.rules_;
    if (!forced_.empty()) {
      forced_.erase(forced_.begin());
      if (forced_.empty()) arrive();
      return;
    }
    if (phase_ == Phase::kInside) return advance_inside(token);
    if (form_ != nullptr) {
      const bool opens = phase_ == Phase::kBefore && !rules.opening.empty() && token == rules.opening.front() &&
                         !has_bit(form_->allowed(), token);
      phase_ = opens ? phase_ : Phase::kBehind;
      if (opens) put({rules.opening.begin() + 1, rules.opening.end()}, Phase::kInside);
      else form_->advance(token);
      return;
    }
    look_for_begin(token);
  }

 private:
  enum class Phase { kBefore, kInside, kBehind };

  // These tokens come next, then the phase.
  void put(std::vector<TokenId> tokens, Phase then) {
    forced_ = std::move(tokens);
    behind_forced_ = then;
    if (forced_.empty()) arrive();
  }

  void arrive() {
    if (behind_forced_ == Phase::kInside) enter();
    else leave();
  }

  void enter() {
    phase_ = Phase::kInside;
    text_.clear();
    close_at_budget();
  }

  void leave() {
    phase_ = owner_.rules_.may_return && form_ == nullptr ? Phase::kBefore : Phase::kBehind;
    text_.clear();
  }

  void close_at_budget() {
    const ThinkingRules& rules = owner_.rules_;
    if (!rules.budget || num_inside_ < *rules.budget) return;
    std::vector<TokenId> tokens = rules.closing;
    if (form_ != nullptr) tokens.insert(tokens.end(), rules.heading.begin(), rules.heading.end());
    put(std::move(tokens), Phase::kBehind);
  }

  std::span<const uint32_t> inside() {
    const std::string_view end = owner_.rules_.end;
    bool is_changed = false;
    for (size_t known = std::min(end.size() - 1, text_.size()); form_ != nullptr && known > 0; --known) {
      if (!text_.ends_with(end.substr(0, known))) continue;
      if (!std::exchange(is_changed, true)) mask_ = owner_.inside_;
      forbid_beyond(end.substr(known));
    }
    return is_changed ? mask_ : owner_.inside_;
  }

  // Tokens that go on behind the rest of the end.
  void forbid_beyond(std::string_view rest) {
    const grammar::Vocabulary& vocabulary = *owner_.vocabulary_;
    for (TokenId token = 0; token < vocabulary.size(); ++token) {
      const std::string_view text = text_of(vocabulary, token);
      if (text.size() > rest.size() && text.starts_with(rest)) clear_bit(&mask_, token);
    }
  }

  void advance_inside(TokenId token) {
    const std::string& end = owner_.rules_.end;
    text_ += text_of(*owner_.vocabulary_, token);
    ++num_inside_;
    if (text_.find(end) != std::string::npos) {
      --num_inside_;  // the tag is none of it
      if (form_ != nullptr) put(owner_.rules_.heading, Phase::kBehind);
      else leave();
      return;
    }
    if (text_.size() > 2 * end.size()) text_.erase(0, text_.size() - end.size());
    close_at_budget();
  }

  // Without a form.
  void look_for_begin(TokenId token) {
    if (phase_ == Phase::kBehind) return;
    const std::string& begin = owner_.rules_.begin;
    text_ += text_of(*owner_.vocabulary_, token);
    if (owner_.rules_.may_return) {
      if (text_.find(begin) != std::string::npos) enter();
      else if (text_.size() > 2 * begin.size()) text_.erase(0, text_.size() - begin.size());
      return;
    }
    const size_t first = std::min(text_.find_first_not_of(" \t\r\n"), text_.size());
    const std::string_view rest = std::string_view(text_).substr(first);
    if (rest.starts_with(begin)) enter();
    else if (!std::string_view(begin).starts_with(rest)) phase_ = Phase::kBehind;
  }

  const ThinkingConstraint& owner_;
  const std::unique_ptr<ConstraintState> form_;
  Phase phase_ = Phase::kBefore, behind_forced_ = Phase::kBehind;
  std::vector<TokenId> forced_;  // that come next
  std::string text_;             // as far as tags are looked for in it
  int32_t num_inside_ = 0;       // tokens of reasoning
  Words mask_;
};

std::unique_ptr<ConstraintState> ThinkingConstraint::start() const { return std::make_unique<State>(*this); }

}  // namespace

std::shared_ptr<const TokenConstraint> with_thinking(std::shared_ptr<const TokenConstraint> form, ThinkingRules rules,
                                                     std::shared_ptr<const grammar::Vocabulary> vocabulary) {
  return std::make_shared<const ThinkingConstraint>(std::move(form), std::move(rules), std::move(vocabulary));
}

}  // namespace llmb
