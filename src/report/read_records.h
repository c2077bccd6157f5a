// Records of an output as the data of a report, in bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "report/run_data.h"

namespace llmb {

// Takes one record after the other. ITL is each request's median: a record has no more.
class RecordFigures {
 public:
  RecordFigures();
  ~RecordFigures();
  RecordFigures(const RecordFigures&) = delete;
  RecordFigures& operator=(const RecordFigures&) = delete;

  // False: not a record of llm-batch's, in its own form or OpenAI's.
  bool add(std::string_view line);
  int64_t num_records() const;
  // Counts, tokens, latencies, lengths, errors, sample and slowest rows; the rest of `run` stays as it is.
  void put_into(RunData* run) const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace llmb
