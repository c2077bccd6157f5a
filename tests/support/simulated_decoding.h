// Decode steps with a speculator, simulated without a model: what a step costs and which drafts are right is given.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/drafted_tokens.h"
#include "speculation/speculator.h"
#include "tests/support/test_rng.h"
#include "tests/support/workload.h"

namespace llmb::test {

constexpr TokenId kGuessed = 7;

struct Simulated {
  double ms = 0;
  int64_t num_tokens = 0;
  double ms_per_token() const { return ms / static_cast<double>(num_tokens); }
};

// Decode steps of `batch` sequences: a step costs cost(rows), now and then several times that; a draft is right with
// probability `right_rate` where those before it are, and so is a guess of kGuessed that no step verifies; without a plan
// ahead the host's gap is added. Over stages of a pipeline that is what each stage takes: plans of a part of the sequences
// end one behind the other in that time, one plan of all takes as many times as long.
inline Simulated simulate(int32_t batch, int32_t num_steps, double right_rate,
                          const std::function<double(int32_t)>& cost, Speculator* speculator,
                          StepCost* learned = nullptr, int32_t num_stages = 1) {
  constexpr double kGapMs = 0.03;
  TestRng rng(static_cast<uint64_t>(batch)), beside(static_cast<uint64_t>(batch) + 1000);
  Simulated done;
  const auto request = make_request(4, 1'000'000);
  std::vector<std::unique_ptr<Sequence>> owned;
  std::vector<const Sequence*> decoding;
  for (int32_t i = 0; i < batch; ++i) {
    owned.push_back(std::make_unique<Sequence>(i, 0, request, BlockTable(16), 1'000'000, 0));
    owned.back()->append_token(3);
    decoding.push_back(owned.back().get());
  }
  const int32_t num_plans = std::min(num_stages, batch);
  for (int32_t step = 0; step < num_steps; ++step) {
    const bool is_whole = num_stages == 1 || speculator->forms_one_plan();
    const int32_t part = batch / num_plans, first = is_whole ? 0 : step % num_plans * part;
    const int32_t last = is_whole ? batch : first + part;
    const bool waits = speculator != nullptr && speculator->must_see_all();
    StepPlan plan;
    std::vector<Drafts> drafts(batch);
    PlanOutlook outlook{.decoding = std::span(decoding).subspan(first, last - first), .num_rows = last - first};
    outlook.alternates = !is_whole, outlook.num_alternating = num_stages, outlook.num_running = batch;
    outlook.step = plan.step = step;
    if (speculator != nullptr) speculator->begin_plan(outlook);
    for (int32_t i = first; i < last; ++i) {
      if (speculator != nullptr) speculator->propose(*decoding[i], 16, &drafts[i]);
      SampleGroup group;
      group.seq = i;
      group.row_begin = plan.num_samples();
      plan.tokens.push_back(3);
      plan.tokens.insert(plan.tokens.end(), drafts[i].tokens.begin(), drafts[i].tokens.end());
      plan.sample_rows.resize(plan.tokens.size());
      group.row_end = plan.num_samples();
      plan.groups.push_back(group);
    }
    const double stage_ms = cost(plan.num_tokens()) * (step % 10 == 9 ? 4 : 1);
    const double ms = stage_ms * num_stages / (is_whole ? 1 : num_plans);
    done.ms += ms + (waits ? kGapMs : 0);
    if (speculator != nullptr) speculator->see_drafts(&plan);
    CHECK(!has_drafted(plan));
    for (int32_t i = first; i < last; ++i) {
      int32_t num_accepted = 0;
      while (num_accepted < drafts[i].size() && rng.chance(right_rate)) ++num_accepted;
      done.num_tokens += 1 + num_accepted;
      for (int32_t k = 0; k < num_accepted; ++k) owned[i]->append_token(kGuessed);
      const bool is_guessable = num_accepted == drafts[i].size() && beside.chance(right_rate);
      owned[i]->append_token(is_guessable ? kGuessed : 3);
      if (drafts[i].size() > 0) speculator->on_verified(*decoding[i], drafts[i].size(), num_accepted);
    }
    if (speculator == nullptr) continue;
    learned->observe(plan.num_tokens(), 0, stage_ms);
    speculator->on_step(plan, StepOutput(), ms, waits ? kGapMs : 0);
  }
  return done;
}

}  // namespace llmb::test
