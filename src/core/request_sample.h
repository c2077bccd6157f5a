// Keeps a few of a run's requests, however many there are: some drawn at random, and the slowest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"

namespace llmb {

// One answered line in figures.
struct RequestFigures {
  std::string place;    // "in.jsonl:7"; "": not known
  std::string id_json;  // "": none
  int64_t num_input_tokens = 0, num_output_tokens = 0;
  double queue_ms = 0, ttft_ms = 0, e2e_ms = 0;
};

// In bounded memory. The draws have a fixed seed: equal runs keep equal samples.
class RequestSample {
 public:
  static constexpr size_t kMaxDrawn = 400, kMaxSlowest = 10, kMaxTextBytes = 200;

  void add(RequestFigures request);
  const std::vector<RequestFigures>& drawn() const { return drawn_; }  // each request equally likely
  std::vector<RequestFigures> slowest() const;                        // by e2e_ms, the slowest first

 private:
  int64_t num_seen_ = 0;
  uint32_t num_draws_ = 0;
  std::vector<RequestFigures> drawn_, slowest_;  // slowest_: a heap, the fastest of them in front
};

}  // namespace llmb
