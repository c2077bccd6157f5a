// Scenarios of the scheduler, one text file each under scenarios/: settings, what happens, and the expected shape of
// every step. Integrity and every plan are checked at each call.
//
// "#" begins a comment. Settings come first, a name and a value each; the others are as in small_config():
//   mode none|static|dynamic|continuous     seqs N     budget N (tokens a step)     block_size N     blocks N
//   context N     window MS     drafts N (a step)     trees yes     levels N     prefix yes (cached)
//   copies_blocks no
// Then what happens. Ids count from 0 in the order of the requests, the choices of a request follow each other.
//   request P+N [NAME=VALUE...]  a prompt of P tokens (1, 2, 3, ...) and at most N new ones, with
//                                choices=N  stop=TOKEN  min=N (min_tokens)  penalty=yes  indivisible=yes
//                                rank=R,R@K,...  its rank, and from K output tokens on; without: first come, first
//                                served promote=R@MS    its rank from that time on
//   at MS                        the time from here on
//   more yes|no                  whether more requests may arrive; no, unless told
//   plan SHAPE                   a step is scheduled, nothing is in flight
//   ahead SHAPE                  a step is scheduled, one is in flight
//   apply [TOKENS...]            the oldest plan in flight has run and each group gives tokens, "8" or "8,9" or "nan";
//   7
//                                where none are named
//   step SHAPE [xN]              plan and apply, N times
//   finish ID                    the caller ends a sequence
//   draft ID [TOKEN[<PARENT]...] the sequence's drafts from here on; PARENT is an index among them, or -1
//   see ID yes|no                whether its next token must be seen before anything is planned behind it
// And what must hold then:
//   ended [ID...]                sequences that ended with the newest apply, in its order
//   running [ID...]              in order of rank, those that end with the plan in flight included
//   waiting N     free N (blocks)     preemptions ID N     wakeup MS|-     copies [FROM>TO...] (of the newest plan)
//   cached ID N (prompt tokens found at its first joining)     prompt_tokens ASKED SAVED COMPUTED (of all until now)
// A SHAPE is "-" where there is no plan, or the plan's entries: ID:ROWS, then @BASE where the base matters, ~N where
// the last N rows are drafts, +ID for every other sequence that gets a token of these rows.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "tests/scheduler/harness.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace {

using Words = std::vector<std::string>;

Words split(const std::string& text, char separator) {
  Words words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, separator);)
    if (!word.empty()) words.push_back(word);
  return words;
}

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

int32_t number(const std::string& text) {
  size_t end = 0;
  const int32_t value = std::stoi(text, &end);
  if (end != text.size()) throw std::invalid_argument("not a number: " + text);
  return value;
}

struct RankScript {
  std::vector<std::pair<int32_t, int64_t>> from_output;  // output tokens, rank
  std::optional<std::pair<double, int64_t>> from_time;   // ms, rank

  Ranking at(const Sequence& s, double now_ms) const {
    if (from_time && now_ms >= from_time->first) return {Rank{from_time->second}};
    Ranking ranking{Rank{s.id}};
    for (const auto& [num_tokens, rank] : from_output)
      if (s.num_output_tokens() >= num_tokens) ranking.rank = Rank{rank};
    if (from_time) ranking.until_ms = from_time->first;
    return ranking;
  }
};

struct ScenarioProposer final : Proposer {
  void propose(const Sequence& sequence, int32_t, Drafts* out) override {
    if (drafts.contains(sequence.id)) *out = drafts.at(sequence.id);
  }
  bool must_see(const Sequence& sequence) const override {
    const auto at = seen_first.find(sequence.id);
    return at != seen_first.end() && at->second;
  }
  std::map<SeqId, Drafts> drafts;
  std::map<SeqId, bool> seen_first;
};

class Scenario {
 public:
  Scenario() {
    config_.policy.rank = [this](const Sequence& s, double now_ms) {
      const auto at = ranks_.find(s.request.get());
      return at == ranks_.end() ? first_come_first_served(s, now_ms) : at->second.at(s, now_ms);
    };
  }

  void run_line(const std::string& line) {
    const Words words = split(line.substr(0, line.find('#')), ' ');
    if (words.empty()) return;
    const std::string& command = words[0];
    const Words rest(words.begin() + 1, words.end());
    if (set(command, rest)) return;
    if (!harness_) harness_.emplace(config_, &proposer_);
    if (!act(command, rest) && !check(command, rest)) throw std::invalid_argument("unknown: " + command);
  }

 private:
  bool set(const std::string& name, const Words& values) {
    const std::map<std::string, int32_t*> numbers = {
        {"seqs", &config_.max_num_seqs},       {"budget", &config_.max_num_batched_tokens},
        {"block_size", &config_.block_size},   {"blocks", &config_.num_blocks},
        {"context", &config_.max_model_len},   {"drafts", &config_.max_num_drafts},
        {"levels", &config_.policy.num_levels}};
    if (const auto at = numbers.find(name); at != numbers.end()) *at->second = number(values.at(0));
    else if (name == "window") config_.batch_window_ms = number(values.at(0));
    else if (name == "prefix") config_.enable_prefix_caching = values.at(0) == "yes";
    else if (name == "copies_blocks") config_.copies_blocks = values.at(0) == "yes";
    else if (name == "trees") config_.allows_trees = values.at(0) == "yes";
    else if (name == "mode") config_.batching = mode(values.at(0));
    else return false;
    if (harness_) throw std::invalid_argument("a setting behind the first request");
    return true;
  }

  static BatchingMode mode(const std::string& name) {
    const std::map<std::string, BatchingMode> modes = {{"none", BatchingMode::kNone},
                                                       {"static", BatchingMode::kStatic},
                                                       {"dynamic", BatchingMode::kDynamic},
                                                       {"continuous", BatchingMode::kContinuous}};
    return modes.at(name);
  }

  bool act(const std::string& command, const Words& words) {
    if (command == "request") add(words);
    else if (command == "at") now_ms_ = number(words.at(0));
    else if (command == "more") more_may_arrive_ = words.at(0) == "yes";
    else if (command == "plan") plan(words);
    else if (command == "ahead") ahead(words);
    else if (command == "apply") apply(words);
    else if (command == "step") step(words);
    else if (command == "finish") finish(number(words.at(0)));
    else if (command == "draft") draft(words);
    else if (command == "see") proposer_.seen_first[number(words.at(0))] = words.at(1) == "yes";
    else return false;
    return true;
  }

  bool check(const std::string& command, const Words& words) {
    const Scheduler& scheduler = harness_->scheduler;
    if (command == "ended") CHECK(joined(ended_) == joined(words));
    else if (command == "running") CHECK(joined(names(scheduler.running_ids())) == joined(words));
    else if (command == "waiting") CHECK(scheduler.num_waiting() == number(words.at(0)));
    else if (command == "free") CHECK(scheduler.num_free_blocks() == number(words.at(0)));
    else if (command == "preemptions") CHECK(scheduler.num_preemptions(number(words.at(0))) == number(words.at(1)));
    else if (command == "wakeup") CHECK(wakeup() == words.at(0));
    else if (command == "copies") CHECK(copies() == joined(words));
    else if (command == "cached") CHECK(scheduler.find(number(words.at(0)))->num_cached_tokens == number(words.at(1)));
    else if (command == "prompt_tokens") CHECK(prompt_tokens() == joined(words));
    else return false;
    return true;
  }

  void add(const Words& words) {
    const Words lengths = split(words.at(0), '+');
    auto request = make_request(number(lengths.at(0)), number(lengths.at(1)));
    for (size_t i = 1; i < words.size(); ++i) {
      const Words member = split(words[i], '=');
      const std::string &name = member.at(0), &value = member.at(1);
      if (name == "choices") request->params.sampling.num_choices = number(value);
      else if (name == "stop") request->params.stop.stop_token_ids = {number(value)};
      else if (name == "min") request->params.stop.min_tokens = number(value);
      else if (name == "penalty") request->params.sampling.presence_penalty = 1;
      else if (name == "indivisible") request->is_indivisible = true;
      else if (name == "rank") ranks_[request.get()].from_output = ranks_by_output(value);
      else if (name == "promote") ranks_[request.get()].from_time = rank_by_time(value);
      else throw std::invalid_argument("unknown: " + name);
    }
    harness_->add(request, now_ms_);
    requests_.push_back(request);
  }

  static std::vector<std::pair<int32_t, int64_t>> ranks_by_output(const std::string& text) {
    std::vector<std::pair<int32_t, int64_t>> ranks;
    for (const std::string& item : split(text, ',')) {
      const Words parts = split(item, '@');
      ranks.emplace_back(parts.size() > 1 ? number(parts[1]) : 0, number(parts[0]));
    }
    return ranks;
  }

  static std::pair<double, int64_t> rank_by_time(const std::string& text) {
    const Words parts = split(text, '@');
    return {number(parts.at(1)), number(parts.at(0))};
  }

  void plan(const Words& shape) {
    if (num_in_flight_ != 0) throw std::invalid_argument("a plan is in flight: ahead");
    const bool scheduled = harness_->schedule(now_ms_, more_may_arrive_);
    expect_shape(scheduled, harness_->plan, shape);
  }

  void ahead(const Words& shape) {
    if (num_in_flight_ != 1) throw std::invalid_argument("ahead of what?");
    const bool scheduled = harness_->schedule_ahead(now_ms_, more_may_arrive_);
    expect_shape(scheduled, harness_->ahead, shape);
  }

  void expect_shape(bool scheduled, const StepPlan& plan, const Words& expected) {
    num_in_flight_ += scheduled;
    copies_ = plan.block_copies;
    CHECK((scheduled ? joined(shape_of(plan, expected)) : "-") == joined(expected));
  }

  // With bases where the expected shape has them.
  static Words shape_of(const StepPlan& plan, const Words& expected) {
    Words shape;
    for (int32_t e = 0; e < plan.num_entries(); ++e) {
      const StepEntry& entry = plan.entries[e];
      std::string text = std::to_string(entry.seq) + ":" + std::to_string(plan.num_rows(e));
      if (shape.size() < expected.size() && expected[shape.size()].find('@') != std::string::npos)
        text += "@" + std::to_string(entry.base);
      for (const SampleGroup& group : plan.groups) {
        if (group.entry != e) continue;
        if (group.seq != entry.seq) text += "+" + std::to_string(group.seq);
        else if (group.num_rows() > 1) text += "~" + std::to_string(group.num_rows() - 1);
      }
      shape.push_back(text);
    }
    return shape;
  }

  void apply(const Words& given) {
    if (num_in_flight_-- == 0) throw std::invalid_argument("nothing is in flight");
    if (given.empty()) {
      harness_->apply();
    } else {
      give_each(given);
      harness_->apply_output();
    }
    ended_.clear();
    for (const SequenceUpdate& update : harness_->updates)
      if (update.finish) ended_.push_back(std::to_string(update.seq));
  }

  void give_each(const Words& given) {
    StepOutput& output = harness_->output;
    output.clear();
    for (const std::string& word : given) {
      std::vector<TokenId> tokens;
      if (word == "nan") tokens.push_back(0);
      else
        for (const std::string& token : split(word, ',')) tokens.push_back(number(token));
      give(tokens, &output);
    }
    for (size_t g = 0; g < given.size(); ++g)
      if (given[g] == "nan") take_back(static_cast<int32_t>(g), &output);
  }

  void step(Words shape) {
    int32_t count = 1;
    if (shape.back()[0] == 'x') {
      count = number(shape.back().substr(1));
      shape.pop_back();
    }
    for (; count > 0; --count) {
      plan(shape);
      if (num_in_flight_ > 0) apply({});
    }
  }

  void finish(SeqId seq) {
    harness_->scheduler.finish(seq);
    harness_->check();
  }

  void draft(const Words& words) {
    Drafts& drafts = proposer_.drafts[number(words.at(0))];
    drafts.clear();
    for (size_t i = 1; i < words.size(); ++i) {
      const Words parts = split(words[i], '<');
      drafts.tokens.push_back(number(parts.at(0)));
      if (parts.size() > 1) drafts.parents.push_back(number(parts[1]));
    }
    if (!drafts.is_valid()) throw std::invalid_argument("drafts without parents, or not behind them");
  }

  static Words names(const std::vector<SeqId>& ids) {
    Words words;
    for (const SeqId id : ids) words.push_back(std::to_string(id));
    return words;
  }

  std::string wakeup() const {
    const std::optional<double> ms = harness_->scheduler.next_wakeup_ms();
    return ms ? std::to_string(static_cast<int64_t>(*ms)) : "-";
  }

  std::string copies() const {
    Words words;
    for (const BlockCopy& copy : copies_) words.push_back(std::to_string(copy.from) + ">" + std::to_string(copy.to));
    return joined(words);
  }

  std::string prompt_tokens() const {
    const PromptTokens& count = harness_->scheduler.prompt_tokens();
    return std::to_string(count.num_asked) + " " + std::to_string(count.num_saved) + " " +
           std::to_string(count.num_computed);
  }

  SchedulerConfig config_ = small_config();
  std::map<const Request*, RankScript> ranks_;
  ScenarioProposer proposer_;
  std::optional<Harness> harness_;
  std::vector<std::shared_ptr<const Request>> requests_;  // ranks_ names them
  double now_ms_ = 0;
  bool more_may_arrive_ = false;
  int32_t num_in_flight_ = 0;
  std::vector<BlockCopy> copies_;
  Words ended_;
};

void run_scenario(const std::filesystem::path& path) {
  std::ifstream in(path);
  REQUIRE(in.good());
  Scenario scenario;
  int line_number = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string place = path.filename().string() + ":" + std::to_string(++line_number) + ": " + line;
    INFO(place);
    REQUIRE_NOTHROW(scenario.run_line(line));
  }
  CHECK(line_number > 0);
}

}  // namespace

TEST_CASE("every step of every scenario has the shape that its file says") {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/tests/scheduler/scenarios"))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  CHECK(files.size() >= 20);
  for (const auto& file : files) run_scenario(file);
}

TEST_CASE("a line that means nothing is noticed") {
  Scenario scenario;
  scenario.run_line("budget 5");
  scenario.run_line("request 3+2");
  for (const char* line : {"budget 6", "budgets 5", "ahead 0:1", "apply", "request 3+2 color=red", "request 3", "draft",
                           "draft 0 8<0", "draft 0 8<-1 9", "draft 0 8<-1 9<-2"})
    CHECK_THROWS(scenario.run_line(line));
}

}  // namespace llmb::test
