// Reads, parses and tokenises lines on a thread of its own, a bounded window ahead of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/status.h"
#include "core/completion.h"
#include "core/request.h"
#include "engine/request_preparer.h"
#include "io/line_reader.h"
#include "io/request_parser.h"
#include "job/completed_lines.h"

namespace llmb {

// One input line on its way to the engine: a request, or the error record that answers it.
struct IntakeItem {
  std::shared_ptr<Request> request;  // null: `failure` answers the line
  Completion failure;
  // When the request arrives: since the start of the run (files, simulated arrivals), or on the clock (stdin).
  double arrival_ms = 0;
  bool arrival_is_clock_time = false;
  int64_t input_bytes = 0;  // LineReader::bytes_consumed() after this line
};

struct IntakeOptions {
  uint64_t seed = 0;
  std::optional<double> request_rate;         // per second; Poisson arrivals
  size_t window = 256;                        // lines read ahead at most
  const CompletedLines* completed = nullptr;  // lines that an earlier run answered: skipped. Outlives the intake
};

// Driven by one thread. A read that waits for stdin holds up the destructor for a tenth of a second at most.
class RequestIntake {
 public:
  RequestIntake(std::unique_ptr<LineReader> reader, std::unique_ptr<RequestParser> parser,
                std::shared_ptr<const ModelContext> model, std::shared_ptr<const Clock> clock,
                const IntakeOptions& options);
  ~RequestIntake();
  RequestIntake(const RequestIntake&) = delete;
  RequestIntake& operator=(const RequestIntake&) = delete;

  // The next line's item, waiting up to timeout_ms. nullopt: none yet, or the end (see at_end()).
  std::optional<IntakeItem> next(double timeout_ms);
  // Waits up to timeout_ms until next() has an item; false: none yet, or the end.
  bool wait_for_item(double timeout_ms);
  size_t num_ready() const;  // items that next() gives at once
  // No item will come any more.
  bool at_end() const;
  // After at_end(): why reading stopped; ok at the end of all inputs. kConflict: a line that was answered before is not
  // what it was.
  Status status() const;
  // Reads no further; items already in the window are dropped.
  void stop();

  std::optional<int64_t> total_bytes() const;  // of all inputs, as stored; nullopt where one is no file

 private:
  struct State;
  const std::unique_ptr<State> state_;
  std::optional<IntakeItem> peeked_;
  std::thread thread_;
};

}  // namespace llmb
