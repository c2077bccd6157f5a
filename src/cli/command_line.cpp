#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <string>

#include "backend/cpu/processor.h"
#include "cli/adapter_options.h"
#include "cli/answer_options.h"
#include "cli/commands.h"
#include "cli/help_text.h"
#include "cli/option_values.h"
#include "cli/parts_options.h"
#include "cli/shard_options.h"
#include "cli/version.h"

namespace llmb {

namespace {

void add_model_options(CLI::App& app, Options& o) {
  app.add_option(
         "-m,--model", o.job.model.model,
         "Model directory in Hugging Face layout, GGUF file, or name of a model in the local Hugging Face cache")
      ->group("Model")
      ->option_text("DIR|FILE.gguf|NAME REQUIRED");
  app.add_option("--tokenizer", o.job.model.tokenizer, "Take the tokenizer from another model")
      ->group("Model")
      ->option_text("DIR|FILE.gguf|NAME");
  app.add_option("--revision", o.job.model.revision, "Branch, tag or commit of a model in the cache")
      ->group("Model")
      ->option_text("REVISION [main]");
  app.add_option("--tokenizer-revision", o.job.model.tokenizer_revision,
                 "Branch, tag or commit of a --tokenizer in the cache")
      ->group("Model")
      ->option_text("REVISION [main]");
  app.add_option("--chat-template", o.job.model.chat_template, "Jinja file used instead of the model's chat template")
      ->group("Model")
      ->option_text("FILE");
  app.add_option("--load-format", o.texts.load_format,
                 "auto: the model's weights; dummy: random weights, only config.json is read")
      ->check(one_of({"auto", "dummy"}))
      ->group("Model")
      ->option_text("auto|dummy [auto]");
  app.add_option("--device", o.job.device,
                 "Where to compute; auto: a GPU where there is one; ledger: a test double that needs no weights")
      ->check(device_name())
      ->group("Model")
      ->option_text("auto|cpu|cuda[:N]|ledger [auto]");
  app.add_option(
         "--dtype", o.texts.dtype,
         "Dtype of activations; auto: the weights' own on a GPU; on the CPU float32, or bfloat16 where that is faster")
      ->check(one_of({"auto", "float32", "bfloat16", "float16"}))
      ->group("Model")
      ->option_text("auto|float32|bfloat16|float16 [auto]");
  app.add_option(
         "--arithmetic", o.texts.arithmetic,
         "CPU arithmetic; each kind gives different bytes; auto: that of the output being continued, else the fastest")
      ->check(one_of({"auto", "unfused", "fma", "bf16-dot", "bf16-amx", "bf16-mmla"}))
      ->group("Model")
      ->option_text("auto|unfused|fma|bf16-dot|bf16-amx|bf16-mmla [auto]");
  app.add_option("--quantization", o.job.load.cpu.quantization,
                 "Quantise weights while they load: int8 and w4a8 (four bits) round activations to int8, too, int4 does not; fp8 "
                 "(GPU): e4m3")
      ->transform(one_of<Quantization>(
          {{"none", Quantization::kNone}, {"int8", Quantization::kInt8}, {"int4", Quantization::kInt4},
           {"w4a8", Quantization::kW4A8}, {"fp8", Quantization::kFp8}}))
      ->group("Model")
      ->option_text("none|int8|int4|w4a8|fp8 [none]");
  app.add_option("--gguf-activations", o.job.load.cpu.rounds_block_activations,
                 "Over GGUF's blocks of few bits (CPU): float32, or int8 by blocks, which is faster and gives other bytes")
      ->transform(one_of<bool>({{"float32", false}, {"int8", true}}))
      ->group("Model")
      ->option_text("float32|int8 [float32]");
  app.add_option("--weight-cache", o.job.load.cpu.weight_cache_dir,
                 "Keep packed weights in DIR (CPU); later runs map them and share the memory")
      ->group("Model")
      ->option_text("DIR");
  app.add_option("--max-model-len", o.job.max_model_len,
                 "Longest sequence (prompt plus output); default: the model's context")
      ->transform(size_validator(1 << 24))
      ->group("Model")
      ->option_text("TOKENS");
}

void add_io_options(CLI::App& app, Options& o) {
  const std::string group = "Input and output";
  app.add_option("inputs", o.job.inputs, "Input files, in order; plain, .gz or .zst; '-' or none: stdin")
      ->option_text("[FILE…]");
  app.add_option("--input-format", o.texts.input_format,
                 "auto: by each file's name (.csv, .tsv, .txt; else JSON lines); text: one prompt per line")
      ->check(one_of({"auto", "jsonl", "text", "csv", "tsv"}))
      ->group(group)
      ->option_text("auto|jsonl|text|csv|tsv [auto]");
  app.add_option("--prompt-field", o.job.data.prompt_field, "Field or column that holds the prompt")
      ->group(group)
      ->option_text("NAME");
  app.add_option("--template", o.texts.prompt_template,
                 "Jinja template that makes the prompt from a line's fields: 'Translate: {{ text }}', or a file's name")
      ->group(group)
      ->option_text("TEMPLATE");
  app.add_option("--system", o.job.data.system,
                 "Send each such prompt as a chat message after this system message ('': no system message)")
      ->group(group)
      ->option_text("TEXT");
  app.add_option("--keep", o.texts.keep,
                 "Copy fields of the line to its record, in an object \"input\": all, or names separated by commas")
      ->group(group)
      ->option_text("FIELDS");
  app.add_option("-o,--output", o.job.output.path,
                 "Result file; written as FILE.partial and renamed at the end; '-': stdout")
      ->group(group)
      ->option_text("FILE [-]");
  app.add_option("--output-format", o.job.output.format,
                 "jsonl: a line of JSON for each input line; npy, with --task embed: a .npy file of fp32 rows, and beside "
                 "it FILE.index.jsonl, which says for each line which rows are its own")
      ->transform(one_of<OutputFormat>({{"jsonl", OutputFormat::kJsonLines}, {"npy", OutputFormat::kNpy}}))
      ->group(group)
      ->option_text("jsonl|npy [jsonl]");
  app.add_option("--order", o.job.output.order,
                 "completion: write each result as soon as it is finished; input: in input order")
      ->transform(one_of<OutputOrder>({{"completion", OutputOrder::kCompletion}, {"input", OutputOrder::kInput}}))
      ->group(group)
      ->option_text("completion|input [completion]");
  app.add_flag("--restart", o.job.output.restart,
               "Discard what earlier runs left under the output's name and start over")
      ->group(group);
  // A flag with a value: as an option it would take the next input file for its codes.
  app.add_flag("--retry-errors", o.job.output.retry_errors,
               "Rerun lines whose records are errors: all of them, or those with these codes")
      ->group(group)
      ->option_text("[=CODE,…]");
  app.add_option("--max-errors", o.job.output.max_errors,
                 "Stop with exit code 11 when the output holds more than N error records")
      ->check(integer_in(0, uint64_t{1} << 53))
      ->group(group)
      ->option_text("N");
  app.add_option("--error-file", o.job.output.error_file, "Write a copy of every error record to FILE")
      ->group(group)
      ->option_text("FILE");
  app.add_option("--grace", o.job.grace_s, "How long running requests may take to finish after the first signal")
      ->check(number_in(0, 1e6))
      ->group(group)
      ->option_text("SECONDS [30]");
  app.add_option("--watchdog-timeout", o.job.watchdog_timeout_s,
                 "Exit with code 9 if one step takes longer (a hung device); 0: never")
      ->check(number_in(0, 1e6))
      ->group(group)
      ->option_text("SECONDS [300; on a CPU 3600]");
  app.add_flag("--no-metrics", o.job.output.no_metrics, "Leave the metrics field out of the results")->group(group);
  app.add_flag("--dry-run", o.dry_run, "Check every line, count tokens, forecast the run; reads no weights, writes no results")
      ->group(group);
  app.add_flag("--autotune", o.autotune,
               "Try a minute of the input with other max-num-seqs, max-num-batched-tokens, block size and threads, print the "
               "curve, keep the best beside the packed weights for later runs; writes no results")
      ->group(group);
}

void add_batching_options(CLI::App& app, Options& o) {
  const std::string group = "Batching and memory";
  app.add_option("--batching", o.job.scheduler.batching, "How requests share steps")
      ->transform(one_of<BatchingMode>({{"none", BatchingMode::kNone},
                                        {"static", BatchingMode::kStatic},
                                        {"dynamic", BatchingMode::kDynamic},
                                        {"continuous", BatchingMode::kContinuous}}))
      ->group(group)
      ->option_text("none|static|dynamic|continuous [continuous]");
  app.add_option("--max-num-seqs", o.job.scheduler.max_num_seqs, "Sequences that run at the same time")
      ->check(integer_in(1, 65536))
      ->group(group)
      ->option_text("N [128]");
  app.add_option("--max-num-batched-tokens", o.job.scheduler.max_num_batched_tokens,
                 "New tokens in one step; longer prompts are chunked")
      ->transform(size_validator(1 << 20))
      ->group(group)
      ->option_text("N [1024]");
  app.add_option("--batch-window-ms", o.job.scheduler.batch_window_ms,
                 "Dynamic batching: longest wait for a batch to fill after the first arrival")
      ->check(number_in(0, 1e9))
      ->group(group)
      ->option_text("MS [50]");
  app.add_option("--schedule", o.job.schedule,
                 "Order in which rows are computed; auto: shared prefixes together and long answers first; file: as read")
      ->transform(one_of<Schedule>({{"auto", Schedule::kAuto},
                                    {"file", Schedule::kFile},
                                    {"prefix", Schedule::kPrefix},
                                    {"longest-first", Schedule::kLongestFirst}}))
      ->group(group)
      ->option_text("auto|file|prefix|longest-first [auto]");
  app.add_option("--plan-memory", o.job.plan_memory_bytes, "Memory for rows that are read ahead to be put in order")
      ->transform(size_validator(int64_t{1} << 40))
      ->group(group)
      ->option_text("SIZE [512M]");
  app.add_option("--request-rate", o.job.request_rate, "Simulate Poisson arrivals at this rate per second")
      ->check(number_in(0, 1e9, true))
      ->group(group)
      ->option_text("R");
  app.add_option("--policy", o.texts.policy, "Who goes first of rows that arrive over time; sjf, mlfq: short work")
      ->check(one_of({"fcfs", "sjf", "mlfq"}))->group(group)->option_text("fcfs|sjf|mlfq [fcfs]");
  app.add_option("--block-size", o.job.load.block_size, "Tokens per KV block")
      ->check(one_of({"8", "16", "32", "64", "128"}))
      ->group(group)
      ->option_text("8|16|32|64|128 [16; 32 with --kv-cache-dtype int4]");
  app.add_flag("--enable-prefix-caching", o.job.scheduler.enable_prefix_caching,
               "Compute a prefix that several prompts share only once (default)")
      ->group(group);
  app.add_flag_callback(
         "--no-enable-prefix-caching", [&o] { o.job.scheduler.enable_prefix_caching = false; },
         "Compute each prompt on its own")
      ->group(group);
  app.add_option(
         "--kv-cache-dtype", o.texts.kv_cache_dtype,
         "Dtype of the KV cache; auto: on the CPU bfloat16, or float32 for a float32 model; on a GPU as --dtype")
      ->check(one_of({"auto", "float32", "bfloat16", "float16", "int8", "fp8", "int4"}))
      ->group(group)
      ->option_text("auto|float32|bfloat16|float16|int8|fp8|int4 [auto]");
  app.add_option("--kv-cache-memory-bytes", o.job.load.kv_cache_bytes,
                 "Size of the KV pool, e.g. 2G; default: what max-num-seqs sequences need, if memory allows")
      ->transform(size_validator(int64_t{1} << 50))
      ->group(group)
      ->option_text("SIZE");
  app.add_option("--num-gpu-blocks-override", o.job.load.num_blocks_override,
                 "Exactly this many KV blocks, on any device")
      ->check(integer_in(1, kIntMax))
      ->group(group)
      ->option_text("N");
  app.add_option("--preemption", o.job.scheduler.preemption,
                 "Where blocks lack: compute a preempted request again, or move its blocks to the host's memory and back; "
                 "auto: whatever is predicted to take less time")
      ->transform(one_of<PreemptionMode>({{"auto", PreemptionMode::kAuto},
                                          {"recompute", PreemptionMode::kRecompute},
                                          {"swap", PreemptionMode::kSwap}}))
      ->group(group)
      ->option_text("auto|recompute|swap [auto]");
  app.add_option("--swap-space", o.job.load.swap_space_gib, "Host memory for blocks of preempted requests, at most")
      ->check(number_in(0, 1 << 20))
      ->group(group)
      ->option_text("GiB [4]");
  app.add_option("--gpu-memory-utilization", o.job.load.cuda.gpu_memory_utilization,
                 "Share of the GPU's memory that weights, activations and KV pool may take")
      ->check(number_in(0, 1, true))
      ->group(group)
      ->option_text("SHARE [0.92]");
  app.add_flag("--deterministic", o.job.load.cuda.deterministic,
               "GPU: make results independent of what else runs in the step, at some cost; on the CPU they always are")
      ->group(group);
  app.add_flag("--enable-dbo", o.enable_dbo,
               "Run a GPU's steps in two halves, one's attention beside the other's products, where measured steps gain by it "
               "(dual batch overlap)")
      ->group(group);
  app.add_option("--threads", o.job.load.num_threads, "CPU threads, of all workers together; default: all usable cores")
      ->check(integer_in(1, 1024))
      ->group(group)
      ->option_text("N");
  app.add_option("--workers", o.job.num_workers,
                 "Compute in W processes, each with a GPU or its part of the cores; one that dies costs no row. "
                 "--max-num-seqs counts for each, memory is divided; --weight-cache lets them share the weights")
      ->check(integer_in(1, 256))
      ->group(group)
      ->option_text("W");
  app.add_option("--tensor-parallel-size", o.job.tensor_parallel_size,
                 "Divide each layer of the model among N processes (ranks) with a part of the weights and the cache, and "
                 "a GPU or a part of the cores each; part of what answers depend on, as sums over ranks round otherwise")
      ->check(integer_in(1, 64))
      ->group(group)
      ->option_text("N [1]");
  app.add_option("--pipeline-parallel-size", o.job.pipeline_parallel_size,
                 "Divide the model by layers into N stages, each a process, or as many as --tensor-parallel-size says; "
                 "changes no byte")
      ->check(integer_in(1, 64))
      ->group(group)
      ->option_text("N [1]");
  app.add_option("--prefill-context-parallel-size", o.job.prefill_context_parallel_size,
                 "Divide each step's rows, long prompts' above all, among N processes or GPUs with all keys and values, or N "
                 "for each of --tensor-parallel-size times --pipeline-parallel-size; changes no byte")
      ->check(integer_in(1, 64))
      ->group(group)
      ->option_text("N [1]");
  app.add_option("--decode-context-parallel-size", o.job.decode_context_parallel_size,
                 "The same, and each of the N keeps the keys and values of its part of the positions only, 256 in turn, so N "
                 "hold a context that one cannot; blocks have 256 N tokens; changes no byte. As "
                 "--prefill-context-parallel-size N it takes N processes, beside those of --tensor-parallel-size, not of them")
      ->check(integer_in(1, 16))
      ->group(group)
      ->option_text("N [1]");
  app.add_option("--prefill-workers", o.job.num_prefill_workers,
                 "Compute prompts in P workers, and answers behind them in those of --decode-workers (else 1): long prompts "
                 "hold up no answer; changes no byte (on GPUs, one for each worker, with --deterministic)")
      ->check(integer_in(1, 128))
      ->group(group)
      ->option_text("P");
  app.add_option("--decode-workers", o.job.num_decode_workers,
                 "Compute answers in D workers, prompts in those of --prefill-workers (else 1)")
      ->check(integer_in(1, 128))
      ->group(group)
      ->option_text("D");
  app.add_option("--data-parallel-size", o.job.num_workers, "vLLM's name of --workers")
      ->check(integer_in(1, 256))
      ->group(group)
      ->option_text("W");
}

void add_speculation_options(CLI::App& app, Options& o) {
  const std::string group = "Speculation (answers are the same with and without it)";
  app.add_option("--speculative", o.texts.speculative,
                 "Guess tokens, verify several in a step, where that is faster; lookup (auto, on a GPU only with "
                 "--deterministic unless asked for): as prompts and answers went on before; draft:MODEL: by a smaller model "
                 "with the same tokenizer; mtp: by the layer for further tokens that Qwen 3.5, DeepSeek and GLM come with; "
                 "eagle:DIR: by a layer of EAGLE's for the model; medusa:DIR: by Medusa heads; layers:N: by the model's first N layers; lookahead: by its own guesses for later "
                 "places; tree: several continuations at once")
      ->group(group)
      ->option_text("KIND[,KIND] [auto]");
  app.add_option("--num-speculative-tokens", o.job.speculation.max_tokens, "Guessed tokens of a sequence in a step, at most")
      ->check(integer_in(1, 16))
      ->group(group)
      ->option_text("N [16]");
  app.add_option("--speculative-corpus", o.job.speculation.corpus,
                 "Look up in this file, too: the texts of a .jsonl file's records, or plain text")
      ->group(group)
      ->option_text("FILE");
  app.add_option("--speculative-config", o.texts.speculative_config,
                 "As vLLM's: {\"method\": \"ngram\", \"num_speculative_tokens\": 4}")
      ->group(group)
      ->option_text("JSON");
}

void add_report_options(CLI::App& app, Options& o) {
  const std::string group = "Report";
  app.add_option("--progress", o.progress,
                 "auto: a bar on a terminal, else a line every 10 s; none: only errors and the final JSON line")
      ->transform(one_of<ProgressKind>({{"auto", ProgressKind::kAuto},
                                        {"bar", ProgressKind::kBar},
                                        {"plain", ProgressKind::kPlain},
                                        {"none", ProgressKind::kNone}}))
      ->group(group)
      ->option_text("auto|bar|plain|none [auto]");
  app.add_option("--metrics", o.job.output.metrics,
                 "Append the summary to FILE as one JSON line; default: OUTPUT with .metrics.jsonl; 'none': nowhere")
      ->group(group)
      ->option_text("FILE");
  app.add_option("--slo", o.texts.slo, "Latency targets for goodput, e.g. ttft=200ms,tpot=50ms,e2el=2s")
      ->group(group)
      ->option_text("TARGETS");
  app.add_option("--price-per-hour", o.price_per_hour, "Price of the machine, in any currency, for the cost in forecasts and reports")
      ->check(number_in(0, 1e9))->group(group)->option_text("PRICE");
  app.add_option("--report", o.report, "Draw the run as one HTML file")->group(group)->option_text("FILE.html");
  app.add_option("--sample", o.sample, "compare: run the first N lines; default: as many as take about a minute")
      ->check(integer_in(1, kIntMax))->group(group)->option_text("N");
  app.add_option("--peak-flops", o.peak_flops, "Machine limit for MFU, FLOP/s; default: measured")
      ->check(number_in(0, 1e24, true))->group(group)->option_text("F");
  app.add_option("--peak-bandwidth", o.peak_bandwidth, "Machine limit for MBU, bytes/s; default: measured")
      ->check(number_in(0, 1e24, true))->group(group)->option_text("B");
}

// For tests and support: not in --help. The target holds from here on, so that --version tells of it.
void add_support_options(CLI::App& app) {
  app.add_option_function<std::string>(
         "--cpu-target",
         [](const std::string& name) {
           if (const Status status = force_cpu_target(name); !status.ok())
             throw CLI::ValidationError("--cpu-target", status.message());
         },
         "Run the CPU's kernels on this SIMD target instead of the best one")
      ->group("");
  app.add_flag("--verbose")->description("With --version: what the program uses of this processor")->group("");
}

std::string version_text(const CLI::App& app) {
  const bool is_verbose = app.get_option("--verbose")->count() > 0;
  return std::string("llm-batch ") + kVersion + (is_verbose ? "\n" + describe_processor() : "");
}

}  // namespace

std::unique_ptr<CLI::App> make_command_line(Options& o) {
  auto app = std::make_unique<CLI::App>(kDescription + command_synopses(), "llm-batch");
  app->footer(kFooter);
  add_support_options(*app);  // before --version, which tells of what they set
  app->set_version_flag("--version", [&app = *app] { return version_text(app); });
  app->get_formatter()->column_width(44);
  add_io_options(*app, o);
  add_shard_options(*app, o);
  add_model_options(*app, o);
  add_batching_options(*app, o);
  add_speculation_options(*app, o);
  add_sampling_options(*app, o);
  add_form_options(*app, o);
  add_parts_options(*app, o);
  add_adapter_options(*app, o);
  add_report_options(*app, o);
  return app;
}

}  // namespace llmb
