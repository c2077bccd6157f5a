// Which worker gets which row: each row once, prefixes together, even ends, and what a dying worker costs.
#include "job/row_dealer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "tests/support/test_rng.h"
#include "tests/support/workload.h"

namespace llmb::test {

namespace {

// Rows of a group share their first 40 tokens.
WorkItem row(int64_t ordinal, int group = 0) {
  auto request = std::make_shared<Request>(*make_request(50, 5));
  for (size_t i = 0; i < 40; ++i) request->prompt_tokens[i] = 1000 + group;
  for (size_t i = 40; i < 50; ++i)
    request->prompt_tokens[i] = static_cast<TokenId>(ordinal * 50 + static_cast<int64_t>(i));
  return {ordinal, std::move(request)};
}

RowDealer dealer_of(int num_workers, int num_slots) {
  RowDealer dealer(num_workers, num_slots);
  for (int i = 0; i < num_workers; ++i) dealer.set_alive(i);
  return dealer;
}

// All that a worker may have in hand by now.
std::vector<int64_t> deal_all(RowDealer& dealer, int worker) {
  std::vector<int64_t> ordinals;
  while (const WorkItem* item = dealer.deal(worker)) ordinals.push_back(item->ordinal);
  return ordinals;
}

}  // namespace

TEST_CASE("few rows are divided evenly, many fill each worker's hands and no more") {
  RowDealer few = dealer_of(3, 64);
  for (int i = 0; i < 10; ++i) few.add(row(i));
  CHECK(deal_all(few, 0).size() == 3);  // the first row's prompt is computed whole
  CHECK(deal_all(few, 1).size() == 4);
  CHECK(deal_all(few, 2).size() == 3);
  CHECK(few.num_waiting() == 0);

  RowDealer many = dealer_of(2, 16);
  for (int i = 0; i < 500; ++i) many.add(row(i));
  CHECK(deal_all(many, 0).size() == 18);
  CHECK(deal_all(many, 1).size() == 18);
  CHECK(many.num_waiting() == 464);
}

TEST_CASE("a worker that is yet to start has its part, one that is given up has none") {
  RowDealer dealer(2, 64);
  dealer.set_alive(0);
  for (int i = 0; i < 20; ++i) dealer.add(row(i));
  CHECK(deal_all(dealer, 0).size() == 10);
  dealer.give_up(1);
  CHECK(deal_all(dealer, 0).size() == 10);
}

TEST_CASE("parts are even in what they cost, not in rows") {
  RowDealer dealer = dealer_of(2, 64);
  for (int i = 0; i < 40; ++i) {
    WorkItem item = row(i);
    item.request->params.stop.max_tokens = i < 10 ? 300 : 100;  // the longest come first
    dealer.add(std::move(item));
  }
  int64_t tokens[2] = {0, 0};
  for (int worker = 0; worker < 2; ++worker)
    for (const int64_t ordinal : deal_all(dealer, worker)) tokens[worker] += ordinal < 10 ? 300 : 100;
  CHECK(tokens[0] + tokens[1] == 6000);
  CHECK(std::abs(tokens[0] - tokens[1]) <= 400);
}

TEST_CASE("rows that share a prefix go to one worker, but for what is left at the end") {
  constexpr int kNumGroups = 40, kGroup = 12;
  RowDealer dealer = dealer_of(2, 8);
  for (int i = 0; i < kNumGroups * kGroup; ++i) dealer.add(row(i, i / kGroup));
  std::vector<std::set<int>> workers_of(kNumGroups);
  while (dealer.num_waiting() + dealer.num_in_hand() > 0)
    for (int worker = 0; worker < 2; ++worker)
      for (const int64_t ordinal : deal_all(dealer, worker)) {
        workers_of[static_cast<size_t>(ordinal / kGroup)].insert(worker);
        CHECK(dealer.finish(worker, ordinal).has_value());
      }
  const auto num_divided =
      std::count_if(workers_of.begin(), workers_of.end(), [](const auto& w) { return w.size() > 1; });
  CHECK(num_divided <= 4);
}

TEST_CASE("a worker that has nothing left takes over from another") {
  RowDealer dealer(2, 4);
  dealer.set_alive(0);
  for (int i = 0; i < 40; ++i) dealer.add(row(i));
  std::set<int64_t> seen;
  for (const int64_t ordinal : deal_all(dealer, 0)) seen.insert(ordinal);
  dealer.set_alive(1);
  size_t num_of_second = 0;
  // The first does not answer any more.
  while (true) {
    const std::vector<int64_t> more = deal_all(dealer, 1);
    if (more.empty()) break;
    for (const int64_t ordinal : more) {
      CHECK(seen.insert(ordinal).second);
      CHECK(dealer.finish(1, ordinal).has_value());
      ++num_of_second;
    }
  }
  CHECK(num_of_second + dealer.num_in_hand(0) == 40);
}

TEST_CASE("what a dying worker had in hand is dealt again, and its answers count no more") {
  RowDealer dealer = dealer_of(2, 4);
  for (int i = 0; i < 30; ++i) dealer.add(row(i));
  const std::vector<int64_t> of_first = deal_all(dealer, 0);
  CHECK(dealer.lose(0).empty());
  CHECK_FALSE(dealer.finish(0, of_first[0]).has_value());
  std::vector<int64_t> next = deal_all(dealer, 1);
  std::sort(next.begin(), next.end());
  CHECK(next == of_first);
}

TEST_CASE("a row that kills each worker is found and given back, the others are all answered") {
  constexpr int kNumRows = 60, kKiller = 23;
  RowDealer dealer = dealer_of(2, 8);
  for (int i = 0; i < kNumRows; ++i) dealer.add(row(i));
  std::set<int64_t> answered, guilty;
  int num_deaths = 0;
  while (dealer.num_waiting() + dealer.num_in_hand() > 0)
    for (int worker = 0; worker < 2; ++worker) {
      const std::vector<int64_t> dealt = deal_all(dealer, worker);
      if (std::count(dealt.begin(), dealt.end(), kKiller) > 0) {
        REQUIRE(++num_deaths < 20);
        for (const WorkItem& item : dealer.lose(worker)) guilty.insert(item.ordinal);
        dealer.set_alive(worker);
        continue;
      }
      for (const int64_t ordinal : dealt) {
        CHECK(dealer.finish(worker, ordinal).has_value());
        CHECK(answered.insert(ordinal).second);
      }
    }
  CHECK(guilty == std::set<int64_t>{kKiller});
  CHECK(answered.size() == kNumRows - 1);
  CHECK(num_deaths == RowDealer::kSuspectDeaths + RowDealer::kGuiltyDeaths);
}

TEST_CASE("where no row is answered any more, none is said to be the cause") {
  RowDealer dealer = dealer_of(1, 3);
  for (int i = 0; i < 6; ++i) dealer.add(row(i));
  for (int death = 0; death < 30; ++death) {
    deal_all(dealer, 0);
    CHECK(dealer.lose(0).empty());
    dealer.set_alive(0);
  }
  CHECK(dealer.num_waiting() == 6);
}

TEST_CASE("whatever dies and when, each row is answered once or given back") {
  TestRng rng(1);
  for (int round = 0; round < 200; ++round) {
    const int num_workers = rng.between(1, 4), num_rows = rng.between(0, 80);
    RowDealer dealer(num_workers, rng.between(1, 9));
    std::set<int64_t> alive, settled;
    std::vector<std::vector<int64_t>> in_hand(static_cast<size_t>(num_workers));
    int num_added = 0;
    while (static_cast<int>(settled.size()) < num_rows) {
      const int worker = rng.between(0, num_workers - 1), what = rng.between(0, 9);
      auto& hand = in_hand[static_cast<size_t>(worker)];
      if (num_added < num_rows && what < 4) {
        dealer.add(row(num_added++, rng.between(0, 3)));
      } else if (alive.insert(worker).second) {
        dealer.set_alive(worker);
      } else if (what == 9) {
        for (const WorkItem& item : dealer.lose(worker)) CHECK(settled.insert(item.ordinal).second);
        hand.clear();
        alive.erase(worker);
      } else if (!hand.empty() && what > 6) {
        CHECK(dealer.finish(worker, hand.back()).has_value());
        CHECK(settled.insert(hand.back()).second);
        hand.pop_back();
      } else if (const WorkItem* item = dealer.deal(worker)) {
        hand.push_back(item->ordinal);
      }
      REQUIRE(dealer.num_in_hand(worker) == hand.size());
    }
    CHECK(dealer.num_waiting() + dealer.num_in_hand() == 0);
  }
}

}  // namespace llmb::test
