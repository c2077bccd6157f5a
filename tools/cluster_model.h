// Predicts the rate of a cluster at a workload in the long run, by the step model (step_model.h): all requests have the same
// lengths, and there are always more of them. Each step computes a token of every running request, and as many prompt
// tokens as it takes to replace those that end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "tools/step_model.h"

namespace llmb {

struct Lengths {
  double prompt = 0, output = 0;
};

struct ClusterLimits {
  double max_num_seqs = 1024;            // requests that run on one instance of the model
  double max_num_batched_tokens = 8192;  // rows of a step
  double memory_share = 0.90;            // for weights and the KV cache
};

struct InstancePrediction {
  double num_running = 0;  // requests
  double step_ms = 0;      // from one token of a request to its next
  double output_tokens_per_s = 0;
};

// One instance that computes prompts and answers in the same steps (chunked prefill). `num_plans`: in flight at one
// time, so many stages work; each has its part of the running requests. nullopt: not one request fits.
inline std::optional<InstancePrediction> predict_pool(const StepModel& model, const Lengths& lengths,
                                                      const ClusterLimits& limits, double num_plans = 1) {
  const double room = model.kv_tokens(limits.memory_share);
  const double mean_context = lengths.prompt + lengths.output / 2;
  const double rows_per_request = 1 + lengths.prompt / lengths.output;  // of a step
  if (room < lengths.prompt + lengths.output) return std::nullopt;
  const double by_rows = num_plans * limits.max_num_batched_tokens / rows_per_request;
  const double running = std::min({limits.max_num_seqs, room / mean_context, by_rows});
  const double of_plan = running / num_plans, prompts = of_plan / lengths.output;
  const double step_ms = model.step_ms({of_plan * rows_per_request, of_plan + prompts, of_plan * mean_context,
                                        prompts * lengths.prompt * lengths.prompt / 2});
  return InstancePrediction{running, step_ms, 1000 * running / step_ms};
}

struct ApartPrediction {
  int64_t num_prefill = 0, num_decode = 0;  // instances
  double prefill_ms = 0;                    // of a step of prompts
  double step_ms = 0;                       // of a step of answers
  double send_ms = 0;                       // of a prompt's keys and values, from one rank to another
  double output_tokens_per_s = 0;           // of all
};

// Prompts on some of `num_instances`, answers on the others: the division that makes most. Each rank of an instance
// sends its part of a prompt's keys and values to one of the other; that goes on beside steps. nullopt: fewer than
// two, or nothing fits.
inline std::optional<ApartPrediction> predict_apart(const StepModel& model, const RankGrid& grid, const LinkModel& between,
                                                    const Lengths& lengths, const ClusterLimits& limits,
                                                    int64_t num_instances) {
  const double room = model.kv_tokens(limits.memory_share);
  if (num_instances < 2 || room < lengths.prompt + lengths.output) return std::nullopt;
  const double prompts = std::max(1.0, std::min(limits.max_num_batched_tokens, room) / lengths.prompt);
  const double prefill_ms =
      model.step_ms({prompts * lengths.prompt, prompts, 0, prompts * lengths.prompt * lengths.prompt / 2});
  const double mean_context = lengths.prompt + lengths.output / 2;
  const double running = std::min(limits.max_num_seqs, room / mean_context);
  const double step_ms = model.step_ms({running, running, running * mean_context, 0});
  const double bytes = lengths.prompt * model.kv_bytes_per_token() / static_cast<double>(grid.num_ranks());
  const double send_ms = between.base_ms + between.hop_ms + bytes / between.bytes_per_s * 1000;
  const double prompts_per_s = 1000 * prompts / prefill_ms, answers_per_s = 1000 * running / step_ms / lengths.output;
  const double sent_per_s = 1000 / send_ms;
  std::optional<ApartPrediction> best;
  for (int64_t p = 1; p < num_instances; ++p) {
    const double sources = static_cast<double>(p), targets = static_cast<double>(num_instances - p);
    const double requests_per_s = std::min(
        {sources * prompts_per_s, targets * answers_per_s, std::min(sources, targets) * sent_per_s});
    const double tokens_per_s = requests_per_s * lengths.output;
    if (!best || tokens_per_s > best->output_tokens_per_s)
      best = ApartPrediction{p, num_instances - p, prefill_ms, step_ms, send_ms, tokens_per_s};
  }
  return best;
}

}  // namespace llmb
