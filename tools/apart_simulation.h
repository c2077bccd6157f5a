// Instances of a model on a simulated cluster answer requests as they arrive: in one pool with chunked prefill, or
// with prefill and decode apart. Schedulers are the real ones, the ledger backend keeps books of every block, blocks
// move as the engine moves them (engine/prompt_transfer.h), and a step takes what the step model says
// (tools/step_model.h). So it is deterministic, and a block that went astray is an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "base/check.h"
#include "engine/prompt_transfer.h"
#include "scheduler/scheduler.h"
#include "tools/step_model.h"

namespace llmb {

struct SimulatedArrival {
  double ms = 0;
  int32_t num_prompt_tokens = 0, num_output_tokens = 0;
};

// Lines "time,prompt tokens,output tokens", as Azure's traces of LLM inference, the first `count` that fit. From the
// first arrival on.
inline std::vector<SimulatedArrival> read_arrivals(const char* path, size_t count, int32_t max_model_len) {
  std::ifstream file(path);
  std::vector<SimulatedArrival> arrivals;
  for (std::string line; arrivals.size() < count && std::getline(file, line);) {
    int hours = 0, minutes = 0, prompt = 0, output = 0;
    double seconds = 0;
    if (std::sscanf(line.c_str(), "%*d-%*d-%*d %d:%d:%lf,%d,%d", &hours, &minutes, &seconds, &prompt, &output) != 5)
      continue;
    if (prompt < 1 || output < 1 || prompt + output > max_model_len) continue;
    arrivals.push_back({1000 * (3600.0 * hours + 60.0 * minutes + seconds), prompt, output});
  }
  const double first = arrivals.empty() ? 0 : arrivals[0].ms;
  for (SimulatedArrival& arrival : arrivals) arrival.ms -= first;
  return arrivals;
}

struct ClusterSetup {
  int32_t num_pool = 0;                    // instances that compute prompts and answers,
  int32_t num_prefill = 0, num_decode = 0;  // or prompts on the first, answers on the others
  int32_t max_num_batched_tokens = 2048;   // of a pool's step, or of one of prompts
  int32_t max_num_seqs = 256;
  int32_t max_model_len = 8192;
  int32_t num_blocks = 0;  // of an instance
  LinkModel between;       // instances
  double block_bytes = 0;  // that each rank of an instance sends of a block
};

struct SimulatedLatency {
  double ttft_ms = 0, tpot_ms = 0;
};

struct SimulatedCluster {
  std::vector<SimulatedLatency> latencies;    // [arrivals]
  std::vector<std::vector<TokenId>> answers;  // [arrivals]
  double end_ms = 0;
  int64_t num_prompt_tokens_decode = 0;  // that the instances for answers computed
};

class ClusterSimulation {
 public:
  ClusterSimulation(const ClusterSetup& setup, const StepModel& model) : setup_(setup), model_(model) {
    for (int32_t i = 0; i < setup.num_pool; ++i) pool_.push_back(make_instance(setup.max_num_batched_tokens));
    for (int32_t i = 0; i < setup.num_prefill; ++i) prefill_.push_back(make_instance(setup.max_num_batched_tokens));
    for (int32_t i = 0; i < setup.num_decode; ++i) decode_.push_back(make_instance(setup.max_num_batched_tokens));
  }

  // A prompt's tokens: no two requests have a beginning in common.
  static std::shared_ptr<Request> request_of(const SimulatedArrival& arrival, size_t index) {
    auto request = std::make_shared<Request>();
    for (int32_t t = 0; t < arrival.num_prompt_tokens; ++t)
      request->prompt_tokens.push_back(static_cast<TokenId>((index * 7919 + static_cast<size_t>(t) * 31) % 30000));
    request->params.sampling.temperature = 0;
    request->params.stop.max_tokens = arrival.num_output_tokens;
    request->params.stop.ignore_eos = true;
    return request;
  }
  static ModelConfig ledger_config() {
    ModelConfig config;
    config.vocab_size = 32000;
    return config;
  }

  // Arrival times are multiplied by `stretch`. Call once.
  SimulatedCluster run(const std::vector<SimulatedArrival>& arrivals, double stretch) {
    arrivals_ = &arrivals, stretch_ = stretch;
    result_.latencies.resize(arrivals.size()), result_.answers.resize(arrivals.size());
    size_t next = 0;
    while (num_done_ < arrivals.size()) {
      now_ms_ = next < arrivals.size() ? stretch * arrivals[next].ms : std::numeric_limits<double>::infinity();
      for (const Transfer& transfer : transfers_) now_ms_ = std::min(now_ms_, transfer.end_ms);
      for_all([&](Instance& instance, bool) { if (instance.is_busy) now_ms_ = std::min(now_ms_, instance.end_ms); });
      for (; next < arrivals.size() && stretch * arrivals[next].ms <= now_ms_; ++next) arrive(next);
      for_all([&](Instance& instance, bool is_prefill) {
        if (instance.is_busy && instance.end_ms <= now_ms_) end_step(instance, is_prefill);
      });
      receive_transfers();
      for_all([&](Instance& instance, bool) { if (!instance.is_busy) begin_step(instance); });
    }
    for (const auto& instance : decode_)
      result_.num_prompt_tokens_decode += instance->scheduler.prompt_tokens().num_computed;
    result_.end_ms = now_ms_;
    return std::move(result_);
  }

 private:
  struct Instance {
    Instance(std::unique_ptr<Backend> with, const SchedulerConfig& config)
        : backend(std::move(with)), scheduler(config) {}
    std::unique_ptr<Backend> backend;
    Scheduler scheduler;
    StepPlan plan;
    bool is_busy = false;
    double end_ms = 0;               // of the step
    std::vector<size_t> request_of;  // [sequences]
    int64_t load = 0;                // prompt tokens or requests that it has yet to do
  };
  struct Transfer {
    double end_ms = 0;
    size_t request = 0;
    PromptBlocks blocks;
  };

  std::unique_ptr<Instance> make_instance(int32_t max_num_batched_tokens) const {
    SchedulerConfig config;
    config.max_num_seqs = setup_.max_num_seqs;
    config.max_num_batched_tokens = max_num_batched_tokens;
    config.max_model_len = setup_.max_model_len;
    config.num_blocks = setup_.num_blocks;
    config.enable_prefix_caching = true;
    config.preemption = PreemptionMode::kSwap;
    LoadOptions load;
    load.block_size = config.block_size;
    load.num_blocks_override = config.num_blocks;
    load.swap_space_gib = 1e6;  // as many blocks as the pool has, as no lengths of sequences are given
    std::unique_ptr<Backend> backend = make_ledger_backend({});
    LLMB_CHECK(backend->load(ledger_config(), load).ok());
    config.num_host_blocks = backend->info().num_host_blocks;
    return std::make_unique<Instance>(std::move(backend), config);
  }

  template <class F>
  void for_all(const F& f) {
    for (const auto& instance : pool_) f(*instance, false);
    for (const auto& instance : prefill_) f(*instance, true);
    for (const auto& instance : decode_) f(*instance, false);
  }

  static Instance& least_loaded(const std::vector<std::unique_ptr<Instance>>& instances) {
    return **std::min_element(instances.begin(), instances.end(),
                              [](const auto& a, const auto& b) { return a->load < b->load; });
  }

  SeqId add(Instance& instance, std::shared_ptr<const Request> request, size_t index, int64_t load) {
    const auto added = instance.scheduler.add(std::move(request), now_ms_);
    LLMB_CHECK(std::holds_alternative<SeqId>(added));
    instance.request_of.push_back(index);
    instance.load += load;
    return std::get<SeqId>(added);
  }

  void arrive(size_t index) {
    const std::shared_ptr<Request> request = request_of((*arrivals_)[index], index);
    const int32_t block_size = SchedulerConfig().block_size;
    if (!pool_.empty()) {
      add(least_loaded(pool_), request, index, 1);
    } else if (num_movable_tokens(*request, block_size) > 0) {
      auto prompt = prompt_request(*request, block_size);
      const auto load = static_cast<int64_t>(prompt->prompt_tokens.size());
      add(least_loaded(prefill_), std::move(prompt), index, load);
    } else {
      add(least_loaded(decode_), request, index, 1);
    }
  }

  void receive_transfers() {
    std::stable_sort(transfers_.begin(), transfers_.end(),
                     [](const Transfer& a, const Transfer& b) { return a.end_ms < b.end_ms; });
    size_t count = 0;
    for (; count < transfers_.size() && transfers_[count].end_ms <= now_ms_; ++count) {
      const Transfer& transfer = transfers_[count];
      Instance& instance = least_loaded(decode_);
      const SeqId seq =
          add(instance, request_of((*arrivals_)[transfer.request], transfer.request), transfer.request, 1);
      write_prompt(transfer.blocks, seq, instance.scheduler, *instance.backend);
    }
    transfers_.erase(transfers_.begin(), transfers_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  void begin_step(Instance& instance) {
    if (!instance.scheduler.has_work() || !instance.scheduler.schedule(now_ms_, true, &instance.plan)) return;
    const Status status = instance.backend->submit(instance.plan);
    LLMB_CHECK_MSG(status.ok(), status.message());
    instance.is_busy = true;
    instance.end_ms = now_ms_ + model_.step_ms(work_of(instance.plan));
  }

  // Entries of a block or less read their context as decoding rows do.
  static StepWork work_of(const StepPlan& plan) {
    StepWork work;
    work.num_rows = plan.num_tokens();
    work.num_samples = plan.num_samples();
    for (int32_t e = 0; e < plan.num_entries(); ++e) {
      const double rows = plan.num_rows(e), context = plan.max_context_len(e);
      if (plan.num_rows(e) <= plan.block_size) work.num_context_tokens += context;
      else work.num_pairs += rows * (context - rows / 2);
    }
    return work;
  }

  void end_step(Instance& instance, bool is_prefill) {
    instance.is_busy = false;
    LLMB_CHECK(instance.backend->wait(&output_).ok());
    instance.scheduler.apply(instance.plan, output_, &updates_);
    for (const SequenceUpdate& update : updates_) {
      const size_t index = instance.request_of[static_cast<size_t>(update.seq)];
      if (is_prefill) {
        Transfer transfer{0, index, read_prompt(instance.plan, update.seq, *instance.backend).value()};
        instance.load -= transfer.blocks.num_tokens;
        const LinkModel& link = setup_.between;
        transfer.end_ms = now_ms_ + link.base_ms + link.hop_ms +
                          static_cast<double>(transfer.blocks.places.size()) * setup_.block_bytes / link.bytes_per_s * 1000;
        transfers_.push_back(std::move(transfer));
      } else {
        take_token(index, update);
        instance.load -= update.finish.has_value();
      }
    }
  }

  void take_token(size_t index, const SequenceUpdate& update) {
    SimulatedLatency& latency = result_.latencies[index];
    std::vector<TokenId>& answer = result_.answers[index];
    const double since_ms = now_ms_ - stretch_ * (*arrivals_)[index].ms;
    if (answer.empty()) latency.ttft_ms = since_ms;
    answer.push_back(update.token);
    if (!update.finish) return;
    const auto num_gaps = static_cast<double>(answer.size() - 1);
    latency.tpot_ms = num_gaps > 0 ? (since_ms - latency.ttft_ms) / num_gaps : 0;
    ++num_done_;
  }

  const ClusterSetup setup_;
  const StepModel model_;
  std::vector<std::unique_ptr<Instance>> pool_, prefill_, decode_;
  std::vector<Transfer> transfers_;  // on their way
  const std::vector<SimulatedArrival>* arrivals_ = nullptr;
  double stretch_ = 1, now_ms_ = 0;
  size_t num_done_ = 0;
  StepOutput output_;
  std::vector<SequenceUpdate> updates_;
  SimulatedCluster result_;
};

// The share of requests that meet both.
inline double share_within(const std::vector<SimulatedLatency>& latencies, double ttft_ms, double tpot_ms) {
  const auto is_within = [&](const SimulatedLatency& l) { return l.ttft_ms <= ttft_ms && l.tpot_ms <= tpot_ms; };
  return static_cast<double>(std::count_if(latencies.begin(), latencies.end(), is_within)) /
         static_cast<double>(latencies.size());
}

}  // namespace llmb
