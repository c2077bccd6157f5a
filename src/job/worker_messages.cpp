#include "job/worker_messages.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/packed_bytes.h"
#include "core/kv_layout.h"
#include "core/layer_groups.h"
#include "engine/active_request.h"
#include "engine/step_timeline.h"
#include "job/packed_answer.h"

namespace llmb {

// Bindings name every member, so that one more does not compile until it is here.
template <typename F>
void each_member(StageCosts& costs, F f) {
  auto& [prompts, answers, head] = costs;
  f(prompts), f(answers), f(head);
}

template <typename F>
void each_member(StageRows& rows, F f) {
  auto& [prompt_permille, mean_position, answer_rows, costs] = rows;
  f(prompt_permille), f(mean_position), f(answer_rows), f(costs);
}

template <typename F>
void each_member(WorkerOrder& order, F f) {
  auto& [role, count, device, inventory, dtype, arithmetic, seqs, tokens, block_size, threads, kv_bytes, swap_gib, watchdog,
         merged, stage_rows] = order;
  f(role), f(count), f(device), f(inventory), f(dtype), f(arithmetic), f(seqs), f(tokens), f(block_size), f(threads);
  f(kv_bytes), f(swap_gib), f(watchdog), f(merged), f(stage_rows);
}

template <typename F>
void each_member(StepCost::Point& point, F f) {
  auto& [num_rows, ms, num_context_tokens, num_pairs] = point;
  f(num_rows), f(ms), f(num_context_tokens), f(num_pairs);
}

template <typename F>
void each_member(StepCost::Curve& curve, F f) {
  auto& [points, deviations, wall_share] = curve;
  f(points), f(deviations), f(wall_share);
}

template <typename F>
void each_member(WorkerStart& start, F f) {
  auto& [step_cost, measures_limits] = start;
  f(step_cost), f(measures_limits);
}

template <typename F>
void each_member(RowMessage& row, F f) {
  auto& [ordinal, arrival_ms, packed_input, packed_blocks] = row;
  f(ordinal), f(arrival_ms), f(packed_input), f(packed_blocks);
}

template <typename F>
void each_member(BlocksMessage& message, F f) {
  auto& [ordinal, packed_blocks] = message;
  f(ordinal), f(packed_blocks);
}

template <typename F>
void each_member(BlockPlace& place, F f) {
  auto& [layer_group, index] = place;
  f(layer_group), f(index);
}

template <typename F>
void each_member(PromptBlocks& blocks, F f) {
  auto& [num_tokens, places, bytes, scheduled_ms, num_cached] = blocks;
  f(num_tokens), f(places), f(bytes), f(scheduled_ms), f(num_cached);
}

template <typename F>
void each_member(LayerGroups& groups, F f) {
  auto& [windows, group_of, planes, parts, per_plane, num_planes] = groups;
  f(windows), f(group_of), f(planes), f(parts), f(per_plane), f(num_planes);
}

template <typename F>
void each_member(KvHeads& heads, F f) {
  auto& [num_heads, head_dim] = heads;
  f(num_heads), f(head_dim);
}

template <typename F>
void each_member(KvLayout& kv, F f) {
  auto& [num_layers, num_kv_heads, head_dim, block_size, num_blocks, dtype, groups, heads, latent_dim, hidden_size] = kv;
  f(num_layers), f(num_kv_heads), f(head_dim), f(block_size), f(num_blocks), f(dtype), f(groups), f(heads);
  f(latent_dim), f(hidden_size);
}

template <typename F>
void each_member(BackendInfo& info, F f) {
  auto& [kind, device, kv, weight_bytes, max_plans, max_drafts, verifies_trees, copies_blocks, runs_first_layers,
         has_mtp, num_heads, scores_prompts, max_best, num_host_blocks, swap_bytes_per_s, num_states, num_snapshots,
         state_period, max_idle_blocks, block_bytes, state_bytes, draft_block_bytes, lent_tokens, load_ms] = info;
  f(kind), f(device), f(kv), f(weight_bytes), f(max_plans), f(max_drafts), f(verifies_trees), f(copies_blocks);
  f(runs_first_layers), f(has_mtp), f(num_heads), f(scores_prompts), f(max_best), f(num_host_blocks), f(swap_bytes_per_s);
  f(num_states), f(num_snapshots), f(state_period), f(max_idle_blocks), f(block_bytes), f(state_bytes);
  f(draft_block_bytes), f(lent_tokens), f(load_ms);
}

template <typename F>
void each_member(RequestError& error, F f) {
  auto& [code, message, param, byte_offset] = error;
  f(code), f(message), f(param), f(byte_offset);
}

template <typename F>
void each_member(DraftedTokens& tokens, F f) {
  auto& [drafter, num_steps, num_drafted, num_accepted] = tokens;
  f(drafter), f(num_steps), f(num_drafted), f(num_accepted);
}

template <typename F>
void each_member(RequestLatency& latency, F f) {
  auto& [queue, ttft, tpot, e2e, itl_p50, itl_p90, itl_p99, preemptions, cached, drafted] = latency;
  f(queue), f(ttft), f(tpot), f(e2e), f(itl_p50), f(itl_p90), f(itl_p99), f(preemptions), f(cached), f(drafted);
}

template <typename F>
void each_member(AnswerMessage& message, F f) {
  auto& [ordinal, error, answer, latency, itl_ms] = message;
  f(ordinal), f(error), f(answer), f(latency), f(itl_ms);
}

template <typename F>
void each_member(EngineProgress& progress, F f) {
  auto& [now_ms, num_input, num_output, num_running, num_waiting, kv_use, running_tokens, active_tokens] = progress;
  f(now_ms), f(num_input), f(num_output), f(num_running), f(num_waiting), f(kv_use), f(running_tokens);
  f(active_tokens);
}

template <typename F>
void each_member(PromptTokens& tokens, F f) {
  auto& [num_asked, num_saved, num_computed] = tokens;
  f(num_asked), f(num_saved), f(num_computed);
}

template <typename F>
void each_member(TimeShares& times, F f) {
  auto& [prefill, decode, recomputed, tail, gap] = times;
  f(prefill), f(decode), f(recomputed), f(tail), f(gap);
}

template <typename F>
void each_member(TimelineBin& bin, F f) {
  auto& [busy_ms, num_input, num_output, running_ms, waiting_ms, kv_use_ms] = bin;
  f(busy_ms), f(num_input), f(num_output), f(running_ms), f(waiting_ms), f(kv_use_ms);
}

template <typename F>
void each_member(StepTimeline& timeline, F f) {
  double bin_ms = timeline.bin_ms();
  std::vector<TimelineBin> bins = timeline.bins();
  f(bin_ms), f(bins);
  timeline = StepTimeline(bin_ms, std::move(bins));
}

template <typename F>
void each_member(RankTimes& times, F f) {
  auto& [steps_ms, busy_ms] = times;
  f(steps_ms), f(busy_ms);
}

template <typename F>
void each_member(StepMetrics& metrics, F f) {
  auto& [num_steps, busy_ms, batch_size_sum, flops, context_read, kv_used, kv_allocated, kv_allocated_max,
         prompt_tokens, block_copies, swapped_out, swapped_in, evictions, adapter_reads, recomputed, times,
         ranks, timeline] = metrics;
  f(num_steps), f(busy_ms), f(batch_size_sum), f(flops), f(context_read), f(kv_used), f(kv_allocated);
  f(kv_allocated_max), f(prompt_tokens), f(block_copies), f(swapped_out), f(swapped_in), f(evictions);
  f(adapter_reads), f(recomputed), f(times), f(ranks), f(timeline);
}

template <typename F>
void each_member(SpeculationMetrics::Kind& kind, F f) {
  auto& [name, num_steps, num_drafted, num_accepted] = kind;
  f(name), f(num_steps), f(num_drafted), f(num_accepted);
}

template <typename F>
void each_member(DraftBlocks& blocks, F f) {
  auto& [most, num_taken_back] = blocks;
  f(most), f(num_taken_back);
}

template <typename F>
void each_member(SpeculationMetrics& metrics, F f) {
  auto& [drafters, num_steps, num_tree_steps, num_groups, num_given, predicted_saved_ms, measured_saved_ms, blocks] =
      metrics;
  f(drafters), f(num_steps), f(num_tree_steps), f(num_groups), f(num_given), f(predicted_saved_ms);
  f(measured_saved_ms), f(blocks);
}

template <typename F>
void each_member(MachineLimits& limits, F f) {
  auto& [flops_per_s, bytes_per_s] = limits;
  f(flops_per_s), f(bytes_per_s);
}

template <typename F>
void each_member(WorkerReport& report, F f) {
  auto& [start_ms, progress, steps, speculation, step_cost, limits, num_left] = report;
  f(start_ms), f(progress), f(steps), f(speculation), f(step_cost), f(limits), f(num_left);
}

template <typename F>
void each_member(WorkerFailure& failure, F f) {
  auto& [end, message, hangs] = failure;
  f(end), f(message), f(hangs);
}

template <typename T>
std::string pack_message(const T& value) {
  PackedBytes bytes;
  bytes.add(value);
  return bytes.bytes();
}

template <typename T>
T unpack_message(std::string_view bytes) {
  T value;
  PackedReader reader(bytes);
  reader.read(value);
  LLMB_CHECK(reader.at_end());
  return value;
}

template std::string pack_message(const WorkerOrder&);
template std::string pack_message(const WorkerStart&);
template std::string pack_message(const RowMessage&);
template std::string pack_message(const int32_t&);
template std::string pack_message(const BackendInfo&);
template std::string pack_message(const AnswerMessage&);
template std::string pack_message(const WorkerReport&);
template std::string pack_message(const WorkerFailure&);
template std::string pack_message(const BlocksMessage&);
template std::string pack_message(const PromptBlocks&);
template WorkerOrder unpack_message(std::string_view);
template WorkerStart unpack_message(std::string_view);
template RowMessage unpack_message(std::string_view);
template int32_t unpack_message(std::string_view);
template BackendInfo unpack_message(std::string_view);
template AnswerMessage unpack_message(std::string_view);
template WorkerReport unpack_message(std::string_view);
template WorkerFailure unpack_message(std::string_view);
template PromptBlocks unpack_message(std::string_view);
template BlocksMessage unpack_message(std::string_view);

double monotonic_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

AnswerMessage answer_message(const FinishedItem& item) {
  AnswerMessage message = {item.ordinal, item.completion.error, "", item.completion.latency, item.itl_ms};
  if (!message.error) message.answer = pack_answer(item.completion);
  return message;
}

FinishedItem finished_item(AnswerMessage message, const Request& request) {
  FinishedItem item = {message.ordinal, completion_for(request), std::move(message.itl_ms)};
  Completion& completion = item.completion;
  if (message.error) {
    completion.error = std::move(message.error);
  } else {
    Completion answer = unpack_answer(message.answer);
    answer.line = std::move(completion.line);
    answer.id_json = std::move(completion.id_json);
    answer.model_name = std::move(completion.model_name);
    answer.input_json = std::move(completion.input_json);
    completion = std::move(answer);
  }
  completion.latency = message.latency;
  return item;
}

// A length of four bytes, a kind of one, the payload.
std::string frame(MessageKind kind, std::string_view payload) {
  const auto size = static_cast<uint32_t>(payload.size());
  LLMB_CHECK(payload.size() == size);
  std::string bytes(sizeof size + 1 + payload.size(), '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  bytes[sizeof size] = static_cast<char>(kind);
  payload.copy(bytes.data() + sizeof size + 1, payload.size());
  return bytes;
}

std::optional<Message> MessageBuffer::next() {
  constexpr size_t kHead = sizeof(uint32_t) + 1;
  const std::string_view rest = std::string_view(bytes_).substr(begin_);
  uint32_t size = 0;
  if (rest.size() >= kHead) std::memcpy(&size, rest.data(), sizeof size);
  if (rest.size() < kHead || rest.size() - kHead < size) {
    bytes_.erase(0, std::exchange(begin_, 0));
    return std::nullopt;
  }
  begin_ += kHead + size;
  return Message{static_cast<MessageKind>(rest[kHead - 1]), std::string(rest.substr(kHead, size))};
}

}  // namespace llmb
