// Decode steps with a speculator, simulated without a model: what a step costs and which drafts are right is given.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/drafted_tokens.h"
#include "speculation/speculator.h"
#include "tests/support/test_rng.h"
#include "tests/support/workload.h"

namespace llmb::test {

struct Simulated {
  double ms = 0;
  int64_t num_tokens = 0;
  double ms_per_token() const { return ms / static_cast<double>(num_tokens); }
};

// Decode steps of `batch` sequences: a step costs cost(rows), now and then several times that; a draft is right with
// probability `right_rate` where those before it are; without a plan ahead the host's gap is added.
inline Simulated simulate(int32_t batch, int32_t num_steps, double right_rate,
                          const std::function<double(int32_t)>& cost, Speculator* speculator,
                          StepCost* learned = nullptr) {
  constexpr double kGapMs = 0.03;
  TestRng rng(static_cast<uint64_t>(batch));
  Simulated done;
  const auto request = make_request(4, 1'000'000);
  std::vector<std::unique_ptr<Sequence>> owned;
  std::vector<const Sequence*> decoding;
  for (int32_t i = 0; i < batch; ++i) {
    owned.push_back(std::make_unique<Sequence>(i, 0, request, BlockTable(16), 1'000'000, 0));
    owned.back()->append_token(3);
    decoding.push_back(owned.back().get());
  }
  for (int32_t step = 0; step < num_steps; ++step) {
    const bool waits = speculator != nullptr && speculator->must_see_all();
    StepPlan plan;
    std::vector<Drafts> drafts(batch);
    if (speculator != nullptr) speculator->begin_plan({decoding, batch, 0, 0});
    for (int32_t i = 0; i < batch; ++i) {
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
    const double ms = cost(plan.num_tokens()) * (step % 10 == 9 ? 4 : 1);
    done.ms += ms + (waits ? kGapMs : 0);
    if (speculator != nullptr) speculator->see_drafts(&plan);
    CHECK(!has_drafted(plan));
    for (int32_t i = 0; i < batch; ++i) {
      int32_t num_accepted = 0;
      while (num_accepted < drafts[i].size() && rng.chance(right_rate)) ++num_accepted;
      done.num_tokens += 1 + num_accepted;
      for (int32_t k = 0; k < num_accepted; ++k) owned[i]->append_token(7);
      owned[i]->append_token(3);
      if (drafts[i].size() > 0) speculator->on_verified(*decoding[i], drafts[i].size(), num_accepted);
    }
    if (speculator == nullptr) continue;
    learned->observe(plan.num_tokens(), 0, ms);
    speculator->on_step(plan, StepOutput(), ms, waits ? kGapMs : 0);
  }
  return done;
}

}  // namespace llmb::test
