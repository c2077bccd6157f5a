#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/thread_pool.h"

namespace llmb {

// Known answers from the Random123 distribution (kat_vectors, philox 4x32 10).
TEST_CASE("philox4x32-10 gives the published known answers") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("sampling_uniform depends on seed, request, sample and position, and stays in [0, 1)") {
  const float u = sampling_uniform({1, 2}, 3, 4);
  CHECK(u >= 0.0f);
  CHECK(u < 1.0f);
  CHECK(sampling_uniform({1, 2}, 3, 4) == u);
  CHECK(sampling_uniform({2, 2}, 3, 4) != u);
  CHECK(sampling_uniform({1, 3}, 3, 4) != u);
  CHECK(sampling_uniform({1, 2}, 4, 4) != u);
  CHECK(sampling_uniform({1, 2}, 3, 5) != u);
  CHECK(uniform_from_bits(0xffffffffu) < 1.0f);
}

TEST_CASE("parallel_for runs every task once, for any number of tasks and threads") {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    for (const int64_t num_tasks : {0, 1, 2, 3, 1000}) {
      std::vector<std::atomic<int>> runs(num_tasks);
      pool.parallel_for(num_tasks, [&](int64_t task, int thread) {
        CHECK(thread < num_threads);
        runs[task]++;
      });
      for (auto& r : runs) CHECK(r == 1);
    }
  }
}

TEST_CASE("parallel_for rethrows a body's exception and works afterwards") {
  ThreadPool pool(3);
  CHECK_THROWS_AS(pool.parallel_for(100,
                                    [](int64_t task, int) {
                                      if (task == 50) throw std::runtime_error("x");
                                    }),
                  std::runtime_error);
  std::atomic<int> sum = 0;
  pool.parallel_for(100, [&](int64_t, int) { sum++; });
  CHECK(sum == 100);
}

TEST_CASE("a bounded queue blocks when full, keeps order, and drains after close") {
  BoundedQueue<int> queue(2);
  std::thread producer([&] {
    for (int i = 0; i < 100; ++i) CHECK(queue.push(i));
    queue.close();
    CHECK_FALSE(queue.push(100));
  });
  for (int i = 0; i < 100; ++i) {
    CHECK(queue.size() <= 2);
    CHECK(queue.pop() == i);
  }
  producer.join();
  CHECK_FALSE(queue.pop().has_value());
  CHECK(queue.drained());
}

TEST_CASE("control characters are escaped, other UTF-8 is kept") {
  CHECK(escape_control("a\x1b[31m\n\x7f\xc2\x9b\xc3\xa9") == "a\\x1b[31m\\n\\x7f\\x9b\xc3\xa9");
  CHECK(escape_control("\xff\xc3 \xe2\x82") == "\\xff\\xc3 \\xe2\\x82");
}

}  // namespace llmb
