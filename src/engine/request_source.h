// Where an engine takes its requests from: a job that reads files, or whatever else feeds one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/prompt_blocks.h"
#include "core/request.h"

namespace llmb {

// A request on its way to an engine.
struct WorkItem {
  int64_t ordinal = 0;  // the source's name for it, which comes back with the completion
  std::shared_ptr<Request> request;
  // When it arrives: since the start of the run (files, simulated arrivals), or on the clock (stdin).
  double arrival_ms = 0;
  bool arrival_is_clock_time = false;
  std::string packed_input;  // the line that it was made of, where another process is to make the request again; else ""
  std::shared_ptr<const PromptBlocks> blocks = nullptr;  // of the prompt, that were computed elsewhere; null: none
};

// The engine's thread calls all of it.
class RequestSource {
 public:
  virtual ~RequestSource() = default;

  // The next request, waiting up to timeout_ms. nullopt: none yet, or the end (see at_end()).
  virtual std::optional<WorkItem> next(double timeout_ms) = 0;
  // No request will come any more.
  virtual bool at_end() const = 0;
  // The engine takes no more: whatever next() has not given is dropped.
  virtual void stop() = 0;
};

}  // namespace llmb
