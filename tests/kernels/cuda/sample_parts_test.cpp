// Sampling by ranks with a part of the vocabulary each gives the CPU's tokens for whole rows. Each rank is a thread.
#include "kernels/cuda/sample_parts.h"

#include <doctest/doctest.h>

#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/error.h"
#include "tests/kernels/cuda/sample_batch.h"

namespace llmb::cuda {

using namespace sample_batch;

namespace {

// A rank's arrays on the device.
struct Rank {
  Rank(const Batch& batch, int32_t rank, const std::vector<int32_t>& begins)
      : first(begins[static_cast<size_t>(rank)]),
        count(begins[static_cast<size_t>(rank) + 1] - first),
        rows(batch.plan.num_samples()),
        limits{rows, count, static_cast<int64_t>(batch.plan.penalty.size()),
               static_cast<int64_t>(batch.plan.bias.size())},
        logits(own_logits(batch)),
        params(batch.plan.sample_rows),
        bias(batch.plan.bias),
        penalty(batch.plan.penalty),
        masks(batch.plan.masks) {
    for (const SampleRow& row : batch.plan.sample_rows)
      max_top = std::max(max_top, std::min(row.num_logprobs, batch.vocab));
    const auto num_rows = static_cast<size_t>(rows), num_top = num_rows * static_cast<size_t>(max_top);
    tokens = std::make_unique<DeviceArray<TokenId>>(num_rows);
    logprobs = std::make_unique<DeviceArray<float>>(num_rows);
    is_finite = std::make_unique<DeviceArray<uint8_t>>(num_rows);
    top_tokens = std::make_unique<DeviceArray<TokenId>>(num_top);
    top_logprobs = std::make_unique<DeviceArray<float>>(num_top);
    workspace = std::make_unique<DeviceArray<uint8_t>>(static_cast<size_t>(sample_workspace_bytes(limits)));
    mail = std::make_unique<DeviceArray<uint8_t>>((begins.size() - 1) *
                                                  static_cast<size_t>(sample_mail_bytes(limits, max_top)));
    check(cudaMemset(workspace->data(), 0, workspace->size()), "cudaMemset");
  }

  std::vector<float> own_logits(const Batch& batch) const {
    std::vector<float> own;
    for (int32_t row = 0; row < rows; ++row) {
      const auto begin = batch.logits.begin() + int64_t{row} * batch.vocab + first;
      own.insert(own.end(), begin, begin + count);
    }
    return own;
  }

  void sample(const SampleNeeds& needs, const SampleRanks& ranks) {
    sample_parts({logits.data(), params.data(), bias.data(), penalty.data(), rows, count, masks.data()}, needs,
                 {tokens->data(), logprobs->data(), is_finite->data(), top_tokens->data(), top_logprobs->data(), max_top},
                 limits, workspace->data(), ranks, nullptr);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  SampledRows sampled(const Batch& batch, const SampleNeeds& needs) {
    for (const bool guards : {logits.check_guards(), tokens->check_guards(), logprobs->check_guards(),
                              is_finite->check_guards(), top_tokens->check_guards(), top_logprobs->check_guards(),
                              workspace->check_guards(), mail->check_guards()})
      CHECK(guards);
    SampledRows out;
    out.clear();
    out.tokens = tokens->download();
    out.is_finite = is_finite->download();
    out.logprobs = needs.logprobs ? logprobs->download() : std::vector<float>(static_cast<size_t>(rows), 0.0f);
    const std::vector<TokenId> all_top = top_tokens->download();
    const std::vector<float> all_top_logprobs = top_logprobs->download();
    for (int32_t i = 0; i < rows; ++i) {
      const int32_t n = std::clamp(batch.plan.sample_rows[static_cast<size_t>(i)].num_logprobs, 0, batch.vocab);
      const int64_t begin = int64_t{i} * max_top;
      out.top_start.push_back(out.top_start.back() + n);
      out.top_tokens.insert(out.top_tokens.end(), all_top.begin() + begin, all_top.begin() + begin + n);
      out.top_logprobs.insert(out.top_logprobs.end(), all_top_logprobs.begin() + begin,
                              all_top_logprobs.begin() + begin + n);
    }
    return out;
  }

  int32_t first, count, rows, max_top = 1;
  SampleLimits limits;
  DeviceArray<float> logits;
  DeviceArray<SampleRow> params;
  DeviceArray<TokenBias> bias;
  DeviceArray<TokenPenalty> penalty;
  DeviceArray<uint32_t> masks;
  std::unique_ptr<DeviceArray<TokenId>> tokens, top_tokens;
  std::unique_ptr<DeviceArray<float>> logprobs, top_logprobs;
  std::unique_ptr<DeviceArray<uint8_t>> is_finite, workspace, mail;
};

// Each rank's results; how many exchanges there were, to *num_exchanges.
std::vector<SampledRows> run_parts(const Batch& batch, const SampleNeeds& needs, const std::vector<int32_t>& begins,
                                   int* num_exchanges = nullptr) {
  const auto size = static_cast<int32_t>(begins.size()) - 1;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int32_t r = 0; r < size; ++r) ranks.push_back(std::make_unique<Rank>(batch, r, begins));
  std::barrier all_are_here(size);
  std::vector<std::thread> threads;
  std::vector<int> counts(static_cast<size_t>(size));
  for (int32_t r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      Rank& own = *ranks[static_cast<size_t>(r)];
      const auto exchange = [&](int64_t bytes) {
        ++counts[static_cast<size_t>(r)];
        LLMB_CHECK(bytes <= static_cast<int64_t>(own.mail->size()) / size);
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        all_are_here.arrive_and_wait();
        for (int32_t other = 0; other < size; ++other)
          if (other != r)
            check(cudaMemcpy(own.mail->data() + other * bytes,
                             ranks[static_cast<size_t>(other)]->mail->data() + other * bytes, bytes,
                             cudaMemcpyDeviceToDevice),
                  "cudaMemcpy");
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        all_are_here.arrive_and_wait();
      };
      own.sample(needs, {r, size, own.first, batch.vocab, own.mail->data(), exchange});
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<SampledRows> out;
  for (const auto& rank : ranks) out.push_back(rank->sampled(batch, needs));
  for (const int count : counts) CHECK(count == counts[0]);
  if (num_exchanges != nullptr) *num_exchanges = counts[0];
  return out;
}

void check_same_bytes(const SampledRows& a, const SampledRows& b) {
  CHECK(a.tokens == b.tokens);
  CHECK(a.is_finite == b.is_finite);
  CHECK(test::same_bytes(a.logprobs, b.logprobs));
  CHECK(a.top_tokens == b.top_tokens);
  CHECK(test::same_bytes(a.top_logprobs, b.top_logprobs));
}

void check_parts(const Batch& batch, const std::vector<int32_t>& begins) {
  const SampleNeeds needs = sample_needs(batch.plan.sample_rows);
  const std::vector<SampledRows> ranks = run_parts(batch, needs, begins);
  check_equals_cpu(batch, ranks[0]);
  for (const SampledRows& rank : ranks) check_same_bytes(rank, ranks[0]);
}

std::vector<uint32_t> mask_of(int32_t vocab, int32_t begin, int32_t end) {
  std::vector<uint32_t> words(static_cast<size_t>(vocab + 31) / 32);
  for (int32_t t = begin; t < end; ++t) words[static_cast<size_t>(t / 32)] |= 1u << (t % 32);
  return words;
}

}  // namespace

TEST_CASE("random rows of every kind: the CPU's tokens, log probabilities and marks, on all ranks the same bytes") {
  RandomRows random(8);
  struct Parts {
    int32_t vocab;
    std::vector<int32_t> begins;
    int rows;
  };
  for (const Parts& parts : {Parts{33, {0, 32, 33}, 60},
                             {100, {0, 32, 100}, 60},
                             {1000, {0, 32, 96, 512, 1000}, 60},
                             {4099, {0, 1024, 4099}, 40},
                             {9001, {0, 64, 4096, 9001}, 20}})
    check_parts(random.batch(parts.vocab, parts.rows), parts.begins);
}

TEST_CASE("borders of top-k and top-p among equal logits, within a part, between two and in the last") {
  constexpr int32_t kVocab = 2000;
  Batch batch{kVocab};
  const std::vector<float> equal(kVocab, 1.5f);
  std::vector<float> steps = random_normal(kVocab, 3, 2);
  for (float& x : steps) x = std::round(x);
  for (uint32_t position = 0; position < 3; ++position)
    for (const std::vector<float>& logits : {equal, steps})
      for (SampleRow row : {params(1, 639), params(1, 640), params(1, 641), params(1, 1024), params(1, 1999),
                            params(1, 0, 0.32f), params(1, 0, 0.7f), params(1, 900, 0.8f), params(1, 0, 0.999f),
                            params(0.5f, 1500, 0.6f, 0.3f)}) {
        row.position = position;
        batch.add(logits, row);
      }
  check_parts(batch, {0, 640, 1024, kVocab});
}

TEST_CASE("masks that leave one part, or nothing; more of the best tokens than a part has; the best one everywhere") {
  constexpr int32_t kVocab = 500;
  const std::vector<int32_t> begins = {0, 32, 256, kVocab};
  Batch batch{kVocab};
  const std::vector<float> normal = random_normal(kVocab, 9, 3);
  for (const float temperature : {0.0f, 1.0f}) {
    for (const auto& [begin, end] : std::vector<std::pair<int32_t, int32_t>>{
             {0, 32}, {31, 33}, {32, 256}, {256, kVocab}, {kVocab - 1, kVocab}, {7, 7}})
      batch.add(normal, params(temperature, 5, 0.9f), {}, {}, mask_of(kVocab, begin, end));
    SampleRow listed = params(temperature);
    listed.num_logprobs = 100;
    batch.add(normal, listed, {{3, 2.0f}, {kVocab - 1, -kInf}}, {{40, 2}});
    for (const int32_t best : {0, 31, 32, 255, 256, kVocab - 1}) {
      std::vector<float> logits = normal;
      logits[static_cast<size_t>(best)] = 100;
      SampleRow row = params(temperature, 0, 0.5f);
      row.num_logprobs = 2;
      batch.add(logits, row);
    }
  }
  check_parts(batch, begins);
}

TEST_CASE("passes that no row wants change nothing; greedy rows alone take one exchange") {
  const std::vector<int32_t> begins = {0, 320, 1000};
  const Batch batch = RandomRows(4).batch(1000, 24);
  SampledRows whole = run_parts(batch, kAllNeeds, begins)[0];
  check_equals_cpu(batch, whole);
  Batch greedy{1000};
  for (uint32_t i = 0; i < 4; ++i) greedy.add(random_normal(1000, i), params(0));
  int num_exchanges = 0;
  const SampledRows few = run_parts(greedy, sample_needs(greedy.plan.sample_rows), begins, &num_exchanges)[0];
  CHECK(num_exchanges == 1);
  check_equals_cpu(greedy, few);
  SampleRow padding = params(1);
  padding.token_row = -1;
  greedy.plan.sample_rows[1] = padding;
  const SampledRows padded = run_parts(greedy, kAllNeeds, begins)[1];
  CHECK(padded.is_finite == std::vector<uint8_t>{1, 0, 1, 1});
  CHECK(padded.tokens == std::vector<TokenId>{few.tokens[0], 0, few.tokens[2], few.tokens[3]});
}

}  // namespace llmb::cuda
