#include "job/worker_pool.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/active_request.h"

namespace llmb {

namespace {

constexpr int kMaxVainStarts = 3;
constexpr double kVainPauseMs = 200;  // before the next start, for each of them
constexpr double kMaxPassedMs = 100;  // between two looks; more is this process's own pause

std::string host_name() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this machine";
}

}  // namespace

WorkerPool::WorkerPool(WorkerPoolOptions options, StartWorker start, const std::atomic<int>& interrupted)
    : options_(std::move(options)),
      start_(std::move(start)),
      interrupted_(interrupted),
      places_(static_cast<size_t>(options_.count)),
      dealer_(options_.count, options_.num_slots) {
  const auto is_decoding = [](const WorkerOrder& order) { return order.role == WorkerRole::kDecode; };
  if (std::none_of(options_.orders.begin(), options_.orders.end(), is_decoding)) return;
  decoder_.emplace(options_.count, options_.num_slots);
  for (int i = 0; i < options_.count; ++i) (role_of(i) == WorkerRole::kDecode ? dealer_ : *decoder_).give_up(i);
}

WorkerPool::~WorkerPool() {
  for (Place& place : places_)
    if (place.process) place.process->kill();
}

std::string WorkerPool::name_of(int index) const {
  const Place& place = places_[static_cast<size_t>(index)];
  std::string name = "worker " + std::to_string(index) + " on " + host_name();
  if (decoder_) name = (role_of(index) == WorkerRole::kDecode ? "decode " : "prefill ") + name;
  if (place.process) name += " (pid " + std::to_string(place.process->pid()) + ")";
  return name + ", step " + std::to_string(place.report.steps.num_steps);
}

std::string WorkerPool::workers_in_words() const {
  if (options_.count == 1) return "1 worker on ";
  if (!decoder_) return std::to_string(options_.count) + " workers, each on ";
  const auto num_decoding = std::count_if(options_.orders.begin(), options_.orders.end(), [](const WorkerOrder& order) {
    return order.role == WorkerRole::kDecode;
  });
  return std::to_string(options_.count - num_decoding) + " prefill and " + std::to_string(num_decoding) +
         " decode workers, each on ";
}

void WorkerPool::start(int index) {
  Place& place = places_[static_cast<size_t>(index)];
  Result<StartedProcess> started = start_(index, options_.count);
  if (!started.ok()) {
    place.is_given_up = true;
    dealer_of(index).give_up(index);
    last_words_ = "worker " + std::to_string(index) + ": " + started.status().message();
    warn(last_words_);
    return;
  }
  place.process = std::make_unique<WorkerProcess>(std::move(*started));
  place.has_finished = false;
  place.silent_ms = 0;
  place.report = {};
  place.failure.reset();
  place.process->send(MessageKind::kOrder, pack_message(options_.orders[static_cast<size_t>(index)]));
}

void WorkerPool::start_those_due() {
  if (is_ending_) return;
  const bool has_ready = std::any_of(places_.begin(), places_.end(), [](const Place& place) { return place.is_ready; });
  for (int i = 0; i < options_.count; ++i) {
    const Place& place = places_[static_cast<size_t>(i)];
    if (place.process || place.is_given_up || monotonic_ms() < place.restart_at_ms) continue;
    start(i);
    if (options_.starts_one_first && !has_ready) return;
  }
}

// One of each kind that there is.
bool WorkerPool::is_any_left() const {
  bool is_any[2] = {false, !decoder_};  // by whether they decode only
  for (int i = 0; i < options_.count; ++i)
    is_any[role_of(i) == WorkerRole::kDecode] |= !places_[static_cast<size_t>(i)].is_given_up;
  return is_any[0] && is_any[1];
}

// Waits for messages, and takes them.
void WorkerPool::exchange(double timeout_ms) {
  std::vector<pollfd> sockets;
  std::vector<int> owners;
  for (int i = 0; i < options_.count; ++i) {
    const auto& process = places_[static_cast<size_t>(i)].process;
    if (!process) continue;
    sockets.push_back({process->socket(), static_cast<short>(process->has_unsent() ? POLLIN | POLLOUT : POLLIN), 0});
    owners.push_back(i);
  }
  ::poll(sockets.data(), sockets.size(), static_cast<int>(timeout_ms));
  std::vector<Message> messages;
  for (size_t k = 0; k < sockets.size(); ++k) {
    if (sockets[k].revents == 0) continue;
    const int index = owners[k];
    Place& place = places_[static_cast<size_t>(index)];
    messages.clear();
    const bool is_open = place.process->exchange(&messages);
    for (const Message& message : messages) take(index, message);
    if (!is_open && place.failure) lose(index, place.failure->message, place.failure->hangs);
    else if (!is_open) lose(index, place.process->ending());
  }
  count_silence();
}

// Time in which this process was stopped or held up does not count.
void WorkerPool::count_silence() {
  const double now_ms = monotonic_ms();
  const double passed_ms = std::min(now_ms - std::exchange(last_look_ms_, now_ms), kMaxPassedMs);
  for (int i = 0; i < options_.count; ++i) {
    Place& place = places_[static_cast<size_t>(i)];
    if (!place.process) continue;
    place.silent_ms += passed_ms;
    if (place.silent_ms < options_.silence_ms) continue;
    place.process->kill();
    lose(i, "no sign of life for " + std::to_string(static_cast<int>(options_.silence_ms + 999) / 1000) + " s",
         /*hangs=*/true);
  }
}

void WorkerPool::take(int index, const Message& message) {
  Place& place = places_[static_cast<size_t>(index)];
  place.silent_ms = 0;
  switch (message.kind) {
    case MessageKind::kReady:
      place.is_ready = true;
      if (info_.device.empty()) {
        info_ = unpack_message<BackendInfo>(message.payload);
        info_.device = workers_in_words() + info_.device;
      }
      break;
    case MessageKind::kAnswer:
      return take_answer(index, message);
    case MessageKind::kBlocks:
      return take_blocks(index, message);
    case MessageKind::kFinished:
      place.has_finished = true;
      [[fallthrough]];
    case MessageKind::kReport:
      place.report = unpack_message<WorkerReport>(message.payload);
      break;
    case MessageKind::kFailed:
      place.failure = unpack_message<WorkerFailure>(message.payload);
      break;
    default:
      break;
  }
}

void WorkerPool::take_answer(int index, const Message& message) {
  AnswerMessage answer = unpack_message<AnswerMessage>(message.payload);
  const std::optional<WorkItem> row = dealer_of(index).finish(index, answer.ordinal);
  if (!row || run_ == nullptr) return;
  places_[static_cast<size_t>(index)].num_vain = 0;
  run_->sink.put(finished_item(std::move(answer), *row->request));
}

// An interrupt leaves rows whose answer is not begun.
void WorkerPool::take_blocks(int index, const Message& message) {
  BlocksMessage blocks = unpack_message<BlocksMessage>(message.payload);
  std::optional<WorkItem> row = dealer_.finish(index, blocks.ordinal);
  if (!row || run_ == nullptr) return;
  places_[static_cast<size_t>(index)].num_vain = 0;
  if (run_->num_interrupts > 0) {
    ++num_left_;
    return;
  }
  num_block_bytes_ += static_cast<int64_t>(blocks.packed_blocks.size());
  blocks_[blocks.ordinal] = std::move(blocks.packed_blocks);
  decoder_->add(std::move(*row));
}

// The place's process is of no use any more: its rows go to others.
void WorkerPool::lose(int index, const std::string& how, bool hangs) {
  Place& place = places_[static_cast<size_t>(index)];
  const size_t num_in_hand = dealer_of(index).num_in_hand(index);
  const std::string words = name_of(index) + ": " + how;
  const bool is_refused = place.failure && !place.is_ready;
  const std::vector<WorkItem> guilty = dealer_of(index).lose(index);
  add_report(place.report, role_of(index) == WorkerRole::kPrefill);
  place.process.reset();
  place.is_ready = place.has_start = place.has_no_more = false;
  if (is_ending_) {
    num_left_ += static_cast<int64_t>(guilty.size());
    return;
  }
  last_words_ = words;
  for (const WorkItem& row : guilty) put_error(row, how);
  place.num_vain = guilty.empty() ? place.num_vain + 1 : 0;
  place.is_given_up = is_refused || hangs || place.num_vain >= kMaxVainStarts;
  if (place.is_given_up) dealer_of(index).give_up(index);
  place.restart_at_ms = monotonic_ms() + kVainPauseMs * std::max(0, place.num_vain - 1);
  warn(words + (num_in_hand > 0 ? "; the " + std::to_string(num_in_hand) + " rows that it had are dealt again" : "") +
       (place.is_given_up ? "; it is not started again" : "; it is started again"));
}

void WorkerPool::put_error(const WorkItem& row, const std::string& how) {
  Completion completion = completion_for(*row.request);
  completion.error = RequestError{"worker_died",
                                  "each of " + std::to_string(RowDealer::kGuiltyDeaths) +
                                      " workers that computed this row alone ended; the last: " + how,
                                  std::nullopt};
  run_->sink.put({row.ordinal, std::move(completion), {}});
}

// While workers load, words are held back: where none can, the run's error says it all.
void WorkerPool::warn(const std::string& words) {
  if (run_ == nullptr) warnings_.push_back(words);
  else options_.warn(words);
}

std::optional<JobStop> WorkerPool::stop_of_load() const {
  for (const Place& place : places_)
    if (place.failure) return JobStop{place.failure->end, place.failure->message};
  return JobStop{JobEnd::kDeviceFault, "no worker is left: " + last_words_};
}

std::optional<JobStop> WorkerPool::load(const BackendFactory&) {
  last_look_ms_ = monotonic_ms();
  while (info_.device.empty()) {
    if (interrupted_.load() > 0) return JobStop{JobEnd::kInterrupted, ""};
    start_those_due();
    if (!is_any_left()) return stop_of_load();
    exchange(kMaxPassedMs);
  }
  return {};
}

void WorkerPool::add_report(const WorkerReport& report, bool is_prefill) {
  const double later_ms = run_ != nullptr ? std::max(0.0, report.start_ms - run_->start_monotonic_ms) : 0;
  StepMetrics steps = report.steps;
  if (is_prefill) {  // who goes on finds the prompt there: what that asks for counts
    steps.prompt_tokens.num_saved -= steps.prompt_tokens.num_asked;
    steps.prompt_tokens.num_asked = 0;
  }
  metrics_.add(steps, later_ms);
  num_ended_input_tokens_ += report.progress.num_input_tokens;
  num_ended_output_tokens_ += report.progress.num_output_tokens;
  SpeculationMetrics& all = speculation_;
  const SpeculationMetrics& s = report.speculation;
  if (all.drafters.size() < s.drafters.size()) all.drafters.resize(s.drafters.size());
  for (size_t i = 0; i < s.drafters.size(); ++i) {
    all.drafters[i].name = s.drafters[i].name;
    all.drafters[i].num_steps += s.drafters[i].num_steps;
    all.drafters[i].num_drafted += s.drafters[i].num_drafted;
    all.drafters[i].num_accepted += s.drafters[i].num_accepted;
  }
  all.num_steps += s.num_steps;
  all.num_tree_steps += s.num_tree_steps;
  all.num_groups += s.num_groups;
  all.num_given += s.num_given;
  all.predicted_saved_ms += s.predicted_saved_ms;
  all.blocks.most += s.blocks.most, all.blocks.num_taken_back += s.blocks.num_taken_back;
  all.measured_saved_ms += s.measured_saved_ms;
}

}  // namespace llmb
