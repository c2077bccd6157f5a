// Ranks that share memory: every call gives what it promises whatever the timing, and one that dies or hangs is named.
#include "base/shared_ranks.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "base/first_failure.h"
#include "tests/support/check_ok.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

std::vector<ChannelMembers> one_channel(int num_ranks) {
  ChannelMembers all;
  for (int r = 0; r < num_ranks; ++r) all.ranks.push_back(r);
  return {all};
}

// Runs `work` as each rank, in a thread of its own.
void run_ranks(int num_ranks, const std::function<void(Collectives&)>& work) {
  auto ranks = SharedRanks::create(num_ranks, one_channel(num_ranks));
  check_ok(ranks.status());
  std::vector<std::thread> threads;
  for (int r = 0; r < num_ranks; ++r)
    threads.emplace_back([&, r] { work(*SharedRanks::join(*ranks, 0, r)); });
  for (std::thread& thread : threads) thread.join();
}

void sleep_a_moment(TestRng& rng) {
  if (rng.chance(0.25)) std::this_thread::sleep_for(std::chrono::microseconds(rng.between(0, 300)));
}

float random_float(TestRng& rng) {
  return std::ldexp(static_cast<float>(rng.between(-100000, 100000)), rng.between(-20, 0));
}

// Some are larger than what is published at once.
int64_t random_size(TestRng& rng) { return rng.chance(0.1) ? rng.between(250000, 290000) : rng.between(0, 300); }

}  // namespace

TEST_CASE("all calls in a random order, with random delays: sums are in the order of ranks, parts are whole") {
  for (const int num_ranks : {1, 2, 3, 4}) {
    std::vector<std::string> failures(static_cast<size_t>(num_ranks));
    run_ranks(num_ranks, [&](Collectives& c) {
      TestRng shared(7), own(100 + static_cast<uint64_t>(c.rank()));
      const auto fail = [&](const char* call) { failures[static_cast<size_t>(c.rank())] = call; };
      for (int i = 0; i < 150; ++i) {
        const int64_t size = random_size(shared);
        std::vector<std::vector<float>> parts(static_cast<size_t>(num_ranks));
        for (auto& part : parts) part.resize(static_cast<size_t>(size));
        for (auto& part : parts)
          for (float& x : part) x = random_float(shared);
        std::vector<float> mine = parts[static_cast<size_t>(c.rank())];
        const int root = shared.between(0, num_ranks - 1);
        const int call = shared.between(0, 4);
        sleep_a_moment(own);
        if (call == 0) {
          c.broadcast(mine.data(), size * 4, root);
          if (mine != parts[static_cast<size_t>(root)]) fail("broadcast");
        } else if (call == 1) {
          c.all_reduce(mine.data(), size);
          for (int64_t at = 0; at < size; ++at) {
            float sum = parts[0][static_cast<size_t>(at)];
            for (int r = 1; r < num_ranks; ++r) sum += parts[static_cast<size_t>(r)][static_cast<size_t>(at)];
            if (std::memcmp(&sum, &mine[static_cast<size_t>(at)], 4) != 0) fail("all_reduce");
          }
        } else if (call == 2) {
          std::vector<float> all(static_cast<size_t>(size * num_ranks));
          c.all_gather(mine.data(), size * 4, all.data());
          for (int r = 0; r < num_ranks; ++r) {
            const std::vector<float>& part = parts[static_cast<size_t>(r)];
            if (!std::equal(part.begin(), part.end(), all.begin() + r * size)) fail("all_gather");
          }
        } else if (call == 3) {
          const auto bytes = static_cast<size_t>(std::min(size * 4, c.room_bytes()));
          std::memcpy(c.room(static_cast<int64_t>(bytes)), mine.data(), bytes);
          const std::span<const void* const> all = c.share();
          sleep_a_moment(own);
          for (size_t r = 0; r < all.size(); ++r)
            if (std::memcmp(all[r], parts[r].data(), bytes) != 0) fail("share");
        } else if (num_ranks > 1) {  // a ring
          const int next = (c.rank() + 1) % num_ranks, before = (c.rank() + num_ranks - 1) % num_ranks;
          std::vector<float> got(static_cast<size_t>(size));
          if (c.rank() % 2 == 0 || size < 1000) {
            c.send(mine.data(), size * 4, next);
            c.receive(got.data(), size * 4, before);
          } else {
            c.receive(got.data(), size * 4, before);
            c.send(mine.data(), size * 4, next);
          }
          if (got != parts[static_cast<size_t>(before)]) fail("send, receive");
        }
      }
    });
    for (const std::string& failure : failures) CHECK(failure == "");
  }
}

TEST_CASE("sums have the same bytes in 100 runs with other delays") {
  constexpr int kRanks = 4, kCount = 5000;
  std::vector<float> first;
  for (uint64_t run = 0; run < 100; ++run) {
    std::vector<std::vector<float>> results(kRanks);
    run_ranks(kRanks, [&](Collectives& c) {
      TestRng values(static_cast<uint64_t>(c.rank())), delays(1000 * run + static_cast<uint64_t>(c.rank()));
      std::vector<float> x(kCount);
      for (float& v : x) v = random_float(values);
      for (int i = 0; i < 5; ++i) {
        sleep_a_moment(delays);
        c.all_reduce(x.data(), kCount);
        for (float& v : x) v *= 0.3f;
      }
      results[static_cast<size_t>(c.rank())] = x;
    });
    if (run == 0) first = results[0];
    for (const std::vector<float>& result : results) CHECK((std::memcmp(result.data(), first.data(), 4 * kCount) == 0));
  }
}

TEST_CASE("a rank that hangs is named, with its step, by all the others") {
  auto ranks = SharedRanks::create(3, one_channel(3));
  check_ok(ranks.status());
  (*ranks)->set_patience_ms(100);
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      const auto channel = SharedRanks::join(*ranks, 0, r);
      std::vector<float> x(10);
      try {
        for (int step = 0;; ++step) {
          (*ranks)->begin_step(r, step);
          if (r == 2 && step == 5) return;
          channel->all_reduce(x.data(), 10);
        }
      } catch (const RankError& e) {
        errors[static_cast<size_t>(r)] = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(errors[0] == "rank 2 in step 5 does not answer");
  CHECK(errors[1] == errors[0]);
}

TEST_CASE("a process that is stopped in the middle of a call is the one that is named") {
  auto ranks = SharedRanks::create(2, one_channel(2));
  check_ok(ranks.status());
  (*ranks)->set_patience_ms(200);
  const pid_t child = ::fork();
  std::vector<float> x(1000);
  if (child == 0) {
    const auto channel = SharedRanks::join(*ranks, 0, 1);
    for (int step = 0;; ++step) {
      (*ranks)->begin_step(1, step);
      if (step == 20) ::raise(SIGSTOP);
      channel->all_reduce(x.data(), 1000);
    }
  }
  const auto channel = SharedRanks::join(*ranks, 0, 0);
  std::string error;
  try {
    while (true) channel->all_reduce(x.data(), 1000);
  } catch (const RankError& e) {
    error = e.what();
  }
  CHECK(error == "rank 1 in step 20 does not answer");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("after a failure every call says what failed first") {
  auto ranks = SharedRanks::create(2, one_channel(2));
  check_ok(ranks.status());
  const auto channel = SharedRanks::join(*ranks, 0, 0);
  std::thread other([&] { (*ranks)->fail(device_error("rank 1 was killed")), (*ranks)->fail(internal_error("else")); });
  float x = 0;
  CHECK_THROWS_WITH_AS(channel->all_reduce(&x, 1), "rank 1 was killed", RankError);
  other.join();
  CHECK_THROWS_WITH_AS(channel->send(&x, 4, 1), "rank 1 was killed", RankError);
}

TEST_CASE("where messages may come after any time: who waits for one waits, who tells one that nobody takes gives up") {
  std::vector<ChannelMembers> channels = one_channel(3);
  channels[0].may_be_idle = true;
  auto ranks = SharedRanks::create(3, channels);
  check_ok(ranks.status());
  (*ranks)->set_patience_ms(100);
  std::string errors[2];
  const auto as_rank = [&](int rank, const auto& body) {
    return std::thread([&, rank, body] {
      const auto channel = SharedRanks::join(*ranks, 0, rank);
      int64_t message = 7;
      try {
        for (int step = 0; step < 3; ++step) body(step), channel->broadcast(&message, sizeof message, 0);
      } catch (const RankError& e) {
        errors[rank] = e.what();
      }
    });
  };
  std::thread reader = as_rank(1, [](int) {});
  std::thread root = as_rank(0, [](int step) {
    if (step == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  });
  SharedRanks::join(*ranks, 0, 2);  // which takes nothing
  reader.join(), root.join();
  CHECK(errors[0] == "rank 2 before the first step does not answer");
  CHECK(errors[1] == errors[0]);
}

TEST_CASE("a failure is told though others that were about to tell theirs have died; a long one is cut") {
  FirstFailure failure;
  CHECK(failure.status().ok());
  for (int i = 0; i < 5; ++i) CHECK(failure.write(device_error("of one that dies here")).has_value());
  failure.tell(device_error(std::string(5000, 'x')));
  failure.tell(internal_error("another one"));
  CHECK(failure.is_told());
  CHECK(failure.status().code() == StatusCode::kDeviceError);
  CHECK(failure.status().message() == std::string(1023, 'x'));
}

TEST_CASE("memory of other ranks is refused") {
  auto ranks = SharedRanks::create(2, one_channel(2));
  check_ok(ranks.status());
  const auto other = SharedRanks::open(Descriptor(real_file_ops(), ::dup((*ranks)->descriptor())), 3, one_channel(3));
  CHECK(other.status().code() == StatusCode::kDataLoss);
}

}  // namespace llmb::test
