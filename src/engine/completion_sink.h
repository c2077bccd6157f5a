// Where an engine hands its completions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/completion.h"
#include "core/prompt_blocks.h"

namespace llmb {

struct FinishedItem {
  int64_t ordinal = 0;  // of the WorkItem
  Completion completion;
  std::vector<float> itl_ms;  // between one token and the next, for the run's distribution
  std::shared_ptr<const PromptBlocks> blocks = nullptr;  // where the engine gives them (EngineOptions); null: none
};

// The engine's thread calls all of it.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;

  // Blocks while the sink is far behind. Does nothing once the sink is closed.
  virtual void put(FinishedItem item) = 0;
  // True: nothing more is wanted, whoever closed it knows why. The engine gives up what it has and returns.
  virtual bool is_closed() const = 0;
};

}  // namespace llmb
