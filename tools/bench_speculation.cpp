// Measures in pairs what speculation saves on a CPU or a GPU: each run with drafts has one without right before or behind it,
// in turns, and the median of the ratios of their times counts, with all that drafting takes. Beside it stands what the
// machine's own step curve, learned in these runs, predicts; in [] an interval for the median, in () the least and most. The
// answers must be equal. Figures: data/measurements.
//   bench_speculation [--case stories|shape|copies|auto]… [--pairs N] [--batches 1,4,8] [--model-dir DIR] [--draft DIR]
//                     [--heads DIR] [--eagle DIR] [--shape DIR] [--kind NAME] [--tokens K] [--always] [--prompts FILE,…]
//                     [--device cuda]
//   stories  64 of the bundled model, greedy, by each kind of drafter as it chooses; 8 with drafts in any case
//   shape    random weights of a published shape, int8; drafts of a script, which take no time, are right with 0.8
//   copies   the same with 0.95, as where answers copy from prompts
//   auto     the bundled model's answers to each file of questions, with what --speculative auto does and with drafts
//            that are always wrong; lines {"prompt": …}, {"question": …} or {"messages": [one]}
// The manual's tokens a step, "always": --case stories --batches 1 --pairs 1 --heads DIR --eagle DIR
// On a GPU, with your own models: --device cuda --case stories --model-dir DIR --draft DIR --eagle DIR. Each line ends with how
// long the GPU waits between two steps; "by way of the host": the host reads each draft and passes it on.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/draft_feed.h"
#include "base/check.h"
#include "base/clock.h"
#include "model/config_loader.h"
#include "model/eagle_layer.h"
#include "speculation/layers_drafter.h"
#include "speculation/lookahead_drafter.h"
#include "speculation/lookup_drafter.h"
#include "speculation/medusa_drafter.h"
#include "speculation/model_drafter.h"
#include "tokenizer/tokenizer.h"
#include "tools/measured_drafter.h"
#include "tools/medians.h"
#include "tools/scripted_drafters.h"
#include "tools/speculation_runs.h"

namespace llmb {
namespace {

constexpr int32_t kPromptTokens = 16, kAnswerTokens = 224;  // of random weights

struct Options {
  std::vector<std::string> cases = {"stories", "shape", "copies", "auto"};
  std::vector<std::string> prompts = {"data/eval/heldout.jsonl", "data/eval/heldout_extract.jsonl"};
  std::vector<int32_t> batches;
  std::string kind;
  int32_t pairs = 5, tokens = 16;
  bool drafts_always = false;
  std::string model_dir = "data/model", draft_dir = "data/draft-model", heads_dir, eagle_dir,
              shape = "data/shapes/llama-3.2-1b", device = "cpu";
};

// The best ratio that drafts of a script reach by the curve, prompts included, with as many for a sequence as pay most.
double predicted_by_curve(const Target& target, int32_t batch, const ScriptedDrafter& script) {
  const StepCost& curve = target.curve;
  const auto num_rounds = static_cast<double>(target.requests.size()) / batch;
  const double prompts_ms = num_rounds * curve.ms(batch * kPromptTokens);
  const auto ms_with = [&](int32_t num_drafts) {
    const auto num_steps = static_cast<double>(script.num_steps(num_drafts)) / batch;
    return prompts_ms + num_steps * curve.ms(batch * (num_drafts + 1));
  };
  double best = 1;
  for (int32_t k = 1; k <= target.max_tokens && k * batch <= kMaxStepTokens; ++k)
    best = std::max(best, ms_with(0) / ms_with(k));
  return best;
}

void compare(const std::string& name, Target* target, int32_t batch, const MakeDrafters& make, bool drafts_always,
             int32_t pairs, const std::function<double()>& predicted = nullptr) {
  std::vector<double> ratios;
  Run with;
  for (int32_t pair = 0; pair < pairs; ++pair) {
    Run first = run(target, batch, pair % 2 == 0 ? nullptr : make, drafts_always);
    Run second = run(target, batch, pair % 2 == 0 ? make : nullptr, drafts_always);
    const Run& without = pair % 2 == 0 ? first : second;
    with = pair % 2 == 0 ? second : first;
    LLMB_CHECK_MSG(with.answers == without.answers, name + ": other answers than without drafts");
    ratios.push_back(without.ms / with.ms);
  }
  double num_drafted = 0, num_accepted = 0;
  for (const auto& kind : with.speculation.drafters) num_drafted += kind.num_drafted, num_accepted += kind.num_accepted;
  const auto share_of = [](double part, double whole) { return part / std::max(1.0, whole); };
  const SpeculationMetrics& done = with.speculation;
  const auto given = static_cast<double>(done.num_given), groups = static_cast<double>(done.num_groups);
  const auto drafting = static_cast<double>(done.num_steps), steps = static_cast<double>(with.num_steps);
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const auto [from, to] = interval_of_median(ratios);
  std::printf("%-34s batch %d: %.3f x [%.3f, %.3f] (%d pairs, %.3f to %.3f); %.2f tokens a row and step, %.0f %% of drafts "
              "right", name.c_str(), batch, median(ratios), from, to, pairs, *least, *most, share_of(given, groups),
              100 * share_of(num_accepted, num_drafted));
  if (predicted) std::printf("; the curve says %.3f x", predicted());
  std::printf("; %.3f x by its own count, drafts in %.1f %% of steps, %.3f ms between two\n",
              1 + done.measured_saved_ms / with.ms, 100 * share_of(drafting, steps), share_of(with.gap_ms, steps));
  std::fflush(stdout);
}

std::vector<std::unique_ptr<Drafter>> one(std::unique_ptr<Drafter> drafter) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::move(drafter));
  return drafters;
}

// Facts about a drafter that guesses chains, for the curve's prediction.
void measure_drafts(const std::string& name, Target* target, int32_t batch, const MakeDrafters& make, DraftFacts* facts) {
  run(target, batch,
      [&](const Clock& clock) { return one(std::make_unique<MeasuredDrafter>(std::move(make(clock).at(0)), facts)); },
      /*drafts_always=*/true);
  std::printf("%-34s batch %d: a token of each row in %.4f ms; right with those before it:", name.c_str(), batch,
              facts->ms_per_step());
  for (int32_t i = 0; i < DraftFacts::kMaxTokens && facts->num_judged[i] > 0; ++i)
    std::printf(" %.2f", facts->num_right[i] / facts->num_judged[i]);
  std::printf("\n");
}

void print_curve(const Target& target) {
  std::printf("steps:");
  for (const int32_t rows : {1, 2, 4, 8, 16, 32, 64}) std::printf(" %d: %.3f ms", rows, target.curve.ms(rows));
  std::printf("\n");
}

std::shared_ptr<Request> greedy(std::vector<TokenId> prompt, int32_t max_tokens) {
  auto request = std::make_shared<Request>();
  request->prompt_tokens = std::move(prompt);
  request->params.sampling.temperature = 0;
  request->params.stop.max_tokens = max_tokens;
  return request;
}

void load_target(Target* target, int32_t max_model_len, int32_t max_num_seqs = 8) {
  target->load.max_num_seqs = max_num_seqs;
  target->load.max_num_batched_tokens = 256;
  target->load.max_num_drafts = kMaxStepTokens;
  target->load.max_model_len = max_model_len;
  target->load.cuda.deterministic = true;  // the answers are compared
  target->load.num_blocks_override = max_num_seqs * max_model_len / target->load.block_size + 2 * 64;
  require(target->backend->load(target->config, target->load));
}

// Its blocks lie in the target's, where they fit. by_host: drafts come by way of the host, not on the device that both are on
std::unique_ptr<Drafter> draft_model(const Options& options, const Target& target, bool is_tree, bool by_host,
                                     const Clock& clock) {
  const std::string& dir = options.draft_dir;
  LoadOptions load;
  load.model_dir = dir;
  load.max_num_seqs = 8;
  load.max_num_batched_tokens = 256;
  load.max_model_len = 1024;
  load.num_threads = 1;
  load.cpu.runs_in_wait = true;
  load.num_blocks_override = 8 * 1024 / load.block_size;
  auto backend = backend_on(options.device);
  const ModelConfig config = *load_model_config(dir);
  std::unique_ptr<DraftFeed> feed = by_host ? nullptr : share_queue(*target.backend, *backend);
  LentBlocks lent;
  if (!by_host) lent = find_lent_blocks(target.backend->info().kind, target.config, target.load, config, load);
  if (lent) load.block_size = lent.block_size, lend_blocks(*target.backend, *backend, &lent);
  require(backend->load(config, load));
  const ModelDrafterOptions limits = {256, 8, 1024, is_tree, lent};
  return std::make_unique<ModelDrafter>(std::move(backend), limits, clock, std::move(feed));
}

// own: keeps the drafts on the device; else by way of the host
std::unique_ptr<Drafter> layers(Target* target, int32_t num_layers, const Clock& clock, OwnDrafts own) {
  const int32_t num_scratch = 2 * 64;
  const LayersDrafterOptions options = {num_layers, target->load.max_model_len,
                                        target->backend->info().kv.num_blocks - num_scratch, num_scratch, false};
  return std::make_unique<LayersDrafter>(*target->backend, options, clock, std::move(own));
}

std::unique_ptr<Drafter> medusa(Target* target, const Clock& clock, OwnDrafts own) {
  const LoadOptions& load = target->load;
  const MedusaDrafterOptions limits = {load.max_num_seqs, load.max_num_batched_tokens, load.max_num_samples()};
  return std::make_unique<MedusaDrafter>(*target->backend, limits, clock, std::move(own));
}

void bench_stories(const Options& options) {
  Target target(options.device);
  target.max_tokens = options.tokens;
  target.load.heads_dir = options.heads_dir;
  target.config = *load_model_config(options.model_dir);
  target.load.model_dir = options.model_dir;
  if (!options.eagle_dir.empty()) EagleFiles::open(options.eagle_dir, target.config).value().describe(&target.config);
  target.load.eagle_dir = options.eagle_dir;
  target.load.drafting_layers = 3;  // at most
  load_target(&target, 1024);
  const auto tokenizer = Tokenizer::load(options.model_dir);
  require(tokenizer.status());
  for (const std::string kind : {"", "a small ", "a big ", "a red ", "a happy ", "a sad ", "a brave ", "a quiet "})
    for (const std::string animal : {"a fox", "an owl", "a mouse", "a bear", "a rabbit", "a wolf", "a cat", "a dog"}) {
      const std::string who = kind + animal.substr(kind.empty() ? 0 : animal.find(' ') + 1);
      const std::string text = "<|user|>Tell me a story about " + who + ".<|end|><|assistant|>";
      target.requests.push_back(greedy((*tokenizer)->encode(text, true), 300));
      target.requests.back()->eos_token_ids = target.config.eos_token_ids;
    }
  const auto by_layers = [&](int32_t num_layers, bool by_host = false) -> MakeDrafters {
    return [&, num_layers, by_host](const Clock& clock) {
      return one(layers(&target, num_layers, clock, by_host ? OwnDrafts() : own_drafts_of(*target.backend)));
    };
  };
  const auto lookup_and_draft = [&](const Clock& clock) {
    auto both = one(std::make_unique<LookupDrafter>(clock));
    both.push_back(draft_model(options, target, false, false, clock));
    return both;
  };
  std::vector<std::pair<std::string, MakeDrafters>> kinds = {
      {"draft model",
       [&](const Clock& clock) { return one(draft_model(options, target, false, false, clock)); }},
      {"draft model, tree", [&](const Clock& clock) { return one(draft_model(options, target, true, options.device != "cpu", clock)); }},
      {"lookup", [&](const Clock& clock) { return one(std::make_unique<LookupDrafter>(clock)); }},
      {"lookup and draft model", lookup_and_draft},
      {"lookup, tree", [&](const Clock& clock) { return one(std::make_unique<LookupDrafter>(clock, 1 << 19, true)); }},
      {"layers:2", by_layers(2)},
      {"layers:3", by_layers(3)},
      {"lookahead", [&](const Clock&) { return one(std::make_unique<LookaheadDrafter>()); }},
  };
  if (options.device != "cpu") {
    kinds.push_back({"draft model, by way of the host",
                     [&](const Clock& clock) { return one(draft_model(options, target, false, true, clock)); }});
    kinds.push_back({"layers:2, by way of the host", by_layers(2, true)});
  }
  if (!options.heads_dir.empty())
    kinds.push_back(
        {"medusa", [&](const Clock& clock) { return one(medusa(&target, clock, own_drafts_of(*target.backend))); }});
  if (!options.eagle_dir.empty()) kinds.push_back({"eagle", by_layers(0)});
  if (!options.eagle_dir.empty() && options.device != "cpu")
    kinds.push_back({"eagle, by way of the host", by_layers(0, true)});
  if (!options.kind.empty()) std::erase_if(kinds, [&](const auto& kind) { return kind.first != options.kind; });
  for (const auto& [name, make] : kinds)
    for (const int32_t batch : options.batches.empty() ? std::vector<int32_t>{1, 4} : options.batches) {
      DraftFacts facts;
      const bool is_chain = options.device == "cpu" && (name == "draft model" || name.starts_with("layers"));
      if (is_chain) measure_drafts("stories, " + name, &target, batch, make, &facts);
      compare("stories, " + name, &target, batch, make, options.drafts_always, options.pairs,
              is_chain ? [&] { return facts.predicted(target.curve, batch, kMaxStepTokens); }
                       : std::function<double()>());
    }
  target.requests.resize(8);
  for (const auto& [name, make] : kinds) compare("stories, " + name + ", always", &target, 1, make, true, 1);
  print_curve(target);
}

void bench_shape(const Options& options, const std::string& name, double acceptance) {
  Target target(options.device);
  target.max_tokens = options.tokens;
  target.config = *load_model_config(options.shape);
  target.load.load_format = LoadFormat::kDummy;
  target.load.cpu.quantization = Quantization::kInt8;
  load_target(&target, 256);
  for (const int32_t batch : options.batches.empty() ? std::vector<int32_t>{1, 4, 8} : options.batches) {
    target.requests.clear();
    for (int32_t i = 0; i < 2 * batch; ++i) {
      std::vector<TokenId> prompt;
      for (TokenId k = 0; k < kPromptTokens; ++k) prompt.push_back(1000 + 97 * i + k);
      target.requests.push_back(greedy(std::move(prompt), kAnswerTokens));
    }
    const Answers answers = run(&target, batch, nullptr, false).answers;
    const MakeDrafters make = [&](const Clock&) {
      return one(std::make_unique<ScriptedDrafter>(answers, acceptance));
    };
    run(&target, batch, make, true);  // the curve
    const ScriptedDrafter script(answers, acceptance);
    compare(name, &target, batch, make, false, options.pairs, [&] { return predicted_by_curve(target, batch, script); });
  }
  print_curve(target);
}

std::string question_of(const nlohmann::json& line) {
  for (const char* field : {"prompt", "question"})
    if (line.contains(field)) return line.at(field).get<std::string>();
  return line.at("messages").at(0).at("content").get<std::string>();
}

void bench_auto(const Options& options) {
  constexpr size_t kMaxQuestions = 300;
  Target target(options.device);
  target.max_tokens = options.tokens;
  target.config = *load_model_config(options.model_dir);
  target.load.model_dir = options.model_dir;
  load_target(&target, 1024, 64);
  const auto tokenizer = Tokenizer::load(options.model_dir);
  require(tokenizer.status());
  const MakeDrafters lookup = [&](const Clock& clock) { return one(std::make_unique<LookupDrafter>(clock)); };
  const MakeDrafters wrong = [&](const Clock&) { return one(std::make_unique<WrongDrafter>()); };
  for (const std::string& path : options.prompts) {
    target.requests.clear();
    std::ifstream file(path);
    LLMB_CHECK_MSG(file.good(), path + ": cannot be read");
    for (std::string line; target.requests.size() < kMaxQuestions && std::getline(file, line);) {
      const std::string text = "<|user|>" + question_of(nlohmann::json::parse(line)) + "<|end|><|assistant|>";
      target.requests.push_back(greedy((*tokenizer)->encode(text, true), 128));
      target.requests.back()->eos_token_ids = target.config.eos_token_ids;
    }
    const std::string name = path.substr(path.rfind('/') + 1);
    for (const int32_t batch : options.batches.empty() ? std::vector<int32_t>{1, 8, 64} : options.batches) {
      compare(name + ", auto", &target, batch, lookup, false, options.pairs);
      compare(name + ", wrong", &target, batch, wrong, false, options.pairs);
    }
  }
  print_curve(target);
}

}  // namespace
}  // namespace llmb

int main(int argc, char** argv) {
  llmb::Options options;
  CLI::App app("what speculation saves, in paired runs");
  app.add_option("--case", options.cases, "stories, shape, copies, auto; default: all");
  app.add_option("--pairs", options.pairs, "of runs; default 5");
  app.add_option("--batches", options.batches, "default: stories 1,4, else 1,4,8")->delimiter(',')->check(CLI::Range(1, 8));
  app.add_option("--kind", options.kind, "of drafter, for the stories; default: all");
  app.add_option("--model-dir", options.model_dir, "of the stories");
  app.add_option("--draft", options.draft_dir, "its draft model");
  app.add_option("--heads", options.heads_dir, "its Medusa heads (tools/train/train_heads.py); default: none");
  app.add_option("--eagle", options.eagle_dir, "its layer of EAGLE's (tools/train/train_eagle.py); default: none");
  app.add_option("--prompts", options.prompts, "of the case auto")->delimiter(',');
  app.add_option("--tokens", options.tokens, "drafted for a sequence in a step, at most; default 16");
  app.add_flag("--always", options.drafts_always, "as many tokens for the stories as that, in any case");
  app.add_option("--shape", options.shape, "a directory with a config.json");
  app.add_option("--device", options.device, "cpu, cuda or cuda:N; default cpu");
  CLI11_PARSE(app, argc, argv);
  for (const std::string& name : options.cases) {
    if (name == "stories") llmb::bench_stories(options);
    else if (name == "shape") llmb::bench_shape(options, "shape, script 0.8", 0.8);
    else if (name == "copies") llmb::bench_shape(options, "copies, script 0.95", 0.95);
    else if (name == "auto") llmb::bench_auto(options);
    else return std::fprintf(stderr, "--case %s: expected stories, shape, copies or auto\n", name.c_str()), 2;
  }
}
