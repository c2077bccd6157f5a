// Two streams side by side on the host layer: the orders that nothing forbids come up, eagerly and in graphs; those that
// events forbid do not; and streams with multiprocessors of their own, where the driver has them and where it refuses.
#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <string>

#include "kernels/cuda/divided_device.h"
#include "kernels/cuda/memory.h"
#include "kernels/simt/green_context.h"
#include "kernels/simt/settings.h"
#include "kernels/simt/stream_order.h"

namespace llmb::test {
namespace {

struct Mark {
  std::string* text;
  char letter;
  void append() { text->push_back(letter); }
};

// Queues letters: a, b, c on one stream beside x, y on the other; with `joined` x comes behind a, and c behind y.
class Letters {
 public:
  explicit Letters(bool joined) : joined_(joined) {}

  void queue(const std::function<void(char, cudaStream_t)>& put) {
    fork_.record(one_.get());
    wait(two_, fork_);
    put('a', one_.get());
    if (joined_) a_.record(one_.get()), wait(two_, a_);
    put('x', two_.get());
    put('y', two_.get());
    if (joined_) y_.record(two_.get()), wait(one_, y_);
    put('b', one_.get());
    put('c', one_.get());
    join_.record(two_.get());
    wait(one_, join_);
  }
  cuda::Stream one_, two_;

 private:
  static void wait(const cuda::Stream& stream, const cuda::Event& event) {
    REQUIRE(cudaStreamWaitEvent(stream.get(), event.get(), 0) == cudaSuccess);
  }
  const bool joined_;
  cuda::Event fork_, a_, y_, join_;
};

std::set<std::string> orders(bool joined, bool in_graph) {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    simt::set_seed(seed);
    simt::set_interleaving(seed % 3 * 50);
    Letters letters(joined);
    std::string text;
    Mark marks[] = {{&text, 'a'}, {&text, 'b'}, {&text, 'c'}, {&text, 'x'}, {&text, 'y'}};
    const auto put = [&](char letter, cudaStream_t stream) {
      for (Mark& mark : marks)
        if (mark.letter == letter)
          REQUIRE(cudaLaunchHostFunc(stream, [](void* m) { static_cast<Mark*>(m)->append(); }, &mark) == cudaSuccess);
    };
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (in_graph) REQUIRE(cudaStreamBeginCapture(letters.one_.get(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    letters.queue(put);
    if (in_graph) {
      REQUIRE(cudaStreamEndCapture(letters.one_.get(), &graph) == cudaSuccess);
      REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
      REQUIRE(cudaGraphLaunch(executable, letters.one_.get()) == cudaSuccess);
      cudaGraphDestroy(graph);
    }
    letters.one_.synchronize();
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    seen.insert(text);
  }
  simt::set_interleaving(0);
  simt::set_seed(0);
  return seen;
}

TEST_CASE("work on two streams runs in other orders, but in none that events forbid") {
  for (const bool in_graph : {false, true}) {
    CAPTURE(in_graph);
    const std::set<std::string> free = orders(false, in_graph), joined = orders(true, in_graph);
    CHECK(free.size() >= 6);
    CHECK(free.contains("abcxy"));
    CHECK(free.contains("xyabc"));
    for (const std::string& text : free) {
      CHECK(text.find('a') < text.find('b'));
      CHECK(text.find('b') < text.find('c'));
      CHECK(text.find('x') < text.find('y'));
    }
    CHECK(joined == std::set<std::string>{"axybc"});
  }
}

TEST_CASE("a recording in which a stream is not joined is refused") {
  const cuda::Stream one, two;
  const cuda::Event fork;
  REQUIRE(cudaStreamBeginCapture(one.get(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  fork.record(one.get());
  REQUIRE(cudaStreamWaitEvent(two.get(), fork.get(), 0) == cudaSuccess);
  REQUIRE(cudaLaunchHostFunc(two.get(), [](void*) {}, nullptr) == cudaSuccess);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(one.get(), &graph) == cudaErrorStreamCaptureUnjoined);
  CHECK(cudaGetLastError() == cudaErrorStreamCaptureUnjoined);
}

TEST_CASE("a device is divided between two streams, and given back") {
  simt::set_num_multiprocessors(132);
  {
    const cuda::DividedDevice device(0, 132, 40);
    CHECK(device.is_divided());
    CHECK(device.num_sms(0) == 92);
    CHECK(device.num_sms(1) == 40);
    CHECK(simt::num_green_contexts() == 2);
    CHECK(simt::num_green_sms() == 132);
  }
  CHECK(simt::num_green_contexts() == 0);
  simt::set_num_multiprocessors(4);
}

TEST_CASE("where the driver refuses any of it, both streams have the whole device") {
  int num_refused = 0;
  for (int call = 0; call < 16; ++call) {
    simt::fail_green_context_call(call);
    const cuda::DividedDevice device(0, 4, 1);
    if (device.is_divided()) break;
    ++num_refused;
    CHECK(device.num_sms(0) == 4);
    CHECK(device.num_sms(1) == 4);
    CHECK(device.stream(0) != device.stream(1));
    CHECK(simt::num_green_contexts() == 0);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  simt::fail_green_context_call(-1);
  CHECK(num_refused == 8);  // resource, split, and twice description, context and stream
  // None would be left for the first stream.
  simt::set_num_multiprocessors(1);
  CHECK_FALSE(cuda::DividedDevice(0, 1, 1).is_divided());
  simt::set_num_multiprocessors(4);
}

}  // namespace
}  // namespace llmb::test
