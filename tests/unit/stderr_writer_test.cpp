// Text on stderr where its reader is slow, has gone, or never reads.
#include "base/stderr_writer.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"

namespace llmb {

namespace {

constexpr double kLong = 60'000, kShort = 1;  // ms

struct Pipe {
  Pipe() { REQUIRE(pipe2(ends, O_CLOEXEC) == 0); }
  ~Pipe() {
    for (const int fd : ends) close(fd);
  }
  // So much that nothing more fits.
  int64_t fill() const {
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    const std::string page(4096, '.');
    int64_t size = 0;
    for (ssize_t count; (count = write(ends[1], page.data(), page.size())) > 0;) size += count;
    fcntl(ends[1], F_SETFL, 0);
    return size;
  }
  std::string take(size_t size) const {
    std::string text(size, '\0');
    for (size_t done = 0; done < size;) {
      const ssize_t count = read(ends[0], text.data() + done, size - done);
      REQUIRE(count > 0);
      done += static_cast<size_t>(count);
    }
    return text;
  }
  int ends[2];
};

}  // namespace

TEST_CASE("what is written arrives in order, whole lines of several threads unmixed") {
  const Pipe pipe;
  {
    StderrWriter writer(pipe.ends[1]);
    write_stderr("first\n");
    log_warning("second");
    CHECK(writer.flush_within(kLong));
    std::vector<std::thread> threads;
    for (const char letter : {'a', 'b', 'c'})
      threads.emplace_back([letter] {
        for (int i = 0; i < 100; ++i) write_stderr(std::string(50, letter) + "\n");
      });
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(pipe.take(6) == "first\n");
  CHECK(pipe.take(27) == "llm-batch: warning: second\n");
  for (int i = 0; i < 300; ++i) {
    const std::string line = pipe.take(51);
    CHECK(line == std::string(50, line[0]) + "\n");
  }
}

TEST_CASE("FAULTS 44: a reader who does not read holds nobody up; once he reads, everything comes") {
  const Pipe pipe;
  const auto size = static_cast<size_t>(pipe.fill());
  StderrWriter writer(pipe.ends[1]);
  for (int i = 0; i < 1000; ++i) write_stderr("line " + std::to_string(1000 + i) + "\n");
  write_stderr_if_idle("\rprogress that nobody needs");
  CHECK(!writer.flush_within(kShort));
  CHECK(pipe.take(size) == std::string(size, '.'));
  for (int i = 0; i < 1000; ++i) CHECK(pipe.take(10) == "line " + std::to_string(1000 + i) + "\n");
  CHECK(writer.flush_within(kLong));
  write_stderr_if_idle("idle again");
  CHECK(pipe.take(10) == "idle again");
}

TEST_CASE("FAULTS 44: what is too much is dropped and counted, in a line of its own where it would have stood") {
  const Pipe pipe;
  const auto size = static_cast<size_t>(pipe.fill());
  StderrWriter writer(pipe.ends[1]);
  write_stderr("first\n");  // which the thread takes at once, or with the next ones
  const std::string text(1023, 'x');
  for (int i = 0; i < 2000; ++i) write_stderr(text + "\n");
  pipe.take(size);
  CHECK(pipe.take(6) == "first\n");
  // The thread may take what is pending once or twice while it grows: each time its own losses are noted behind it.
  const std::string note = "llm-batch: warning: ";
  int num_lines = 0, num_dropped = 0;
  while (num_lines + num_dropped < 2000) {
    const std::string begin = pipe.take(note.size());
    if (begin == note) {
      std::string rest;
      while (rest.empty() || rest.back() != '\n') rest += pipe.take(1);
      CHECK(rest.ends_with(" messages were dropped here: nobody read stderr\n"));
      CHECK(std::stoi(rest) > 0);
      num_dropped += std::stoi(rest);
    } else {
      CHECK(begin == text.substr(0, note.size()));
      CHECK(pipe.take(1024 - note.size()) == text.substr(note.size()) + "\n");
      ++num_lines;
    }
  }
  CHECK(num_lines + num_dropped == 2000);
  CHECK(num_lines >= 255);
  CHECK(num_dropped > 0);
}

TEST_CASE("a reader who has gone, and a closed descriptor, are no error") {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  close(pipe.ends[0]);
  for (const int fd : {pipe.ends[1], 9999}) {
    StderrWriter writer(fd);
    write_stderr("nobody hears it\n");
    CHECK(writer.flush_within(kLong));
  }
  pipe.ends[0] = dup(pipe.ends[1]);
}

}  // namespace llmb
