// Requests for an engine as a list, and its completions as a map.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/completion_sink.h"
#include "engine/request_source.h"

namespace llmb::test {

class ListSource final : public RequestSource {
 public:
  explicit ListSource(std::vector<std::shared_ptr<Request>> requests) : requests_(std::move(requests)) {}
  std::optional<WorkItem> next(double) override {
    if (at_end()) return std::nullopt;
    const auto ordinal = static_cast<int64_t>(next_);
    return WorkItem{ordinal, requests_[next_++], 0, false};
  }
  bool at_end() const override { return next_ == requests_.size(); }
  void stop() override { next_ = requests_.size(); }

 private:
  const std::vector<std::shared_ptr<Request>> requests_;
  size_t next_ = 0;
};

struct ListSink final : CompletionSink {
  void put(FinishedItem item) override { CHECK(items.emplace(item.ordinal, std::move(item)).second); }
  bool is_closed() const override { return false; }
  std::map<int64_t, FinishedItem> items;
};

}  // namespace llmb::test
