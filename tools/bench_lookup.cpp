// Judges drafters by lookup without a model, on recorded answers: at each step up to K tokens are drafted, those that
// the answer begins with are accepted, and one token more is given, as a step that verifies them does.
//   bench_lookup MODEL_DIR INPUT.jsonl OUTPUT.jsonl [--tokens K]
// INPUT has lines {"prompt": …}, OUTPUT the records, made with --return-token-ids. Prints drafted and accepted tokens
// and tokens a step for the drafter of --speculative lookup over each row's own text alone; for the same with answers
// that ended, as a run has it, one row after the other; and for n-gram lookup, the first place of the longest of the last
// 4 to 1 tokens, of 2 to 1 (transformers' prompt lookup), and of 4 or of 5 (vLLM's example and its default). And the
// drafter's time and its automata's memory for a token. Figures: data/measurements.
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

// The first place where the longest of the last `most` to `least` tokens stand.
struct NgramLookup {
  const char* name;
  int32_t most, least;
  Tokens draft(const Tokens& text, int32_t count) const {
    const auto size = static_cast<int64_t>(text.size());
    for (int64_t n = std::min<int64_t>(most, size - 1); n >= least; --n) {
      const auto at = std::search(text.begin(), text.end() - 1, text.end() - n, text.end());
      if (at == text.end() - 1) continue;
      const auto begin = at + n;
      return {begin, begin + std::min<std::ptrdiff_t>(count, text.end() - begin)};
    }
    return {};
  }
};

// As a run of one row at a time.
class LookupInRun {
 public:
  explicit LookupInRun(int32_t max_answer_tokens) : drafter_(clock_, max_answer_tokens) {}

  Tokens draft(const Tokens& text, bool is_new, int32_t count) {
    if (is_new) {
      if (sequence_) drafter_.forget(*sequence_);
      auto request = std::make_shared<llmb::Request>();
      request->prompt_tokens = text;
      sequence_ =
          std::make_unique<llmb::Sequence>(next_id_++, 0, std::move(request), llmb::BlockTable(16), INT32_MAX, 0);
    }
    sequence_->output_tokens.assign(text.begin() + sequence_->num_prompt_tokens(), text.end());
    const double begin_ms = clock_.now_ms();
    learn();
    guess_ = {};
    num_outputs_ = sequence_->num_output_tokens();
    const llmb::Sequence* const one = sequence_.get();
    drafter_.draft({&one, 1}, {count, 0}, {&guess_, 1});
    took_ms_ += clock_.now_ms() - begin_ms;
    return guess_.tokens;
  }
  double took_ms() const { return took_ms_; }

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
  llmb::LookupDrafter drafter_;
  std::unique_ptr<llmb::Sequence> sequence_;
  llmb::Guess guess_;
  int32_t num_outputs_ = 0;
  int64_t next_id_ = 0;
  double took_ms_ = 0;
};

double ratio(int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(std::max<int64_t>(1, b)); }

void print(const char* name, const Judged& j) {
  std::printf("%-28s %lld tokens in %lld steps, %.3f a step; %lld drafted, %lld accepted (%.1f %%)\n", name,
              static_cast<long long>(j.num_tokens), static_cast<long long>(j.num_steps),
              ratio(j.num_tokens, j.num_steps), static_cast<long long>(j.num_drafted),
              static_cast<long long>(j.num_accepted), 100 * ratio(j.num_accepted, j.num_drafted));
}

// Tokens, and bytes of the automata of texts of their own.
std::pair<int64_t, int64_t> memory_of(const std::vector<Recorded>& recorded) {
  int64_t num_tokens = 0, num_bytes = 0;
  for (const Recorded& one : recorded) {
    SuffixAutomaton automaton;
    for (const Tokens* text : {&one.prompt, &one.answer})
      for (const llmb::TokenId token : *text) automaton.append(token);
    num_tokens += automaton.size();
    num_bytes += automaton.num_bytes();
  }
  return {num_tokens, num_bytes};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("drafts by lookup, judged on recorded answers");
  std::string model_dir, input, output;
  int32_t count = 16;
  app.add_option("model_dir", model_dir)->required();
  app.add_option("input", input)->required();
  app.add_option("output", output)->required();
  app.add_option("--tokens", count, "drafted in a step, at most; default 16, as --num-speculative-tokens");
  CLI11_PARSE(app, argc, argv);
  const auto tokenizer = llmb::Tokenizer::load(model_dir);
  if (!tokenizer.ok()) {
    llmb::log_error(tokenizer.status().message());
    return 4;
  }
  const std::vector<Recorded> recorded = read_answers(**tokenizer, input, output);
  const auto judge_run = [&](LookupInRun&& run) {
    const Judged judged = judge(recorded, [&](const Tokens& text, bool is_new) { return run.draft(text, is_new, count); });
    return std::pair(judged, run.took_ms());
  };
  const auto [own, own_ms] = judge_run(LookupInRun(0));
  const auto [ended, ended_ms] = judge_run(LookupInRun(1 << 19));
  print("own text", own);
  print("with ended answers", ended);
  const auto [num_tokens, num_bytes] = memory_of(recorded);
  std::printf("%.3f us a token, with ended answers %.3f; %.1f bytes a token\n",
              1000 * own_ms / static_cast<double>(std::max<int64_t>(1, num_tokens)),
              1000 * ended_ms / static_cast<double>(std::max<int64_t>(1, num_tokens)), ratio(num_bytes, num_tokens));
  for (const NgramLookup& lookup : {NgramLookup{"n-gram lookup, 4 to 1", 4, 1}, NgramLookup{"n-gram lookup, 2 to 1", 2, 1},
                                    NgramLookup{"n-gram lookup, 4", 4, 4}, NgramLookup{"n-gram lookup, 5", 5, 5}}) {
    const Judged other = judge(recorded, [&](const Tokens& text, bool) { return lookup.draft(text, count); });
    print(lookup.name, other);
    std::printf("  accepted tokens beside it: %.3f x, with ended answers %.3f x\n",
                ratio(own.num_accepted, other.num_accepted), ratio(ended.num_accepted, other.num_accepted));
  }
}
