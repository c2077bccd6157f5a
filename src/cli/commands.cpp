#include "cli/commands.h"

namespace llmb {

const std::vector<CommandText>& command_texts() {
  static const std::vector<CommandText> kTexts = {
      {Command::kReport,
       "report",
       "METRICS|OUTPUT… -o report.html",
       "Draw runs as one HTML file: from a metrics file (each line is a run) or an output; several side by side",
       {"output", "report", "price-per-hour"},
       {}},
      {Command::kMerge,
       "merge",
       "OUT SHARD… [--order completion|input]",
       "Make one output of those of all shards; refuses where a row has no record or two, or where shards are of another "
       "input or of other settings",
       {"order", "restart", "metrics"},
       {}},
      {Command::kInspect,
       "inspect",
       "MODEL|ADAPTER…",
       "Say what a model or a LoRA adapter is and what of it will be refused; no weights of a model are read; with -m, "
       "whether the adapter fits that model",
       {"model", "revision"},
       {}},
      {Command::kCompare,
       "compare",
       "-m MODEL prompts.jsonl",
       "Run lines of the input in each batching mode, without and with shared prefixes and planning, and print a table",
       {},
       {"output", "order", "restart", "retry-errors", "max-errors", "error-file", "no-metrics", "dry-run", "autotune", "metrics",
        "output-format",
        "batching", "shard", "shard-by", "done", "workers", "tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size",
        "decode-context-parallel-size", "data-parallel-size", "prefill-workers", "decode-workers", "schedule", "request-rate",
        "enable-prefix-caching", "no-enable-prefix-caching"}}};
  return kTexts;
}

const CommandText* command_named(const std::string& argument) {
  for (const CommandText& text : command_texts())
    if (text.name == argument) return &text;
  return nullptr;
}

std::string command_synopses() {
  std::string lines;
  for (const CommandText& c : command_texts()) lines += "  llm-batch " + c.name + " " + c.synopsis + "\n";
  return lines;
}

}  // namespace llmb
