// Masks worked out while a step runs: behind the tokens that came most often, as far as each form allows them, until
// the step ends; and the masks that answers get are what they are without.
#include "engine/mask_ahead.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "grammar/answer_forms.h"
#include "grammar/grammar_constraint.h"
#include "tests/support/mask_check.h"

namespace llmb::test {

namespace {

// Allows even tokens and notes those that its clones followed.
class NotingForm final : public TokenConstraint {
 public:
  class State final : public ConstraintState {
   public:
    explicit State(const NotingForm& form) : form_(form) {}
    std::span<const uint32_t> allowed() override {
      if (depth_ > 0) {
        if (form_.fails) throw std::bad_alloc();
        if (form_.delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(form_.delay_ms));
        ++form_.num_behind;
        form_.most_followed = std::max(form_.most_followed.load(), depth_);
        form_.newest = last_;
      }
      return mask_;
    }
    void advance(TokenId token) override { last_ = token, ++depth_; }
    std::unique_ptr<ConstraintState> clone() const override { return std::make_unique<State>(*this); }

   private:
    const NotingForm& form_;
    TokenId last_ = -1;
    int depth_ = 0;
    std::vector<uint32_t> mask_ = {0x55555555u, 0x55555555u};
  };

  std::unique_ptr<ConstraintState> start() const override { return std::make_unique<State>(*this); }
  size_t num_bytes() const override { return 0; }

  int delay_ms = 0;
  bool fails = false;
  mutable std::atomic<int> num_behind = 0, most_followed = 0;
  mutable std::atomic<TokenId> newest = -1;
};

struct Rows {
  std::vector<std::unique_ptr<ConstraintState>> owned;
  std::vector<MaskAhead::Row> all;
  void add(const TokenConstraint& form) {
    owned.push_back(form.start());
    all.push_back({&form, owned.back().get()});
  }
};

void wait_for(const NotingForm& form, int num_behind) {
  for (int tries = 0; tries < 20'000 && form.num_behind < num_behind; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

TEST_CASE("the tokens that came most often are found among many others, the most frequent first") {
  FrequentTokens frequent;
  CHECK(frequent.best(3).empty());
  for (int i = 0; i < 3000; ++i) {
    frequent.add(1000 + i);  // once each
    if (i % 5 == 0) frequent.add(7);
    if (i % 10 == 0) frequent.add(8);
  }
  CHECK(frequent.best(2) == std::vector<TokenId>{7, 8});
  CHECK(frequent.best(1000).size() == 64);
}

TEST_CASE("tokens that the form allows are followed for each row, whatever the number of threads and forms") {
  for (const int num_threads : {1, 2, 5})
    for (const int num_forms : {1, 3}) {
      MaskAhead ahead(num_threads);
      const NotingForm forms[3];
      Rows rows;
      for (int i = 0; i < 9; ++i) rows.add(forms[i % num_forms]);
      for (const TokenId token : {2, 4, 5, 6, 6}) ahead.add(token);
      for (int step = 1; step <= 3; ++step) {
        ahead.begin(rows.all);
        for (int form = 0; form < num_forms; ++form) wait_for(forms[form], step * 27 / num_forms);
        ahead.end();
        CHECK(ahead.num_masks() == step * 27);  // 9 rows, 3 even tokens
      }
      CHECK(forms[0].num_behind == 81 / num_forms);
    }
}

TEST_CASE("rows that verify drafts are followed behind these") {
  const NotingForm form;
  Rows rows;
  for (int i = 0; i < 3; ++i) rows.add(form);
  const std::vector<TokenId> drafts = {4, 6, 8};
  rows.all[1].drafts = drafts;
  rows.all[2].drafts = std::span(drafts).first(1);
  MaskAhead ahead(2);
  ahead.add(2);
  ahead.begin(rows.all);
  wait_for(form, 5);
  ahead.end();
  CHECK(form.num_behind == 5);     // a token behind each, and two masks behind drafts
  CHECK(form.most_followed == 4);  // three drafts and a token
  for (const auto& state : rows.owned) state->allowed();
  CHECK(form.num_behind == 5);  // the rows' own states stayed where they were
}

TEST_CASE("nothing is done without threads, rows or tokens") {
  const NotingForm form;
  Rows rows;
  rows.add(form);
  MaskAhead none(0), some(2);
  none.add(2);
  none.begin(rows.all);
  none.end();
  CHECK_FALSE(none.is_used());
  some.begin(rows.all);  // no token has come
  some.end();
  some.add(2);
  some.begin({});
  some.end();
  CHECK(form.num_behind == 0);
}

TEST_CASE("a step that ends early ends the work; a begun one may be left behind; a lack of memory is nobody's error") {
  NotingForm slow;
  slow.delay_ms = 5;
  Rows rows;
  for (int i = 0; i < 100; ++i) rows.add(slow);
  {
    MaskAhead ahead(1);
    ahead.add(2);
    ahead.begin(rows.all);
    wait_for(slow, 1);
    ahead.end();
    const int num_behind = slow.num_behind;
    CHECK(num_behind < 100);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(slow.num_behind == num_behind);
    ahead.begin(rows.all);
  }
  NotingForm failing, working;
  failing.fails = true;
  Rows first, second;
  first.add(failing), second.add(working);
  MaskAhead ahead(2);
  ahead.add(2);
  ahead.begin(first.all);
  ahead.end();
  ahead.begin(second.all);
  wait_for(working, 1);
  ahead.end();
  CHECK(working.newest == 2);
}

TEST_CASE("answers get the masks that they get without") {
  const auto vocabulary = bundled_vocabulary();
  const char* const kPatterns[] = {"([A-Z][a-z]+ )+[0-9]{4}", "[^,]*, because .{1,40}\\.", "(a|an|the)( [a-z]+){2,9}"};
  std::vector<std::shared_ptr<const TokenConstraint>> helped, alone;
  for (const char* pattern : kPatterns) {
    helped.push_back(*grammar::make_constraint(*grammar::regex_rules(pattern), vocabulary));
    alone.push_back(*grammar::make_constraint(*grammar::regex_rules(pattern), vocabulary));
  }
  MaskAhead ahead(3);
  Rows rows, expected;
  for (size_t i = 0; i < 12; ++i) rows.add(*helped[i % 3]), expected.add(*alone[i % 3]);
  TestRng rng(1);
  for (int step = 0; step < 40; ++step) {
    ahead.begin(rows.all);
    if (step % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    ahead.end();
    for (size_t i = 0; i < rows.owned.size(); ++i) {
      const auto found = rows.owned[i]->allowed(), wanted = expected.owned[i]->allowed();
      REQUIRE(std::equal(found.begin(), found.end(), wanted.begin(), wanted.end()));
      const std::optional<TokenId> token = draw_allowed(*vocabulary, wanted, rng);
      if (!token) continue;
      rows.owned[i]->advance(*token);
      expected.owned[i]->advance(*token);
      ahead.add(*token);
    }
  }
  CHECK(ahead.num_masks() > 0);
}

}  // namespace llmb::test
