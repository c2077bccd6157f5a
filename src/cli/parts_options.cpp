#include "cli/parts_options.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/option_values.h"
#include "engine/repetition.h"

namespace llmb {

namespace {

// "auto|none|hermes|… [auto]", and a check of the same.
std::string with_bars(const std::vector<std::string_view>& names) {
  std::string text = "auto";
  for (const std::string_view name : names) text.append("|").append(name);
  return text + " [auto]";
}

std::vector<std::string> with_auto(const std::vector<std::string_view>& names) {
  std::vector<std::string> all = {"auto"};
  all.insert(all.end(), names.begin(), names.end());
  return all;
}

}  // namespace

void add_parts_options(CLI::App& app, Options& o) {
  const std::string group = "Parts of OpenAI's chat answers";
  app.add_option("--tool-call-parser", o.texts.tool_call_parser,
                 "How the model writes calls of tools; auto: as its chat template tells")
      ->check(one_of(with_auto(call_format_names())))
      ->group(group)
      ->option_text(with_bars(call_format_names()));
  app.add_option("--reasoning-parser", o.texts.reasoning_parser,
                 "How the model marks what it thinks before it answers; auto: as its chat template tells")
      ->check(one_of(with_auto(reasoning_format_names())))
      ->group(group)
      ->option_text(with_bars(reasoning_format_names()));
  app.add_option("--stop-repetition", o.job.generation.repetition_tokens,
                 "End an answer, with finish_reason repetition, once its last N tokens are a block that repeats four "
                 "times or more")
      ->check(integer_in(kMinRepetitionTokens, kMaxRepetitionTokens))
      ->group("Sampling defaults, for lines without their own")
      ->option_text("N");
}

}  // namespace llmb
