#include "job/measured_stages.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/memory_limit.h"
#include "base/clock.h"
#include "base/core_parts.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "core/types.h"

namespace llmb {

namespace {

// Weights of a model that is measured: more than caches hold. A larger layer is measured where there are threads to make it.
constexpr int64_t kWeights = 16'000'000;
// Fewer are computed in the time that measuring takes.
constexpr int64_t kLeastWeights = 50'000'000;
constexpr int64_t kKvBytes = int64_t{64} << 20;
constexpr int32_t kPromptRows = 256;
// Where steps begin: chunks of recurrent states and groups of an int4 KV cache do.
constexpr int32_t kBorder = 32;
constexpr size_t kMostKinds = 4;
constexpr int32_t kSmallVocabulary = 512;
// Steps of all models take turns, so that a moment in which others use the machine is not one model's alone.
constexpr int kRounds = 9, kFewestRounds = 3;
constexpr double kLongMs = 500;  // of all rounds
// Where the best three of a model's steps differ by more, others use the machine, and nothing is believed.
constexpr double kSteady = 1.15;

// Rows of a step.
struct MeasuredRows {
  int32_t num_seqs = 1;
  int32_t rows_per_seq = 1;
  int32_t base = 0;  // position of the first one of each sequence

  int32_t num_rows() const { return num_seqs * rows_per_seq; }
  int32_t end() const { return base + rows_per_seq; }
  MeasuredRows of_beginnings() const { return {num_seqs, rows_per_seq, 0}; }
};

// Positions that a row at `position` sees in a layer.
int32_t num_seen(const LayerConfig& layer, int32_t position) {
  int32_t seen = layer.has_mixer && !layer.has_state ? position : 0;
  for (const int32_t limit : {layer.window, layer.chunk})
    if (limit > 0) seen = std::min(seen, limit);
  return seen;
}

bool cost_alike(const LayerConfig& a, const LayerConfig& b, int32_t position) {
  return a.has_state == b.has_state && a.has_mixer == b.has_mixer && a.has_mlp == b.has_mlp &&
         a.has_experts == b.has_experts && a.head_dim == b.head_dim && a.num_key_value_heads == b.num_key_value_heads &&
         a.intermediate_size == b.intermediate_size && num_seen(a, position) == num_seen(b, position);
}

// A backend with a model of some layers and a vocabulary; its steps' times.
class MeasuredModel {
 public:
  MeasuredModel(const BackendFactory& make_backend, const std::string& device, const ModelConfig& config,
                LoadOptions load, const MeasuredRows& rows, const MeasuredRows& prompt)
      : vocab_size_(config.vocab_size), first_rows_(std::min(load.block_size, load.max_model_len)) {
    const auto blocks_of = [&](int32_t tokens) { return static_cast<int32_t>(ceil_div(tokens, load.block_size)); };
    load.num_blocks_override = std::max(rows.num_seqs * blocks_of(rows.end()), blocks_of(prompt.end()));
    load.max_num_seqs = rows.num_seqs;
    load.max_num_batched_tokens = std::max({rows.num_rows(), prompt.num_rows(), first_rows_});
    load.max_model_len = std::max({rows.end(), prompt.end(), first_rows_});
    auto made = make_backend(device);
    status_ = made.status();
    if (!status_.ok()) return;
    backend_ = std::move(*made);
    status_ = backend_->load(config, load);
    if (status_.ok() && backend_->info().kind == DeviceKind::kCpu) fill_blocks();
  }

  bool is_ok() const { return status_.ok(); }
  // Milliseconds of a step; nothing where there was an error.
  double time(const MeasuredRows& rows) { return run(plan_of(rows)); }

 private:
  // All blocks get what a first one has: memory of a process that nobody wrote to is none yet.
  void fill_blocks() {
    run(plan_of({1, first_rows_, 0}));
    StepPlan plan = plan_of({1, 1, 0});
    for (BlockId block = 1; block < backend_->info().kv.num_blocks; ++block) plan.block_copies.push_back({0, 0, block});
    run(std::move(plan));
  }

  StepPlan plan_of(const MeasuredRows& rows) const {
    StepPlan plan;
    plan.clear();
    if (!status_.ok()) return plan;
    const BackendInfo& info = backend_->info();
    plan.block_size = info.kv.block_size;
    const auto num_blocks = static_cast<int32_t>(ceil_div(rows.end(), plan.block_size));
    for (int32_t s = 0; s < rows.num_seqs; ++s) {
      StepEntry& entry = plan.entries.emplace_back();
      entry.seq = s;
      entry.base = rows.base;
      if (info.num_state_slots > 0) entry.state_slot = s;
      for (int32_t i = 0; i < rows.rows_per_seq; ++i) plan.tokens.push_back((7 * s + i) % vocab_size_);
      for (int32_t b = 0; b < num_blocks; ++b) plan.block_ids.push_back(s * num_blocks + b);
      plan.query_start.push_back(plan.num_tokens());
      plan.block_start.push_back(static_cast<int32_t>(plan.block_ids.size()));
      plan.groups.push_back({s, s, s, s + 1, SampleMode::kSample});
      SampleRow& row = plan.sample_rows.emplace_back();
      row.group = s;
      row.token_row = plan.num_tokens() - 1;
      row.temperature = 1;
      row.rng = {1, static_cast<uint64_t>(s)};
    }
    return plan;
  }

  // Its milliseconds.
  double run(StepPlan plan) {
    if (!status_.ok()) return 0;
    plan.step = num_steps_++;
    const SteadyClock clock;
    StepOutput output;
    status_ = backend_->submit(plan);
    if (status_.ok()) status_ = backend_->wait(&output);
    return output.device_ms > 0 ? output.device_ms : clock.now_ms();
  }

  const int32_t vocab_size_, first_rows_;
  std::unique_ptr<Backend> backend_;
  Status status_;
  int64_t num_steps_ = 0;
};

// Measures parts of one model.
class StageMeasurement {
 public:
  StageMeasurement(const BackendFactory& make_backend, const std::string& device, const ModelConfig& config,
                   const LoadOptions& load, const RankPart& grid)
      : make_backend_(make_backend), device_(device), config_(config), load_(load) {
    config_.mtp.is_used = false;
    load_.load_format = LoadFormat::kDummy;
    load_.swap_space_gib = 0;
    load_.max_num_drafts = 0;
    load_.verifies_trees = false;
    load_.adapters.reset();
    load_.groups_layers = false;
    load_.block_size /= grid.num_slices();
    load_.cpu.weight_cache_dir.clear();
    load_.cpu.rounds_block_activations = false;
    load_.cpu.runs_in_wait = true;
    load_.cuda.draft_bytes = load_.draft_block_bytes = load_.lent_tokens = 0;
    const int64_t wanted = ceil_div(std::max(1, grid.rows.answer_rows), grid.context_size);
    answers_.num_seqs = static_cast<int32_t>(std::min<int64_t>({wanted, load.max_num_seqs, load.max_num_batched_tokens}));
    answers_.base = std::min(grid.rows.mean_position, load.max_model_len - 1) / kBorder * kBorder;
    prompts_.rows_per_seq = std::min({kPromptRows, load.max_num_batched_tokens, load.max_model_len});
    prompts_.base = std::min(answers_.base, load.max_model_len - prompts_.rows_per_seq) / kBorder * kBorder;
  }

  std::optional<MeasuredStages> measure() {
    std::vector<size_t> kind_of;  // [num_layers]
    for (int32_t i = 0; i < config_.num_hidden_layers; ++i) {
      LayerConfig layer = config_.layer(i);
      layer.kv_layer = -1;  // its own keys and values take hardly any time
      size_t kind = 0;
      while (kind < kinds_.size() && !cost_alike(kinds_[kind].layer, layer, answers_.base)) ++kind;
      if (kind == kinds_.size()) kinds_.emplace_back().layer = layer;
      ++kinds_[kind].count;
      kind_of.push_back(kind);
    }
    if (kinds_.size() > kMostKinds) return std::nullopt;
    // Where they look back very far, rows of answers are taken from further in front.
    for (const Kind& kind : kinds_)
      while (answers_.base > 0 && kv_bytes_of(kind.layer) > kKvBytes) answers_.base = answers_.base / 2 / kBorder * kBorder;
    for (Kind& kind : kinds_)
      if (!prepare(&kind)) return std::nullopt;
    std::unique_ptr<MeasuredModel> with_head;
    int32_t vocab_size = 0;
    if (!prepare_head(&with_head, &vocab_size) || !run_rounds()) return std::nullopt;
    for (const bool has_keys : {true, false})
      for (Kind& kind : kinds_)
        if (has_own_keys(kind.layer) == has_keys) settle(&kind);
    const double head_ms =
        std::max(0.0, timings_.back().ms - kind_with_keys()->answers_ms) * config_.vocab_size / vocab_size;
    MeasuredStages measured;
    StageCosts& costs = measured.costs;
    for (const size_t kind : kind_of) {
      costs.answers.push_back(nanoseconds(kinds_[kind].answers_ms));
      costs.prompts.push_back(nanoseconds(kinds_[kind].prompts_ms));
    }
    costs.head = nanoseconds(head_ms);
    measured.is_steady = spread_ <= kSteady;
    return measured;
  }

 private:
  struct Kind {
    LayerConfig layer;
    int32_t count = 0;
    std::unique_ptr<MeasuredModel> model = nullptr;
    int32_t num_layers = 0;                                  // of the model
    size_t first_timing = 0;
    double answers_ms = 0, prompts_ms = 0;                   // of one layer
    double answers_at_begin_ms = 0, prompts_at_begin_ms = 0;  // the same of rows that texts begin with
  };
  struct Timing {
    MeasuredModel* model = nullptr;
    MeasuredRows rows;
    std::vector<double> all_ms = {};
    double ms = 0;  // the least
  };

  static int64_t nanoseconds(double ms) { return std::llround(1e6 * ms); }
  static bool has_own_keys(const LayerConfig& layer) { return layer.has_mixer && !layer.has_state; }
  const Kind* kind_with_keys() const {  // null: there is none
    const auto found = std::find_if(kinds_.begin(), kinds_.end(), [](const Kind& kind) { return has_own_keys(kind.layer); });
    return found == kinds_.end() ? nullptr : &*found;
  }

  // also: behind the others, or null
  ModelConfig model_of(const LayerConfig& layer, int32_t num_layers, int32_t vocab_size,
                       const LayerConfig* also = nullptr) const {
    ModelConfig model = config_;
    model.layers.assign(static_cast<size_t>(num_layers), layer);
    if (also != nullptr) model.layers.push_back(*also);
    model.num_hidden_layers = static_cast<int32_t>(model.layers.size());
    model.vocab_size = vocab_size;
    model.vocab_size_per_layer_input = std::min(config_.vocab_size_per_layer_input, vocab_size);
    if (!layer.has_state) model.state = {};
    return model;
  }

  int64_t weights_of(const LayerConfig& layer) const {
    return model_of(layer, 1, 1).num_stored_matmul_params() - config_.hidden_size;
  }

  // Those of its keys and values, were they all fp32.
  int64_t kv_bytes_of(const LayerConfig& layer) const {
    const int64_t tokens = std::max(int64_t{answers_.num_seqs} * answers_.end(), int64_t{prompts_.end()});
    return tokens * 2 * model_of(layer, 1, 1).kv_size_of(0) * int64_t{sizeof(float)};
  }

  // Behind the last layer's attention only rows go on that are drawn: of prompts hardly any.
  double part_of_all_rows(const LayerConfig& layer) const {
    const auto of_queries_and_keys = static_cast<double>(config_.hidden_size * model_of(layer, 1, 1).qkv_size_of(0));
    if (kinds_.size() == 1) return 1;  // no step of prompts is timed
    return std::min(1.0, of_queries_and_keys / static_cast<double>(std::max<int64_t>(1, weights_of(layer))));
  }

  bool has_room(int64_t num_weights) const {
    // As they are made, in the form that products read, and a part more.
    const int64_t available = available_memory_bytes(), needed = 3 * num_weights * int64_t{sizeof(float)} + 2 * kKvBytes;
    return available <= 0 || needed <= available / 2;
  }

  // A model has to have keys and values: layers without any are measured beside one that has some. A recurrent state is that
  // of a text which begins: its cost is the same wherever.
  bool prepare(Kind* kind) {
    const Kind* const also = has_own_keys(kind->layer) ? nullptr : kind_with_keys();
    const int threads = load_.num_threads > 0 ? load_.num_threads : usable_cpu_count();
    const int64_t weights = std::max<int64_t>(1, weights_of(kind->layer));
    if (weights > kWeights * threads || (also == nullptr && !has_own_keys(kind->layer))) return false;
    const int64_t kv_bytes = std::max<int64_t>(1, kv_bytes_of(kind->layer));
    kind->num_layers = static_cast<int32_t>(
        std::clamp<int64_t>(std::min(ceil_div(kWeights, weights), kKvBytes / kv_bytes), 1, kind->count));
    if (!has_room(kind->num_layers * weights)) return false;
    const ModelConfig model = model_of(kind->layer, kind->num_layers, std::min(config_.vocab_size, kSmallVocabulary),
                                       also != nullptr ? &also->layer : nullptr);
    kind->model = std::make_unique<MeasuredModel>(make_backend_, device_, model, load_, answers_, prompts_);
    kind->first_timing = timings_.size();
    const bool begins = kind->layer.has_state;
    timings_.push_back({kind->model.get(), begins ? answers_.of_beginnings() : answers_});
    timings_.push_back({kind->model.get(), begins ? prompts_.of_beginnings() : prompts_});
    if (kinds_.size() == 1) timings_.pop_back();  // nobody asks for it
    if (also == nullptr && config_.has_states())
      for (const MeasuredRows& rows : {answers_, prompts_}) timings_.push_back({kind->model.get(), rows.of_beginnings()});
    return kind->model->is_ok();
  }

  // A model of one layer with a large vocabulary.
  bool prepare_head(std::unique_ptr<MeasuredModel>* model, int32_t* vocab_size) {
    const Kind& kind = *kind_with_keys();
    const int64_t most = std::max<int64_t>(kSmallVocabulary, kWeights / config_.hidden_size);
    *vocab_size = static_cast<int32_t>(std::min<int64_t>(config_.vocab_size, most));
    if (!has_room(weights_of(kind.layer) + 2 * int64_t{*vocab_size} * config_.hidden_size)) return false;
    *model = std::make_unique<MeasuredModel>(make_backend_, device_, model_of(kind.layer, 1, *vocab_size), load_, answers_,
                                             MeasuredRows());
    timings_.push_back({model->get(), answers_});
    return (*model)->is_ok();
  }

  bool run_rounds() {
    // Not timed: kernels and memory are used for the first time.
    for (const Timing& timing : timings_) timing.model->time(timing.rows);
    const SteadyClock clock;
    for (int round = 0; round < kRounds && (round < kFewestRounds || clock.now_ms() < kLongMs); ++round)
      for (Timing& timing : timings_) timing.all_ms.push_back(timing.model->time(timing.rows));
    for (Timing& timing : timings_) {
      std::sort(timing.all_ms.begin(), timing.all_ms.end());
      timing.ms = timing.all_ms[0];
      spread_ = std::max(spread_, timing.all_ms[kFewestRounds - 1] / std::max(1e-9, timing.ms));
    }
    return std::all_of(timings_.begin(), timings_.end(), [](const Timing& t) { return t.model->is_ok() && t.ms > 0; });
  }

  // The milliseconds of one layer. REQUIRES: those with keys come first
  void settle(Kind* kind) {
    const Timing* const own = &timings_[kind->first_timing];
    const double answers_ms = own[0].ms, prompts_ms = own[kinds_.size() > 1 ? 1 : 0].ms;
    if (!has_own_keys(kind->layer)) {
      const Kind& also = *kind_with_keys();
      const bool begins = kind->layer.has_state;
      const double also_answers_ms = begins ? also.answers_at_begin_ms : also.answers_ms;
      const double also_prompts_ms = begins ? also.prompts_at_begin_ms : also.prompts_ms;
      kind->answers_ms = std::max(0.0, answers_ms - also_answers_ms) / kind->num_layers;
      kind->prompts_ms = std::max(0.0, prompts_ms - also_prompts_ms * part_of_all_rows(also.layer)) / kind->num_layers;
      return;
    }
    const double num_of_prompts = kind->num_layers - 1 + part_of_all_rows(kind->layer);
    kind->answers_ms = answers_ms / kind->num_layers;
    kind->prompts_ms = prompts_ms / num_of_prompts;
    if (!config_.has_states()) return;
    const Timing* const at_begin = own + (kinds_.size() > 1 ? 2 : 1);
    kind->answers_at_begin_ms = at_begin[0].ms / kind->num_layers;
    kind->prompts_at_begin_ms = at_begin[1].ms / num_of_prompts;
  }

  const BackendFactory& make_backend_;
  const std::string device_;
  ModelConfig config_;
  LoadOptions load_;
  MeasuredRows answers_, prompts_;
  std::vector<Kind> kinds_;
  std::vector<Timing> timings_;  // the head's last
  double spread_ = 1;
};

// Threads that a rank on CPUs has.
int threads_of_rank(const RankOptions& ranks) {
  if (ranks.orders[0].num_threads > 0) return ranks.orders[0].num_threads;
  return std::max(1, static_cast<int>(divide_cores(usable_cpus(), ranks.grid.num_ranks())[0].size()));
}

}  // namespace

std::optional<MeasuredStages> measure_stages(const BackendFactory& make_backend, const std::string& device,
                                             const ModelConfig& config, const LoadOptions& load, const RankPart& grid) {
  const bool has_few_bits = config.is_dequantised || config.has_quantization;
  if (has_few_bits || (grid.tensor_size > 1 && config.experts.num_experts > 0)) return std::nullopt;
  const ModelConfig own = config_of(config, share_of(config, {0, grid.tensor_size, 1}));
  return StageMeasurement(make_backend, device, own, load, grid).measure();
}

void balance_stages(const BackendFactory& make_backend, const std::string& device, const ModelConfig& config,
                    LoadOptions load, RankOptions* ranks) {
  RankPart grid = ranks->grid;
  if (grid.num_stages == 1 || config.num_stored_matmul_params() < kLeastWeights) return;
  const SteadyClock clock;
  if (ranks->device == DeviceKind::kCpu) load.num_threads = threads_of_rank(*ranks);
  const std::optional<MeasuredStages> measured = measure_stages(make_backend, device, config, load, grid);
  const double ms = clock.now_ms();
  if (!measured) return;
  StageCosts costs = counted_costs(config, grid.rows.mean_position);
  if (measured->is_steady) {
    costs = measured->costs;
    ranks->grid.rows.costs = costs;
    for (WorkerOrder& order : ranks->orders) order.stage_rows.costs = costs;
  }
  const std::vector<int64_t> bounds = cut_layers(costs, grid.rows.prompt_permille, grid.num_stages);
  std::string layers;
  for (size_t stage = 0; stage + 1 < bounds.size(); ++stage)
    layers += (stage == 0 ? "" : stage + 2 == bounds.size() ? " and " : ", ") +
              std::to_string(bounds[stage + 1] - bounds[stage]);
  int64_t sum = 0;
  for (const int64_t cost : costs.answers) sum += cost;
  char head[160];
  std::snprintf(head, sizeof head, "%.1f of them (%s %.1f s)",
                static_cast<double>(costs.head) * config.num_hidden_layers / static_cast<double>(std::max<int64_t>(1, sum)),
                measured->is_steady ? "measured in" : "counted, as this machine is too busy to measure it in", ms / 1e3);
  log_info("stages have " + layers + " layers; in steps of answers the LM head takes as long as " + head);
}

}  // namespace llmb
