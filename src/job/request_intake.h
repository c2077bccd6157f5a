// From the bytes of the inputs to requests: reads and parses the lines that no earlier run answered, and tokenises those
// that are to be computed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/completion.h"
#include "core/request.h"
#include "engine/request_preparer.h"
#include "io/input_tally.h"
#include "io/line_reader.h"
#include "io/request_parser.h"
#include "job/completed_lines.h"

namespace llmb {

// One input line on its way to the engine: what it asks for, then a request; or the error record that answers it.
struct IntakeItem {
  std::optional<InputRequest> input;  // until prepare()
  std::shared_ptr<Request> request;   // of prepare()
  std::string packed_input;           // beside it, where the options ask for it
  Completion failure;                 // answers the line where it has neither
  // When the request arrives, as in WorkItem.
  double arrival_ms = 0;
  bool arrival_is_clock_time = false;
  int64_t input_bytes = 0;  // LineReader::bytes_consumed() after this line
};

struct IntakeOptions {
  uint64_t seed = 0;
  std::optional<double> request_rate;         // per second; Poisson arrivals
  const CompletedLines* completed = nullptr;  // lines that an earlier run answered: skipped. Outlives the intake
  bool packs_input = false;  // WorkItem::packed_input
};

// run() belongs to one thread; the rest may be called from any.
class RequestIntake {
 public:
  RequestIntake(std::unique_ptr<LineReader> reader, std::unique_ptr<RequestParser> parser,
                std::shared_ptr<const ModelContext> model, std::shared_ptr<const Clock> clock,
                const IntakeOptions& options);

  // Hands every line to `take`, in order, until it returns false. Why reading ended: ok at the end of all inputs, or
  // after stop() or a false; kConflict: a line that was answered before is not what it was. Throws nothing.
  Status run(const std::function<bool(IntakeItem)>& take);
  // Makes a request of item.input, or the failure that says why not. For run()'s thread. REQUIRES: item->input
  void prepare(IntakeItem* item);
  // Reads no further: run() returns, within a tenth of a second where it waits for stdin.
  void stop();

  std::optional<int64_t> total_bytes() const { return reader_->total_bytes(); }  // of all inputs; nullopt: not known
  // LineReader's. Once run() has returned.
  const InputTally& input_tally() const { return reader_->tally(); }
  // RequestParser's, of the lines that run() has read. Once it has returned.
  std::vector<std::string> fields_never_kept() const { return parser_->fields_never_kept(); }

 private:
  Status read_all(const std::function<bool(IntakeItem)>& take);
  IntakeItem make_item(const InputLine& line);
  void set_arrival(const InputRequest& input, double now_ms, IntakeItem* item);

  const std::unique_ptr<LineReader> reader_;
  const std::unique_ptr<RequestParser> parser_;
  const std::shared_ptr<const ModelContext> model_;
  const std::shared_ptr<const Clock> clock_;
  const IntakeOptions options_;
  double poisson_ms_ = 0;
  uint32_t num_draws_ = 0;
  std::atomic<bool> is_stopped_{false};
};

}  // namespace llmb
