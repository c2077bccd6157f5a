// The options of a job, as plain values.
//
// Messages of a job name an option by its member here, between backticks: `restart`. Whoever shows them puts its own
// name for the option in that place (a command line: the flag).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/adapter_names.h"
#include "core/rank_part.h"
#include "io/input_format.h"
#include "job/generation_defaults.h"
#include "job/request_metrics.h"
#include "job/result_stream.h"
#include "job/shard.h"
#include "planner/row_order.h"
#include "scheduler/scheduler_config.h"

namespace llmb {

// Where a model and its tokenizer come from.
struct ModelSource {
  std::string model;      // a directory or a GGUF file, or a name in the local cache; find_model_dirs() resolves names
  std::string tokenizer;  // likewise; == model: the model's own
  std::string revision, tokenizer_revision;  // of names in the cache; "": main
  std::vector<AdapterFolder> adapters;       // that lines may name
  std::string adapter_dir;                   // the folders in it are adapters, too; "": none
  std::string default_adapter;               // of lines that name none; "": the base model
  std::vector<std::string> served_names;     // of the base model, beside `name`
  std::string chat_template;                 // a file; "": the model's own
  std::optional<ToolCallFormat> tool_call_parser;   // none: by the chat template's text
  std::optional<ReasoningFormat> reasoning_parser;  // likewise
  LoadFormat load_format = LoadFormat::kAuto;
  std::string name;    // `model` as it was given
  std::string commit;  // where it came from the cache
};

enum class OutputFormat { kJsonLines, kNpy };

struct OutputOptions {
  std::string path = "-";  // "-": stdout
  OutputFormat format = OutputFormat::kJsonLines;  // kNpy: vectors become rows of a .npy file (job/row_files.h)
  int64_t row_width = 0;              // of a .npy file without rows
  OutputOrder order = OutputOrder::kCompletion;
  bool no_metrics = false;            // leaves the metrics out of the records
  bool restart = false;               // discards what earlier runs left
  std::string retry_errors;           // error codes, separated by commas; "*": all; "": none
  std::optional<int64_t> max_errors;  // error records that the output may hold; one more ends the job
  std::string error_file;             // "": none
  std::string metrics;  // where the caller writes a summary, which must be no other of the job's files; ""
};

// How lines of data become prompts (io/data_line.h).
struct DataOptions {
  std::optional<InputFormat> format;  // of all inputs; none: by each one's name
  std::string prompt_template;        // Jinja over the line's fields; "": none
  std::string prompt_field;           // "": none
  std::optional<std::string> system;  // set: prompts are conversations
  bool keeps_all = false;             // records repeat all fields of their lines
  std::vector<std::string> kept_fields;
};

// Guessed tokens, which change no byte of an answer where a row's bits do not depend on its step.
struct SpeculationOptions {
  bool is_default = false;  // nothing is asked for: lookup where no byte depends on it (guesses_by_default)
  bool lookup = false;      // in prompts, outputs, answers and the corpus
  bool lookahead = false;   // by the model itself, beside its steps
  int32_t num_layers = 0;   // of the model, that draft; 0: none
  bool mtp = false;         // by the layer behind the model's last one (MtpConfig)
  bool trees = false;       // several continuations at once; else chains
  std::string draft_model;  // a directory or a name, as of the model; "": none
  std::string medusa;       // a directory of heads, or a name; "": none
  std::string eagle;        // a directory of a layer (model/eagle_layer.h), or a name; "": none
  std::string corpus;       // a file of texts that answers may resemble; "": none
  int32_t max_tokens = 16;  // drafted for a sequence in a step

  bool any() const {
    return lookup || lookahead || num_layers > 0 || mtp || !draft_model.empty() || !medusa.empty() || !eagle.empty();
  }
  // Whether several continuations of a sequence may be verified at once.
  bool has_trees() const { return trees || lookahead || !medusa.empty(); }
};

// Whether a row's bits depend on nothing that speculation changes.
inline bool guesses_by_default(DeviceKind device, const LoadOptions& load) {
  return device == DeviceKind::kCpu || (device == DeviceKind::kCuda && load.cuda.deterministic);
}

// Settings that were asked for: no tuned one takes their place (job/tuned_settings.h).
struct AskedSettings {
  bool max_num_seqs = false, max_num_batched_tokens = false, block_size = false, num_threads = false;
};

struct JobOptions {
  std::string build;  // version of the program
  std::vector<std::string> inputs = {"-"};
  DataOptions data;
  std::optional<Shard> shard;     // none: all rows
  std::vector<std::string> done;  // outputs whose rows are left out
  OutputOptions output;
  ModelSource model;
  std::optional<int32_t> max_model_len;  // none: the model's
  GenerationDefaults generation;
  uint64_t seed = 0;
  std::string device = "auto";
  int num_workers = 0;  // processes that compute, each with a GPU or a part of the cores; 0: this one computes
  // The first ones of these compute prompts and the others go on with them; 0 and 0: each computes whole rows.
  int num_prefill_workers = 0, num_decode_workers = 0;  // together num_workers
  int32_t tensor_parallel_size = 1;    // processes that have a part of each layer of one model,
  int32_t pipeline_parallel_size = 1;  // in so many stages of its layers,
  int32_t prefill_context_parallel_size = 1;  // and for each part so many, which share out a step's rows,
  int32_t decode_context_parallel_size = 1;   // as do so many, which divide keys and values as well; or one is 1
  StageRows stage_rows;  // expected of the input: what stages are balanced for
  LoadOptions load = {.swap_space_gib = 4};  // but for the model's files and limits, which follow from the other members
  // But for pool and lengths, which follow from the backend and the model.
  SchedulerConfig scheduler = {
      .max_num_seqs = 128, .max_num_batched_tokens = 1024, .batch_window_ms = 50, .enable_prefix_caching = true,
      .preemption = PreemptionMode::kAuto};
  AskedSettings asked;
  bool is_tuned = false;  // of the settings that were not asked for, some are tuned ones
  SpeculationOptions speculation;
  bool merges_adapters = false;  // into the weights, where that is predicted to cost less (job/merge_choice.h)
  Schedule schedule = Schedule::kAuto;                // the order in which rows are computed
  int64_t plan_memory_bytes = int64_t{512} << 20;     // for rows that are read ahead
  std::optional<double> request_rate;  // simulated arrivals per second
  SloTargets slo;
  double grace_s = 30;                       // for running requests, after the job was asked to end
  std::optional<double> watchdog_timeout_s;  // of one step; 0: none
  bool measures_machine = false;             // at the end, for the summary
};

// Asked while something takes long; false: the job was asked to end.
using KeepGoing = std::function<bool()>;

}  // namespace llmb
