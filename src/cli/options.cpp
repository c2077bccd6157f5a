#include "cli/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "base/durable_file.h"
#include "base/log.h"
#include "base/stderr_writer.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/flag_texts.h"
#include "cli/metrics_file.h"
#include "cli/shard_environment.h"
#include "cli/version.h"
#include "core/rank_part.h"
#include "job/rank_team.h"
#include "scheduler/policies.h"

namespace llmb {

namespace {

std::string check_combination(const JobOptions& o) {
  if (o.model.model.empty())
    return "--model is required: a model directory, a GGUF file, or a name in the Hugging Face cache";
  if (o.output.path.empty()) return "--output: the name is empty; name a file, or - for stdout";
  if (std::count(o.inputs.begin(), o.inputs.end(), "") > 0) return "the name of an input is empty; use - for stdin";
  if (!o.model.tokenizer_revision.empty() && o.model.tokenizer.empty()) return "--tokenizer-revision needs --tokenizer";
  if (o.request_rate && !(*o.request_rate > 0)) return "--request-rate must be positive";
  const GenerationDefaults& g = o.generation;
  if (g.best_of && *g.best_of < g.n.value_or(1)) return "--best-of is smaller than --n";
  if (g.form && g.ignore_eos) return "--ignore-eos cannot be combined with a form of the answers, which ends them";
  if (g.min_tokens && g.max_tokens && *g.min_tokens > *g.max_tokens) return "--min-tokens is larger than --max-tokens";
  if (!o.output.retry_errors.empty() && o.output.path == "-")
    return "--retry-errors needs an output file (-o FILE) that holds the errors";
  if (std::count(o.inputs.begin(), o.inputs.end(), "-") > 1) return "stdin ('-') can be read only once";
  if (!o.data.prompt_template.empty() && !o.data.prompt_field.empty())
    return "--prompt-field and --template cannot be combined";
  const bool embeds = g.task == Task::kEmbed, has_rows = o.output.format == OutputFormat::kNpy;
  if (has_rows && !embeds) return "--output-format npy needs --task embed, whose vectors are the rows";
  if (has_rows && o.output.path == "-")
    return "--output-format npy needs a file (-o FILE), whose beginning says how many rows there are";
  if (g.dimensions && !embeds) return "--dimensions needs --task embed";
  if (!g.judge_words.empty() && g.task != Task::kClassify) return "--classifier-from-token needs --task classify";
  const auto is_data = [&](const std::string& input) {
    return o.data.format.value_or(input_format_of(input)) != InputFormat::kJsonLines;
  };
  if (!o.speculation.corpus.empty() && !o.speculation.lookup)
    return "--speculative-corpus needs --speculative lookup, which looks into it";
  if (o.num_workers > 0 && o.device.starts_with("cuda:"))
    return "--workers takes a GPU each, from the first on; say which with CUDA_VISIBLE_DEVICES, and --device cuda";
  const bool must_swap = o.scheduler.preemption == PreemptionMode::kSwap;
  if (must_swap && !o.scheduler.enable_prefix_caching)
    return "--preemption swap needs the prefix cache, which finds what was moved; leave out --no-enable-prefix-caching";
  if (must_swap && o.load.swap_space_gib == 0) return "--preemption swap needs some --swap-space";
  if (o.data.system && o.data.prompt_template.empty() && o.data.prompt_field.empty() &&
      std::none_of(o.inputs.begin(), o.inputs.end(), is_data))
    return "--system needs --template or --prompt-field, which make prompts from fields of a line";
  return "";
}

constexpr char kRankFlags[] =
    "--tensor-parallel-size, --pipeline-parallel-size, --prefill-context-parallel-size or --decode-context-parallel-size";
bool has_ranks(const JobOptions& o) { return rank_grid(o).num_ranks() > 1; }

std::string check_divided_kv(const JobOptions& o) {
  if (o.decode_context_parallel_size == 1) return "";
  const std::string name = "--decode-context-parallel-size ";
  if (o.prefill_context_parallel_size > 1 && o.prefill_context_parallel_size != o.decode_context_parallel_size)
    return name + "divides keys and values among the processes of --prefill-context-parallel-size; give one of the two";
  if (o.asked.block_size)
    return name + "has blocks of " + std::to_string(kSliceTokens) + " tokens for each process; leave out --block-size";
  return "";
}

// Prompts go from worker to worker by way of the pool that swapped blocks have.
std::string check_apart(const JobOptions& o) {
  if (o.num_prefill_workers == 0 && o.num_decode_workers == 0) return "";
  const std::string name = "--prefill-workers and --decode-workers ";
  if (o.num_workers > 0) return name + "cannot be combined with --workers, which computes whole rows; leave it out";
  if (!o.scheduler.enable_prefix_caching)
    return name + "need the prefix cache, which finds what was computed; leave out --no-enable-prefix-caching";
  if (o.scheduler.preemption == PreemptionMode::kRecompute || o.load.swap_space_gib == 0)
    return name + "need some --swap-space, where prompts arrive, and --preemption auto or swap";
  return "";
}

std::string check_dbo(const Options& options) {
  if (!options.enable_dbo || !has_ranks(options.job)) return "";
  return std::string("--enable-dbo cannot be combined with ") + kRankFlags + ", whose steps are in one part; leave it out";
}

std::string check_autotune(const Options& options) {
  if (!options.autotune) return "";
  if (options.dry_run) return "--autotune and --dry-run cannot be combined";
  if (options.job.num_workers > 0) return "--autotune cannot be combined with --workers; tune a run without them";
  if (has_ranks(options.job))
    return std::string("--autotune cannot be combined with ") + kRankFlags + "; tune a run without";
  if (options.job.load.cpu.weight_cache_dir.empty())
    return "--autotune needs --weight-cache DIR, where what it finds is kept";
  const std::vector<std::string>& inputs = options.job.inputs;
  if (std::count(inputs.begin(), inputs.end(), "-") > 0) return "--autotune needs files, which it reads several times";
  return "";
}

std::optional<DType> dtype_of(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kF8, DType::kI4})
    if (name == dtype_name(dtype)) return dtype;
  return std::nullopt;  // "auto"
}

Status read_data_texts(const FlagTexts& texts, DataOptions* data) {
  data->format = parse_input_format(texts.input_format);
  data->keeps_all = texts.keep == "all";
  if (!texts.keep.empty() && !data->keeps_all) {
    LLMB_ASSIGN_OR_RETURN(data->kept_fields, parse_names(texts.keep));
  }
  if (texts.prompt_template.empty()) return {};
  LLMB_ASSIGN_OR_RETURN(data->prompt_template, read_template(texts.prompt_template));
  return {};
}

// The values that are still texts.
Status read_texts(const FlagTexts& texts, JobOptions* o) {
  o->model.load_format = texts.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  o->load.dtype = dtype_of(texts.dtype);
  o->load.kv_cache_dtype = dtype_of(texts.kv_cache_dtype);
  o->load.cpu.arithmetic = arithmetic_by_name(texts.arithmetic);
  o->generation.skip_special_tokens = !texts.no_skip_special_tokens;
  if (!texts.slo.empty()) {
    LLMB_ASSIGN_OR_RETURN(o->slo, parse_slo(texts.slo));
  }
  LLMB_RETURN_IF_ERROR(read_data_texts(texts, &o->data));
  if (!texts.shard.empty()) {
    LLMB_ASSIGN_OR_RETURN(o->shard, texts.shard == "auto" ? shard_of_environment(std::getenv) : parse_shard(texts.shard));
    o->shard->by = texts.shard_by;
  }
  LLMB_ASSIGN_OR_RETURN(o->generation.form, parse_form(texts.json_schema, texts.regex, texts.choices, texts.grammar));
  o->model.tool_call_parser = call_format_named(texts.tool_call_parser);
  o->model.reasoning_parser = reasoning_format_named(texts.reasoning_parser);
  LLMB_ASSIGN_OR_RETURN(o->model.adapters, parse_adapters(texts.adapters, texts.lora_modules));
  SpeculationOptions& speculation = o->speculation;
  speculation.is_default = texts.speculative.empty() && texts.speculative_config.empty() && speculation.corpus.empty();
  if (texts.speculative.empty()) speculation.lookup = !speculation.corpus.empty();
  else LLMB_RETURN_IF_ERROR(parse_speculative(texts.speculative, &speculation));
  if (texts.policy == "sjf") o->scheduler.policy = shortest_job_first();
  if (texts.policy == "mlfq") o->scheduler.policy = multi_level_feedback_queue();
  LLMB_RETURN_IF_ERROR(parse_speculative_config(texts.speculative_config, &speculation));
  if (texts.logit_bias.empty()) return {};
  LLMB_ASSIGN_OR_RETURN(o->generation.logit_bias, parse_logit_bias(texts.logit_bias));
  return {};
}

// Where the metrics line goes; "" for nowhere.
std::string metrics_path(const std::string& given, const std::string& output) {
  if (given == "none") return "";
  return given.empty() ? metrics_beside_path(output) : given;
}

// Help and version are output: either all of it is written, or the exit code says that it is not.
int print(const std::string& text) {
  for (std::string_view rest = text; !rest.empty();) {
    const auto count = uninterrupted([&] { return real_file_ops().write(STDOUT_FILENO, rest.data(), rest.size()); });
    if (count < 0 && errno == EPIPE) return kExitReaderGone;
    if (count < 0) {
      log_error("standard output: cannot write: " + std::string(std::strerror(errno)));
      return kExitOutputFailed;
    }
    rest.remove_prefix(static_cast<size_t>(count));
  }
  return kExitOk;
}

// "" where the command reads all options that are given.
std::string check_options_of(const CommandText& command, const CLI::App& app, const JobOptions& o) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_positional()) continue;
    const std::string& name = option->get_lnames().at(0);
    const bool is_read = command.options.empty()
                             ? std::count(command.refused.begin(), command.refused.end(), name) == 0
                             : std::count(command.options.begin(), command.options.end(), name) > 0;
    if (!is_read) return command.name + " does not read --" + name;
  }
  if (std::count(o.inputs.begin(), o.inputs.end(), "-") + std::count(o.inputs.begin(), o.inputs.end(), "") > 0)
    return command.name + " needs files: llm-batch " + command.name + " " + command.synopsis;
  if (command.command == Command::kMerge && o.inputs.size() < 2)
    return "merge needs an output and its shards: llm-batch merge " + command.synopsis;
  return "";
}

// vLLM's --lora-modules takes all modules that stand behind it. CLI11 would take an input file for one, so that the flag
// is put before each here; a file of such a name is the input.
void parse_arguments(int argc, const char* const* argv, CLI::App& app) {
  constexpr const char* kFlag = "--lora-modules";
  const auto is_module = [](const char* arg) {
    const bool looks_like_one = arg[0] == '{' || (arg[0] != '-' && std::strchr(arg, '=') != nullptr);
    return looks_like_one && access(arg, F_OK) != 0;
  };
  std::vector<const char*> args;
  int num_values = 0;  // of the flag that was the last one; 0: another was
  for (int i = 0; i < argc; ++i) {
    if (num_values > 0 && (num_values == 1 || is_module(argv[i]))) {
      if (num_values++ > 1) args.push_back(kFlag);
    } else {
      num_values = std::strcmp(argv[i], kFlag) == 0 ? 1 : 0;
    }
    args.push_back(argv[i]);
  }
  app.parse(static_cast<int>(args.size()), args.data());
}

}  // namespace

ParsedCommandLine parse_command_line(int argc, const char* const* argv) {
  ParsedCommandLine parsed;
  Options& options = parsed.options;
  const CommandText* command = argc > 1 ? command_named(argv[1]) : nullptr;
  if (command != nullptr) options.command = command->command, --argc, ++argv;
  JobOptions& o = options.job;
  const std::unique_ptr<CLI::App> app = make_command_line(options);
  const auto refuse = [&](const std::string& problem) {
    log_error(problem);
    write_stderr("Try 'llm-batch --help'.\n");
    parsed.exit_code = kExitUsage;
    return parsed;
  };
  try {
    parse_arguments(argc, argv, *app);
  } catch (const CLI::Success& e) {  // --help, --version
    std::ostringstream text;
    app->exit(e, text, text);
    parsed.exit_code = print(text.str());
    return parsed;
  } catch (const CLI::ParseError& e) {
    return refuse(e.what());
  }
  if (command != nullptr)
    if (const std::string problem = check_options_of(*command, *app, o); !problem.empty()) return refuse(problem);
  const auto is_given = [&](const char* flag) { return app->get_option(flag)->count() > 0; };
  o.asked = {is_given("--max-num-seqs"), is_given("--max-num-batched-tokens"), is_given("--block-size"),
             is_given("--threads")};
  if (is_given("--verbose")) return refuse("--verbose is for llm-batch --version");
  if (options.sample && options.command != Command::kCompare) return refuse("--sample is for llm-batch compare");
  o.build = kVersion;
  if (options.command == Command::kReport || options.command == Command::kMerge ||
      options.command == Command::kInspect)
    return parsed;
  if (const Status status = read_texts(options.texts, &o); !status.ok()) return refuse(status.message());
  if (const std::string problem = check_apart(o); !problem.empty()) return refuse(problem);
  if (o.num_prefill_workers > 0 || o.num_decode_workers > 0) {  // one of the kind that is not named
    o.num_prefill_workers = std::max(1, o.num_prefill_workers);
    o.num_decode_workers = std::max(1, o.num_decode_workers);
    o.num_workers = o.num_prefill_workers + o.num_decode_workers;
  }
  if (const std::string problem = check_combination(o); !problem.empty()) return refuse(problem);
  if (const std::string problem = check_divided_kv(o); !problem.empty()) return refuse(problem);
  if (o.decode_context_parallel_size > 1) {
    o.load.block_size = kSliceTokens * o.decode_context_parallel_size;
    o.asked.block_size = true;  // none that was tuned
  } else if (o.load.kv_cache_dtype == DType::kI4) {  // whole groups in a block, also of a run that tunes itself
    if (!o.asked.block_size) o.load.block_size = kKvGroup;
    o.asked.block_size = true;
  }
  if (const std::string problem = check_autotune(options); !problem.empty()) return refuse(problem);
  if (const std::string problem = check_dbo(options); !problem.empty()) return refuse(problem);
  if (o.output.retry_errors == "true") o.output.retry_errors = "*";  // the flag alone
  o.output.metrics = metrics_path(o.output.metrics, o.output.path);
  if (o.model.tokenizer.empty()) o.model.tokenizer = o.model.model;
  o.model.name = o.model.model;
  o.measures_machine = options.progress != ProgressKind::kNone && !(options.peak_flops && options.peak_bandwidth);
  return parsed;
}

}  // namespace llmb
