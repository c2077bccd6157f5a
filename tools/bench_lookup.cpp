// Judges drafters by lookup without a model, on recorded answers: at each step up to K tokens are drafted, those that
// the answer begins with are accepted, and one token more is given, as a step that verifies them does.
//   bench_lookup MODEL_DIR INPUT.jsonl OUTPUT.jsonl [--tokens K]
// INPUT has lines {"prompt": …}, OUTPUT the records, made with --return-token-ids. Prints drafted and accepted tokens
// and tokens a step for the suffix automaton of each row's own text; for the drafter of --speculative lookup, whose
// automata also have the answers that ended, one row after the other; and for n-gram lookup (the first place of the
// longest of the last 4 to 1 tokens, as vLLM's). And the own text's automaton's time and memory for a token.
//
// 2026-11-23, 2-core Intel Xeon (Emerald Rapids), busy with other work; the bundled model's answers, 8 drafts a step:
//   llm-batch -m data/model --temperature 0 --max-tokens 128 --return-token-ids SET.jsonl -o SET.out.jsonl
//   bench_lookup data/model SET.jsonl SET.out.jsonl
// Tokens answered, and accepted tokens beside n-gram lookup's (x), by the own text alone and with ended answers; first
// each question as a chat, <|user|>…<|end|><|assistant|>, then bare. Of mt_bench the first turns.
//   gsm8k                          6436  1.118  1.942      8589  1.233  5.170
//   humaneval                       764  1.730  5.622      1341  1.137  1.657
//   mt_bench                        503  1.110  1.505      1414  1.215  2.061
//   bbh/date_understanding         3001  2.401  6.096      1178  1.163  1.517
//   bbh/multistep_arithmetic_two   2100  1.160  3.006     12088  1.166  1.294
//   bbh/navigate                   2633  1.171  3.734       754  1.061  2.696
//   bbh/word_sorting               1882  1.051  1.385      4339  1.067  1.217
// At most 1.3 us and 63.0 bytes a token.
// 2026-11-28, 2-core AMD EPYC (Zen 5), busy: the own text alone 1.057 to 2.368 (below 1.1: word_sorting in both forms and
// navigate, bare), with ended answers 1.232 to 6.010; at most 1.4 us and 63.0 bytes a token.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "speculation/lookup_drafter.h"
#include "speculation/suffix_automaton.h"
#include "tokenizer/tokenizer.h"

namespace {

using llmb::SuffixAutomaton;
using Tokens = std::vector<llmb::TokenId>;

struct Recorded {
  Tokens prompt, answer;
};

struct Judged {
  int64_t num_steps = 0, num_tokens = 0, num_drafted = 0, num_accepted = 0;
};

std::vector<Recorded> read_answers(const llmb::Tokenizer& tokenizer, const std::string& input,
                                   const std::string& output) {
  std::map<int64_t, Tokens> answers;
  std::string line;
  std::ifstream records(output);
  while (std::getline(records, line)) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object() && record.contains("token_ids"))
      answers[record["index"].get<int64_t>()] = record["token_ids"].get<Tokens>();
  }
  std::vector<Recorded> recorded;
  std::ifstream prompts(input);
  for (int64_t index = 0; std::getline(prompts, line); ++index) {
    const auto asked = nlohmann::json::parse(line, nullptr, false);
    if (!answers.contains(index) || !asked.is_object() || !asked.contains("prompt")) continue;
    recorded.push_back({tokenizer.encode(asked["prompt"].get<std::string>(), true), answers[index]});
  }
  return recorded;
}

// `draft` gets the text so far, which only grows during an answer.
Judged judge(const std::vector<Recorded>& recorded, const std::function<Tokens(const Tokens&, bool is_new)>& draft) {
  Judged judged;
  for (const Recorded& one : recorded) {
    Tokens text = one.prompt;
    bool is_new = true;
    for (size_t at = 0; at < one.answer.size(); is_new = false) {
      Tokens drafts = draft(text, is_new);
      const auto end = one.answer.begin() + static_cast<std::ptrdiff_t>(at);
      drafts.resize(std::min(drafts.size(), one.answer.size() - at - 1));
      const auto wrong = std::mismatch(drafts.begin(), drafts.end(), end, one.answer.end());
      const auto num_accepted = static_cast<size_t>(wrong.first - drafts.begin());
      text.insert(text.end(), end, end + static_cast<std::ptrdiff_t>(num_accepted) + 1);
      at += num_accepted + 1;
      ++judged.num_steps;
      judged.num_drafted += static_cast<int64_t>(drafts.size());
      judged.num_accepted += static_cast<int64_t>(num_accepted);
    }
    judged.num_tokens += static_cast<int64_t>(one.answer.size());
  }
  return judged;
}

Tokens ngram_lookup(const Tokens& text, int32_t count) {
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t n = std::min<int64_t>(4, size - 1); n >= 1; --n) {
    const auto at = std::search(text.begin(), text.end() - 1, text.end() - n, text.end());
    if (at == text.end() - 1) continue;
    const auto begin = at + n;
    return {begin, begin + std::min<std::ptrdiff_t>(count, text.end() - begin)};
  }
  return {};
}

// As a run of one row at a time.
class LookupInRun {
 public:
  Tokens draft(const Tokens& text, bool is_new, int32_t count) {
    if (is_new) {
      if (sequence_) drafter_.forget(*sequence_);
      auto request = std::make_shared<llmb::Request>();
      request->prompt_tokens = text;
      sequence_ =
          std::make_unique<llmb::Sequence>(next_id_++, 0, std::move(request), llmb::BlockTable(16), INT32_MAX, 0);
    }
    sequence_->output_tokens.assign(text.begin() + sequence_->num_prompt_tokens(), text.end());
    learn();
    guess_ = {};
    num_outputs_ = sequence_->num_output_tokens();
    const llmb::Sequence* const one = sequence_.get();
    drafter_.draft({&one, 1}, {count, 0}, {&guess_, 1});
    return guess_.tokens;
  }

 private:
  // How the guess before was; the last one of a row teaches nothing.
  void learn() {
    const auto at = [&](int32_t i) { return num_outputs_ + i < sequence_->num_output_tokens(); };
    std::vector<llmb::Verdict> verdicts(guess_.tokens.size(), llmb::Verdict::kUnknown);
    for (int32_t i = 0; i < guess_.size() && at(i); ++i) {
      const bool is_right = guess_.tokens[i] == sequence_->output_tokens[num_outputs_ + i];
      verdicts[i] = is_right ? llmb::Verdict::kRight : llmb::Verdict::kWrong;
      if (!is_right) break;
    }
    drafter_.learn(*sequence_, guess_, verdicts);
  }

  const llmb::SteadyClock clock_;
  llmb::LookupDrafter drafter_{clock_};
  std::unique_ptr<llmb::Sequence> sequence_;
  llmb::Guess guess_;
  int32_t num_outputs_ = 0;
  int64_t next_id_ = 0;
};

double ratio(int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(std::max<int64_t>(1, b)); }

void print(const char* name, const Judged& j) {
  std::printf("%-18s %lld tokens in %lld steps, %.3f a step; %lld drafted, %lld accepted (%.1f %%)\n", name,
              static_cast<long long>(j.num_tokens), static_cast<long long>(j.num_steps),
              ratio(j.num_tokens, j.num_steps), static_cast<long long>(j.num_drafted),
              static_cast<long long>(j.num_accepted), 100 * ratio(j.num_accepted, j.num_drafted));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("drafts by lookup, judged on recorded answers");
  std::string model_dir, input, output;
  int32_t count = 8;
  app.add_option("model_dir", model_dir)->required();
  app.add_option("input", input)->required();
  app.add_option("output", output)->required();
  app.add_option("--tokens", count, "drafted in a step, at most");
  CLI11_PARSE(app, argc, argv);
  const auto tokenizer = llmb::Tokenizer::load(model_dir);
  if (!tokenizer.ok()) {
    llmb::log_error(tokenizer.status().message());
    return 4;
  }
  const std::vector<Recorded> recorded = read_answers(**tokenizer, input, output);
  SuffixAutomaton automaton;
  int64_t num_bytes = 0, num_appended = 0;
  double ms = 0;
  const llmb::SteadyClock clock;
  const Judged by_automaton = judge(recorded, [&](const Tokens& text, bool is_new) {
    if (is_new) num_bytes += automaton.num_bytes(), num_appended += automaton.size();
    const double begin_ms = clock.now_ms();
    if (is_new) automaton = SuffixAutomaton();
    for (size_t at = automaton.size(); at < text.size(); ++at) automaton.append(text[at]);
    Tokens drafts;
    automaton.continue_match(automaton.repeated_end(), count, &drafts);
    ms += clock.now_ms() - begin_ms;
    return drafts;
  });
  num_bytes += automaton.num_bytes();
  num_appended += automaton.size();
  const Judged by_ngram = judge(recorded, [&](const Tokens& text, bool) { return ngram_lookup(text, count); });
  LookupInRun in_run;
  const Judged by_drafter =
      judge(recorded, [&](const Tokens& text, bool is_new) { return in_run.draft(text, is_new, count); });
  print("suffix automaton", by_automaton);
  print("with ended answers", by_drafter);
  print("n-gram lookup", by_ngram);
  std::printf("accepted tokens: %.3f x, with ended answers %.3f x; automaton: %.3f us and %.1f bytes a token\n",
              ratio(by_automaton.num_accepted, by_ngram.num_accepted),
              ratio(by_drafter.num_accepted, by_ngram.num_accepted),
              1000 * ms / static_cast<double>(std::max<int64_t>(1, num_appended)), ratio(num_bytes, num_appended));
}
