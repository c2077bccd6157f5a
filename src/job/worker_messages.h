// Messages between a job and its workers in other processes, over a socket of the same machine and between the same
// build: a kind, a length and packed values.
//
//   job → worker   kOrder  kStart  kRow…  kNoMore  kInterrupt  kEnd
//   worker → job   kReady  kAnswer…  kBlocks…  kReport…  kFinished or kFailed
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "core/completion.h"
#include "core/prompt_blocks.h"
#include "core/rank_part.h"
#include "core/step_cost.h"
#include "core/types.h"
#include "engine/completion_sink.h"
#include "engine/engine.h"
#include "engine/step_metrics.h"
#include "job/job_ending.h"
#include "speculation/speculator.h"

namespace llmb {

enum class MessageKind : uint8_t {
  kOrder,      // WorkerOrder, first
  kStart,      // WorkerStart: rows follow
  kRow,        // RowMessage
  kNoMore,     // none is left for this worker for now: it need not wait for more to fill a batch
  kInterrupt,  // int32_t: how often the job was asked to end
  kEnd,        // no row follows
  kReady,      // BackendInfo: the model is loaded
  kAnswer,     // AnswerMessage
  kBlocks,     // BlocksMessage, in place of an answer, of a worker that computes prompts
  kReport,     // WorkerReport; several a second, from the start on: a sign of life
  kFinished,   // WorkerReport, last
  kFailed,     // WorkerFailure, last
};

struct Message {
  MessageKind kind = MessageKind::kReport;
  std::string payload;
};

// A worker's part of a row: all of it; the whole blocks of its prompt, which it gives to the job; or what lies behind
// them.
enum class WorkerRole : uint8_t { kWhole, kPrefill, kDecode };

// The job's choices, which a worker does not make anew.
struct WorkerOrder {
  WorkerRole role = WorkerRole::kWhole;
  int32_t count = 1;      // workers on the machine
  std::string device;     // DeviceChoice::identity
  std::string inventory;  // of the model's files, packed: they are the same ones
  std::optional<DType> dtype;
  std::optional<Arithmetic> arithmetic;
  int32_t max_num_seqs = 0, max_num_batched_tokens = 0, block_size = 0, num_threads = 0;
  int64_t kv_cache_bytes = 0;  // of this worker
  double swap_space_gib = 0;   // likewise
  double watchdog_ms = 0;      // of a step; 0: none
  std::vector<std::string> merged_adapters;
  StageRows stage_rows;
};

struct WorkerStart {
  StepCost::Curve step_cost;
  bool measures_limits = false;  // at the end
};

struct RowMessage {
  int64_t ordinal = 0;
  double arrival_ms = 0;     // on the machine's monotonic clock
  std::string packed_input;  // packed_request.h
  std::string packed_blocks = {};  // of a worker that computed the prompt: PromptBlocks; "": none
};

// The worker could not compute the prompt where there are none.
struct BlocksMessage {
  int64_t ordinal = 0;
  std::string packed_blocks;  // their times on the machine's monotonic clock
};

// The parts of a FinishedItem that are not the request's.
struct AnswerMessage {
  int64_t ordinal = 0;
  std::optional<RequestError> error;
  std::string answer;  // packed_answer.h, where there is no error
  RequestLatency latency;
  std::vector<float> itl_ms;
};

struct WorkerReport {
  double start_ms = 0;  // of the worker's run, on the machine's monotonic clock
  EngineProgress progress;
  StepMetrics steps;
  SpeculationMetrics speculation;
  StepCost::Curve step_cost;  // with kFinished only
  MachineLimits limits;       // likewise
  int64_t num_left = 0;
};

struct WorkerFailure {
  JobEnd end = JobEnd::kBug;  // of a job whose only worker it is
  std::string message;
  bool hangs = false;  // in a call of its device
};

// Milliseconds that all processes of the machine agree on.
double monotonic_ms();

template <typename T>
std::string pack_message(const T& value);
// REQUIRES: bytes of pack_message<T>()
template <typename T>
T unpack_message(std::string_view bytes);

AnswerMessage answer_message(const FinishedItem& item);
// The answer to `request`, which the worker made an equal of.
FinishedItem finished_item(AnswerMessage message, const Request& request);

// Puts messages together from the bytes of a stream.
class MessageBuffer {
 public:
  void add(std::string_view bytes) { bytes_ += bytes; }
  std::optional<Message> next();  // nullopt: not whole yet

 private:
  std::string bytes_;
  size_t begin_ = 0;
};

std::string frame(MessageKind kind, std::string_view payload);

}  // namespace llmb
