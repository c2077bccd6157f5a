// Which pages of a mapped file are read.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace llmb::test {

inline constexpr size_t kPage = 4096;

// A safetensors file whose header is filled up, so that its first tensor begins with a page.
inline std::string on_pages(std::string file) {
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  const uint64_t end = sizeof size + size, padded = (end + kPage - 1) / kPage * kPage;
  file.insert(end, padded - end, ' ');
  size += padded - end;
  std::memcpy(file.data(), &size, sizeof size);
  return file;
}

// Takes the mappings of a file away, and gives each page back when somebody reads it. One at a time.
class TouchedPages {
 public:
  explicit TouchedPages(const std::string& path) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (!line.ends_with(path)) continue;
      uintptr_t begin = 0, end = 0;
      char dash = 0;
      std::istringstream(line) >> std::hex >> begin >> dash >> end;
      CHECK(begin_ == 0);
      begin_ = begin, end_ = end;
    }
    REQUIRE(begin_ > 0);
    is_touched_ = std::make_unique<std::atomic<bool>[]>((end_ - begin_) / kPage);
    current_ = this;
    struct sigaction action {};
    action.sa_sigaction = on_touch;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGSEGV, &action, &before_);
    REQUIRE(::mprotect(reinterpret_cast<void*>(begin_), end_ - begin_, PROT_NONE) == 0);
  }
  ~TouchedPages() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    current_ = nullptr;
  }
  int64_t bytes() const {
    int64_t count = 0;
    for (size_t i = 0; i < (end_ - begin_) / kPage; ++i) count += is_touched_[i];
    return count * static_cast<int64_t>(kPage);
  }

 private:
  static void on_touch(int, siginfo_t* info, void*) {
    const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
    TouchedPages* const self = current_;
    if (self == nullptr || at < self->begin_ || at >= self->end_) {
      ::signal(SIGSEGV, SIG_DFL);  // a fault of somebody else's, which comes again
      return;
    }
    const uintptr_t page = at / kPage * kPage;
    self->is_touched_[(page - self->begin_) / kPage] = true;
    ::mprotect(reinterpret_cast<void*>(page), kPage, PROT_READ);
  }

  inline static std::atomic<TouchedPages*> current_{nullptr};
  uintptr_t begin_ = 0, end_ = 0;
  std::unique_ptr<std::atomic<bool>[]> is_touched_;
  struct sigaction before_ {};
};

}  // namespace llmb::test
