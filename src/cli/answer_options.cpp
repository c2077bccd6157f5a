#include "cli/answer_options.h"

#include <CLI/CLI.hpp>
#include <string>

#include "cli/option_values.h"

namespace llmb {

void add_sampling_options(CLI::App& app, Options& o) {
  const std::string group = "Sampling defaults, for lines without their own";
  app.add_option("--max-tokens", o.job.generation.max_tokens,
                 "Maximum number of output tokens; default: max_new_tokens of generation_config.json, else 256 (OpenAI "
                 "lines: 16 for completions, the rest of the context for chat)")
      ->check(integer_in(1, kIntMax))
      ->group(group)
      ->option_text("N");
  app.add_option("--min-tokens", o.job.generation.min_tokens, "Minimum number of output tokens")
      ->check(integer_in(0, kIntMax))
      ->group(group)
      ->option_text("N [0]");
  app.add_option("--temperature", o.job.generation.temperature, "0: greedy")
      ->check(number_in(0, 100))
      ->group(group)
      ->option_text("T [the model's, or 1]");
  app.add_option("--top-p", o.job.generation.top_p, "Nucleus sampling")
      ->check(number_in(0, 1, true))
      ->group(group)
      ->option_text("P [1]");
  app.add_option("--top-k", o.job.generation.top_k, "0 or -1: off")
      ->check(integer_in(-1, kIntMax))
      ->group(group)
      ->option_text("K [0]");
  app.add_option("--min-p", o.job.generation.min_p, "Probability floor relative to the best token")
      ->check(number_in(0, 1))
      ->group(group)
      ->option_text("P [0]");
  app.add_option("--repetition-penalty", o.job.generation.repetition_penalty,
                 "> 1 penalises tokens of prompt and output")
      ->check(number_in(0, 100, true))
      ->group(group)
      ->option_text("X [1]");
  app.add_option("--presence-penalty", o.job.generation.presence_penalty,
                 "Penalises tokens that are already in the output")
      ->check(number_in(-2, 2))
      ->group(group)
      ->option_text("X [0]");
  app.add_option("--frequency-penalty", o.job.generation.frequency_penalty,
                 "Penalises tokens by how often they are in the output")
      ->check(number_in(-2, 2))
      ->group(group)
      ->option_text("X [0]");
  app.add_option("--logit-bias", o.texts.logit_bias, "Added to logits, as JSON: {\"50256\": -100}")
      ->group(group)
      ->option_text("JSON");
  app.add_option("--seed", o.job.seed, "Seed of all randomness")
      ->check(integer_in(0, UINT64_MAX))
      ->group(group)
      ->option_text("N [0]");
  app.add_option("--n", o.job.generation.n, "Answers to each line")
      ->check(integer_in(1, kMaxChoices))
      ->group(group)
      ->option_text("N [1]");
  app.add_option("--best-of", o.job.generation.best_of,
                 "Draw K choices, answer with the n of the best mean log-probability")
      ->check(integer_in(1, kMaxChoices))
      ->group(group)
      ->option_text("K");
  app.add_option("--stop", o.job.generation.stop, "Stop string; may be given several times")
      ->allow_extra_args(false)
      ->group(group)
      ->option_text("TEXT");
  app.add_option("--stop-token-ids", o.job.generation.stop_token_ids, "Stop tokens, separated by commas")
      ->check(integer_in(0, kIntMax))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group)
      ->option_text("ID,…");
  app.add_flag("--ignore-eos", o.job.generation.ignore_eos, "Generate past the end-of-sequence token")->group(group);
  app.add_flag("--include-stop-str-in-output", o.job.generation.include_stop_str_in_output,
               "Keep the stop string or token in the text")
      ->group(group);
  app.add_flag("--no-skip-special-tokens", o.texts.no_skip_special_tokens, "Keep special tokens in the text")
      ->group(group);
  app.add_option("--logprobs", o.job.generation.logprobs, "Log-probabilities of each token and of the N best")
      ->check(integer_in(0, kMaxTopLogprobs))
      ->group(group)
      ->option_text("N");
  app.add_option(
         "--truncate", o.job.generation.truncate,
         "Cut a prompt that fills the context, at its beginning (left) or end (right); default: an error record")
      ->transform(one_of<TruncateSide>({{"left", TruncateSide::kLeft}, {"right", TruncateSide::kRight}}))
      ->group(group)
      ->option_text("left|right");
  app.add_option("--task", o.job.generation.task,
                 "generate: answers; score: how likely each line's prompt is, its perplexity; embed: a vector for each; "
                 "classify: scores of the model's labels, of texts, pairs, or documents for a query")
      ->transform(one_of<Task>({{"generate", Task::kGenerate},
                                {"score", Task::kScore},
                                {"embed", Task::kEmbed},
                                {"classify", Task::kClassify}}))
      ->group(group)
      ->option_text("generate|score|embed|classify [generate]");
  app.add_option("--pooling", o.job.generation.pooling,
                 "With --task embed: take the last token's state, the first one's or the mean of all, normalised, "
                 "whatever the model's files say")
      ->transform(one_of<PoolingKind>(
          {{"last", PoolingKind::kLast}, {"cls", PoolingKind::kFirst}, {"mean", PoolingKind::kMean}}))
      ->group(group)
      ->option_text("last|cls|mean");
  app.add_option("--classifier-from-token", o.job.generation.judge_words,
                 "With --task classify: judge pairs by how much more likely the model's answer is YES than NO "
                 "(Qwen3-Reranker: no,yes), whatever the model's files say")
      ->delimiter(',')
      ->expected(2)
      ->allow_extra_args(false)
      ->group(group)
      ->option_text("NO,YES");
  app.add_option("--dimensions", o.job.generation.dimensions,
                 "With --task embed: the first N values of each vector, for lines without dimensions of their own")
      ->check(integer_in(1, kIntMax))
      ->group(group)
      ->option_text("N [all]");
  app.add_flag("--return-token-ids", o.job.generation.return_token_ids, "Add token_ids to the results")->group(group);
}

void add_form_options(CLI::App& app, Options& o) {
  const auto add = [&](const char* flag, auto& value, const char* what, const char* text) {
    const char* const group = "Form of the answers, for lines that ask for none of their own";
    return app.add_option(flag, value, what)->group(group)->option_text(text);
  };
  add("--json-schema", o.texts.json_schema, "Answers are JSON that satisfies the JSON Schema in FILE", "FILE")
      ->check(non_empty());
  add("--regex", o.texts.regex, "Answers match this regular expression as a whole", "PATTERN")
      ->check(non_empty());
  add("--choice", o.texts.choices, "Answers are one of these texts; may be given several times", "TEXT,…")
      ->delimiter(',')->allow_extra_args(false);
  add("--grammar", o.texts.grammar, "Answers follow the grammar in FILE, in llama.cpp's GBNF or Lark's EBNF", "FILE")
      ->check(non_empty());
}

}  // namespace llmb
