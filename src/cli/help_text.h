// The text of --help before and behind the table of options.
#pragma once

namespace llmb {

inline constexpr const char* kDescription =
    "llm-batch runs every prompt of a JSONL file through a language model and writes one JSON line for each.\n\n"
    "  llm-batch -m MODEL_DIR prompts.jsonl -o out.jsonl\n"
    "  zcat *.gz | llm-batch -m MODEL_DIR | jq -r .text\n";

inline constexpr const char* kFooter =
    "\nInput lines: {\"prompt\": …}, {\"messages\": […]}, {\"prompt_token_ids\": […]} or OpenAI batch lines. Fields\n"
    "of a line override the flags, the flags override the model's generation_config.json.\n"
    "Exit codes: 0 all lines ok, 1 bug, 2 usage, 3 some lines are error records, 4 model refused, 5 input\n"
    "unreadable, 6 output failed, 7 the output cannot be continued, 8 another run holds the output, 9 device fault\n"
    "or stall, 10 out of memory, 11 too many errors, 128+n signal, 141 stdout was closed. Running the same command\n"
    "again continues an interrupted job.";

}  // namespace llmb
