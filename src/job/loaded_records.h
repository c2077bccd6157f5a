// Result records in memory, in the order of their input lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/resume_scan.h"

namespace llmb {

// `bytes` hold whole records of a file, with RecordParser::kPadding readable bytes behind them.
struct LoadedRecords {
  static constexpr size_t kHugePage = 2 << 20;

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char[], Free> bytes;
  size_t size = 0, capacity = 0;
  std::string changed;

  struct Place {
    int64_t index;
    uint32_t begin, size;
  };
  std::vector<Place> places;  // by index
  size_t next = 0;
  const char* text = nullptr;

  std::string_view record() const { return {text + places[next].begin, places[next].size}; }
  size_t memory() const { return capacity + changed.capacity() + places.capacity() * sizeof(Place); }

  // Room for so many bytes; what was there is gone.
  void reserve(size_t num_bytes);
  // Fills `places`. False: these are not whole records.
  bool find_records(RecordParser* parser);
  // Changes each record.
  void apply(const std::function<void(std::string_view record, std::string* out)>& change);
};

}  // namespace llmb
