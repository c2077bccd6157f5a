// Sample rows whose biases and penalties do not fit at once: how they are divided, and that parts change no bit.
#include "backend/cuda/sample_parts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "tests/support/device_array.h"
#include "tests/support/plan_builder.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

struct Counts {
  int32_t biases = 0, penalties = 0;
};

// Rows with so many entries, one behind the other.
StepPlan plan_of(const std::vector<Counts>& rows) {
  StepPlan plan;
  for (const Counts& counts : rows) {
    SampleRow& row = plan.sample_rows.emplace_back();
    row.bias_begin = static_cast<int32_t>(plan.bias.size());
    row.penalty_begin = static_cast<int32_t>(plan.penalty.size());
    plan.bias.resize(plan.bias.size() + counts.biases);
    plan.penalty.resize(plan.penalty.size() + counts.penalties);
    row.bias_end = static_cast<int32_t>(plan.bias.size());
    row.penalty_end = static_cast<int32_t>(plan.penalty.size());
  }
  return plan;
}

// "0-2 b0+5 p0+3": rows, and first and number of their biases and penalties.
std::string describe(const StepPlan& plan, int64_t max_biases, int64_t max_penalties) {
  const auto place = [](const auto& values, const auto& all) {
    return std::to_string(values.data() - all.data()) + "+" + std::to_string(values.size());
  };
  std::string text;
  for (const SamplePart& part : split_samples(plan, max_biases, max_penalties))
    text += (text.empty() ? "" : ", ") + std::to_string(part.begin) + "-" + std::to_string(part.end) + " b" +
            place(part.bias, plan.bias) + " p" + place(part.penalty, plan.penalty);
  return text;
}

TEST_CASE("a part takes as many rows as fit") {
  CHECK(describe(plan_of({}), 3, 3) == "");
  CHECK(describe(plan_of({{}, {}, {}}), 0, 0) == "0-3 b0+0 p0+0");
  CHECK(describe(plan_of({{4, 0}, {6, 0}}), 10, 0) == "0-2 b0+10 p0+0");
  CHECK(describe(plan_of({{4, 0}, {6, 0}}), 9, 0) == "0-1 b0+4 p0+0, 1-2 b4+6 p0+0");
  CHECK(describe(plan_of({{0, 4}, {0, 6}}), 0, 10) == "0-2 b0+0 p0+10");
  CHECK(describe(plan_of({{0, 4}, {0, 6}}), 0, 9) == "0-1 b0+0 p0+4, 1-2 b0+0 p4+6");
  CHECK(describe(plan_of({{9, 9}, {9, 9}, {9, 9}}), 9, 9) == "0-1 b0+9 p0+9, 1-2 b9+9 p9+9, 2-3 b18+9 p18+9");
  CHECK(describe(plan_of({{}, {9, 1}, {}, {}, {1, 1}, {}}), 9, 9) == "0-4 b0+9 p0+1, 4-6 b9+1 p1+1");
  CHECK(describe(plan_of({{1, 5}, {1, 5}, {1, 1}}), 3, 6) == "0-1 b0+1 p0+5, 1-3 b1+2 p5+6");
  CHECK(describe(plan_of({{5, 1}, {5, 1}, {1, 1}}), 6, 3) == "0-1 b0+5 p0+1, 1-3 b5+6 p1+2");
}

TEST_CASE("rows that share their entries share a part") {
  StepPlan plan = plan_of({{7, 4}, {}, {}});
  plan.sample_rows[1] = plan.sample_rows[2] = plan.sample_rows[0];
  CHECK(describe(plan, 7, 4) == "0-3 b0+7 p0+4");
}

TEST_CASE("a row that does not fit by itself is a mistake of the caller") {
  CHECK_THROWS(split_samples(plan_of({{1, 1}, {4, 1}}), 3, 3));
  CHECK_THROWS(split_samples(plan_of({{1, 1}, {1, 4}}), 3, 3));
}

constexpr int32_t kNumRows = 9;

template <typename Random>
std::vector<TokenId> some_tokens(int32_t count, int32_t vocab, Random& random) {
  std::vector<TokenId> tokens(vocab);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::shuffle(tokens.begin(), tokens.end(), random);
  tokens.resize(count);
  return tokens;
}

// A decode step of kNumRows rows that sample in all ways; some count a token that the step before samples.
StepPlan random_plan(int32_t vocab, const std::vector<TokenId>& previous, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
  const auto entries = [&] { return below(4) == 0 ? 0 : below(3) == 0 ? vocab : 1 + below(vocab); };
  PlanBuilder builder(16);
  std::vector<TokenBias> bias;
  std::vector<TokenPenalty> penalty;
  for (int32_t i = 0; i < kNumRows; ++i) {
    SampleRow row;
    row.rng = {seed, static_cast<uint64_t>(i)};
    row.temperature = below(3) == 0 ? 0.0f : 1.5f;
    row.top_k = below(2) * 20;
    row.top_p = below(2) == 0 ? 1.0f : 0.9f;
    row.num_logprobs = below(3) == 0 ? -1 : below(5);
    row.repetition_penalty = 1.3f, row.presence_penalty = 0.4f, row.frequency_penalty = 0.7f;
    row.bias_begin = static_cast<int32_t>(bias.size());
    for (const TokenId token : some_tokens(entries(), vocab, random))
      bias.push_back({token, static_cast<float>(below(9) - 4)});
    row.bias_end = static_cast<int32_t>(bias.size());
    row.penalty_begin = static_cast<int32_t>(penalty.size());
    for (const TokenId token : some_tokens(entries(), vocab, random)) penalty.push_back({token, below(4)});
    if (below(3) != 0) penalty.push_back({unseen_token(below(static_cast<int32_t>(previous.size()))), 1});
    row.penalty_end = static_cast<int32_t>(penalty.size());
    builder.add({3}, 0, 1, {i}, row);
  }
  StepPlan plan = builder.plan();
  plan.bias = bias;
  plan.penalty = penalty;
  return plan;
}

// Samples with tables of a given size.
class Sampler {
 public:
  Sampler(int64_t max_biases, int64_t max_penalties)
      : config_(tiny_config()),
        ops_(config_, open_cuda_device(0).value(), options(max_biases, max_penalties), stream_.get()) {
    stream_.synchronize();
  }

  // Everything that the step leaves for the host; logits come in pieces of rows_per_call.
  std::vector<uint8_t> run(const StepPlan& plan, const std::vector<float>& logits, const std::vector<TokenId>& previous,
                           int64_t rows_per_call) {
    const cuda::SampleResult& sampled = ops_.sampled();
    std::vector<uint8_t> bytes(ops_.sampled_bytes_with_top());
    const size_t previous_bytes = previous.size() * sizeof(TokenId);
    TokenId* const given = ops_.given().last;
    cuda::check(cudaMemset(sampled.tokens, 0, bytes.size()), "cudaMemset");
    cuda::check(cudaMemcpy(given, previous.data(), previous_bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    const StepArrays arrays = ops_.stage().upload(plan, shape_of(plan), stream_.get());
    num_parts_ = arrays.parts.size();
    ops_.set_step(arrays, cuda::sample_needs(plan.sample_rows));
    ops_.count_unseen_tokens(plan);
    DeviceArray<float> on_device(logits);
    const Rows rows{on_device.data(), DType::kF32, config_.vocab_size};
    for (int64_t first = 0; first < kNumRows; first += rows_per_call)
      ops_.sample(rows.from(first), first, std::min<int64_t>(rows_per_call, kNumRows - first));
    stream_.synchronize();
    CHECK(on_device.check_guards());
    cuda::check(cudaMemcpy(bytes.data(), sampled.tokens, bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return bytes;
  }
  size_t num_parts() const { return num_parts_; }  // of the last run; 0: it needed none

 private:
  static CudaOpsOptions options(int64_t max_biases, int64_t max_penalties) {
    CudaOpsOptions o;
    o.limits = {kNumRows, kNumRows, kNumRows, 1, kMaxPlansInFlight, max_biases, max_penalties};
    o.max_position = 16;
    o.max_logit_rows = kNumRows;
    o.vocab_size = tiny_config().vocab_size;
    return o;
  }

  const ModelConfig config_;
  const cuda::Stream stream_;
  CudaOps ops_;
  size_t num_parts_ = 0;
};

TEST_CASE("rows sampled in parts have the bits of rows sampled at once, however the logits come") {
  const int32_t vocab = tiny_config().vocab_size;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    const std::vector<TokenId> previous = some_tokens(kNumRows, vocab, random);
    const StepPlan plan = random_plan(vocab, previous, seed);
    std::normal_distribution<float> normal(0, 2);
    std::vector<float> logits(int64_t{kNumRows} * vocab);
    for (float& x : logits) x = normal(random);
    const auto num_biases = static_cast<int64_t>(plan.bias.size());
    const auto num_penalties = static_cast<int64_t>(plan.penalty.size());
    REQUIRE(std::min(num_biases, num_penalties) > vocab + 1);
    Sampler at_once(num_biases, num_penalties);
    const std::vector<uint8_t> expected = at_once.run(plan, logits, previous, kNumRows);
    CHECK(at_once.num_parts() == 0);
    const bool same_in_pieces = at_once.run(plan, logits, previous, 2) == expected;
    CHECK(same_in_pieces);
    const std::pair<int64_t, int64_t> sizes[] = {{num_biases - 1, num_penalties},
                                                 {num_biases, num_penalties - 1},
                                                 {std::max<int64_t>(vocab, num_biases / 2), num_penalties},
                                                 {vocab, vocab + 1}};
    for (const auto& [max_biases, max_penalties] : sizes) {
      Sampler in_parts(max_biases, max_penalties);
      for (const int64_t rows_per_call : {1, 2, 4, 8, 9}) {
        CAPTURE(seed);
        CAPTURE(max_biases);
        CAPTURE(max_penalties);
        CAPTURE(rows_per_call);
        const bool same = in_parts.run(plan, logits, previous, rows_per_call) == expected;
        CHECK(same);
        CHECK(in_parts.num_parts() > 1);
      }
    }
  }
}

}  // namespace
}  // namespace llmb::test
