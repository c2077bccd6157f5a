#include "tests/support/plan_builder.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/check.h"
#include "tests/support/check_ok.h"

namespace llmb::test {

namespace {

struct Running {
  std::vector<TokenId> tokens;  // prompt and what was generated
  int32_t num_computed = 0;
  struct Table {
    std::vector<BlockId> blocks;
    int32_t num_given_back = 0;  // the first so many are others'
  };
  std::vector<Table> tables;  // [num_layer_groups]
  Generated out;

  bool finished(const GenerateRequest& r) const { return static_cast<int32_t>(out.tokens.size()) == r.num_tokens; }
  int32_t num_ready() const { return static_cast<int32_t>(tokens.size()) - num_computed; }
};

void take_sample(const StepOutput& o, int i, Running* r) {
  LLMB_CHECK_MSG(o.is_finite.at(i) && o.token_start.at(i) == i, "logits are not finite");
  r->tokens.push_back(o.tokens.at(i));
  r->out.tokens.push_back(o.tokens.at(i));
  r->out.logprobs.push_back(o.logprobs.at(i));
  const int begin = o.top_start.at(i), end = o.top_start.at(i + 1);
  r->out.top_tokens.emplace_back(o.top_tokens.begin() + begin, o.top_tokens.begin() + end);
  r->out.top_logprobs.emplace_back(o.top_logprobs.begin() + begin, o.top_logprobs.begin() + end);
}

// One step: `chunks` are (request, number of tokens).
void run_step(Backend& backend, const std::vector<GenerateRequest>& requests,
              const std::vector<std::pair<size_t, int32_t>>& chunks, std::vector<BlockId>* free_blocks,
              std::vector<Running>* running) {
  const int32_t block_size = backend.info().kv.block_size;
  const LayerGroups& groups = backend.info().kv.groups;
  PlanBuilder builder(block_size, groups.num_groups());
  for (const auto& [i, query_len] : chunks) {
    Running& r = (*running)[i];
    r.tables.resize(groups.windows.size());
    std::vector<std::vector<BlockId>> tables;
    for (Running::Table& table : r.tables) {
      while (static_cast<int64_t>(table.blocks.size()) < ceil_div(r.num_computed + query_len, block_size)) {
        LLMB_CHECK_MSG(!free_blocks->empty(), "the pool is too small for this test");
        table.blocks.push_back(free_blocks->back());
        free_blocks->pop_back();
      }
      tables.push_back(table.blocks);
    }
    std::optional<SampleRow> sample;
    if (query_len == r.num_ready()) sample = requests[i].sampling;
    builder.add_in_groups(r.tokens, r.num_computed, query_len, tables, sample).with_adapter(requests[i].adapter);
    if (const int32_t num_slots = backend.info().num_state_slots; num_slots > 0) {
      LLMB_CHECK_MSG(static_cast<int32_t>(i) < num_slots, "too few state slots for this test");
      builder.with_state(num_slots - 1 - static_cast<int32_t>(i));
    }
    r.num_computed += query_len;
  }
  StepOutput output;
  check_ok(validate_step_plan(builder.plan(), backend.info().kv.num_blocks));
  check_ok(backend.submit(builder.plan()));
  check_ok(backend.wait(&output));
  LLMB_CHECK(output.tokens.size() == builder.plan().sample_rows.size());
  int sampled = 0;
  for (const auto& [i, query_len] : chunks) {
    Running& r = (*running)[i];
    if (r.num_ready() == 0) take_sample(output, sampled++, &r);
    for (size_t g = 0; g < r.tables.size(); ++g) {
      Running::Table& table = r.tables[g];
      for (; (table.num_given_back + 1) * block_size <= first_seen(groups.windows[g], r.num_computed);
           ++table.num_given_back)
        free_blocks->push_back(table.blocks[table.num_given_back]);
    }
  }
}

void give_back(Running* r, std::vector<BlockId>* free_blocks) {
  for (const Running::Table& table : r->tables)
    free_blocks->insert(free_blocks->end(), table.blocks.begin() + table.num_given_back, table.blocks.end());
  r->tables.clear();
  r->num_computed = 0;
}

std::vector<BlockId> all_blocks(const Backend& backend) {
  std::vector<BlockId> blocks(backend.info().kv.num_blocks);
  std::iota(blocks.rbegin(), blocks.rend(), 0);
  return blocks;
}

std::vector<Running> start(const std::vector<GenerateRequest>& requests) {
  std::vector<Running> running;
  for (const GenerateRequest& r : requests) running.emplace_back().tokens = r.prompt;
  return running;
}

std::vector<Generated> outputs(std::vector<Running>* running) {
  std::vector<Generated> out;
  for (Running& r : *running) out.push_back(std::move(r.out));
  return out;
}

}  // namespace

std::unique_ptr<Backend> loaded(std::unique_ptr<Backend> backend, const ModelConfig& config,
                                const LoadOptions& options) {
  check_ok(backend->load(config, options));
  return backend;
}

LoadOptions dummy_options() {
  LoadOptions o;
  o.load_format = LoadFormat::kDummy;
  o.max_num_seqs = 16;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 96;
  o.num_threads = 2;
  return o;
}

PlanBuilder& PlanBuilder::add_in_groups(const std::vector<TokenId>& tokens, int32_t num_computed, int32_t query_len,
                                        const std::vector<std::vector<BlockId>>& tables,
                                        const std::optional<SampleRow>& sample) {
  const int32_t index = plan_.num_entries();
  plan_.tokens.insert(plan_.tokens.end(), tokens.begin() + num_computed, tokens.begin() + num_computed + query_len);
  StepEntry& entry = plan_.entries.emplace_back();
  entry.seq = index;
  entry.base = num_computed;
  plan_.query_start.push_back(plan_.num_tokens());
  for (const std::vector<BlockId>& blocks : tables) {
    plan_.block_ids.insert(plan_.block_ids.end(), blocks.begin(), blocks.end());
    plan_.block_start.push_back(static_cast<int32_t>(plan_.block_ids.size()));
  }
  if (!sample) return *this;
  plan_.groups.push_back({index, index, plan_.num_samples(), plan_.num_samples() + 1, SampleMode::kSample});
  SampleRow& row = plan_.sample_rows.emplace_back(*sample);
  row.group = plan_.num_groups() - 1;
  row.token_row = plan_.num_tokens() - 1;
  return *this;
}

PlanBuilder& PlanBuilder::follow(int32_t group, int32_t num_known, const std::vector<BlockId>& blocks,
                                 const std::optional<SampleRow>& sample) {
  std::vector<TokenId> tokens(num_known, 0);
  tokens.push_back(unseen_token(group));
  add(tokens, num_known, 1, blocks, sample);
  StepEntry& entry = plan_.entries.back();
  entry.base = num_known - 1;
  entry.follows = group;
  entry.max_ahead = 1;
  return *this;
}

std::vector<Generated> generate_one_by_one(Backend& backend, const std::vector<GenerateRequest>& requests,
                                           int32_t max_num_tokens) {
  std::vector<Running> running = start(requests);
  std::vector<BlockId> free_blocks = all_blocks(backend);
  for (size_t i = 0; i < requests.size(); ++i) {
    while (!running[i].finished(requests[i]))
      run_step(backend, requests, {{i, std::min(running[i].num_ready(), max_num_tokens)}}, &free_blocks, &running);
    give_back(&running[i], &free_blocks);
  }
  return outputs(&running);
}

std::vector<Generated> generate_at_random(Backend& backend, const std::vector<GenerateRequest>& requests,
                                          int32_t max_num_tokens, int32_t max_num_seqs, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  std::vector<Running> running = start(requests);
  std::vector<BlockId> free_blocks = all_blocks(backend);
  while (true) {
    std::vector<size_t> order;
    for (size_t i = 0; i < requests.size(); ++i)
      if (!running[i].finished(requests[i])) order.push_back(i);
    if (order.empty()) return outputs(&running);
    std::shuffle(order.begin(), order.end(), random);
    std::shuffle(free_blocks.begin(), free_blocks.end(), random);
    if (below(8) == 0) give_back(&running[order.back()], &free_blocks);
    order.resize(std::min<size_t>(1 + below(order.size()), max_num_seqs));
    std::vector<std::pair<size_t, int32_t>> chunks;
    int64_t budget = max_num_tokens;
    for (const size_t i : order) {
      if (budget == 0) break;
      const int64_t most = std::min<int64_t>(running[i].num_ready(), budget);
      chunks.emplace_back(i, below(2) == 0 ? most : 1 + below(most));
      budget -= chunks.back().second;
    }
    run_step(backend, requests, chunks, &free_blocks, &running);
    for (const size_t i : order)
      if (running[i].finished(requests[i])) give_back(&running[i], &free_blocks);
  }
}

}  // namespace llmb::test
