#include "engine/prompt_transfer.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "core/layer_groups.h"

namespace llmb {

int32_t num_movable_tokens(const Request& request, int32_t block_size) {
  const bool is_answer = request.params.task == Task::kGenerate && request.options.empty() && request.parts.empty() &&
                         !request.params.score.prompt_logprobs && !request.is_indivisible;
  if (!is_answer) return 0;
  return static_cast<int32_t>((static_cast<int64_t>(request.prompt_tokens.size()) - 1) / block_size) * block_size;
}

std::shared_ptr<Request> prompt_request(const Request& request, int32_t block_size) {
  const int32_t num_tokens = num_movable_tokens(request, block_size);
  LLMB_CHECK(num_tokens > 0);
  auto prompt = std::make_shared<Request>();
  prompt->line = request.line;
  prompt->prompt_tokens.assign(request.prompt_tokens.begin(), request.prompt_tokens.begin() + num_tokens);
  prompt->params.sampling.temperature = 0;
  prompt->params.stop.max_tokens = 1;
  prompt->params.stop.ignore_eos = true;
  prompt->adapter = request.adapter;
  prompt->arrival_ms = request.arrival_ms;
  return prompt;
}

std::optional<PromptBlocks> read_prompt(const StepPlan& plan, SeqId seq, Backend& backend) {
  int32_t e = 0;
  while (plan.entries[e].seq != seq) ++e;
  PromptBlocks blocks;
  blocks.num_tokens = plan.max_context_len(e);
  LLMB_CHECK(blocks.num_tokens % plan.block_size == 0);
  const std::vector<int32_t>& windows = backend.info().kv.groups.windows;
  std::vector<BlockId> ids;
  for (int32_t group = 0; group < plan.num_layer_groups; ++group) {
    const BlockId* const table = plan.block_ids.data() + plan.block_start[e * plan.num_layer_groups + group];
    for (int32_t i = first_seen(windows[group], blocks.num_tokens) / plan.block_size;
         i < blocks.num_tokens / plan.block_size; ++i) {
      blocks.places.push_back({group, i});
      ids.push_back(table[i]);
    }
  }
  const int64_t state_bytes = backend.info().state_bytes;
  blocks.bytes.resize(ids.size() * static_cast<size_t>(backend.info().block_bytes) + static_cast<size_t>(state_bytes));
  if (!backend.read_blocks(ids, state_bytes > 0 ? plan.entries[e].state_slot : -1, blocks.bytes)) return std::nullopt;
  return blocks;
}

void write_prompt(const PromptBlocks& blocks, SeqId seq, Scheduler& scheduler, Backend& backend) {
  PlacesToFill to_fill;
  scheduler.receive(seq, blocks.num_tokens, &to_fill);
  if (to_fill.empty()) return;
  const int64_t size = backend.info().block_bytes;
  std::vector<BlockId> ids;
  std::vector<uint8_t> bytes;
  for (const HostPlace& here : to_fill.blocks) {
    const auto is_it = [&](const BlockPlace& place) {
      return place.layer_group == here.place.layer_group && place.index == here.place.index;
    };
    const auto at = std::find_if(blocks.places.begin(), blocks.places.end(), is_it);
    LLMB_CHECK(at != blocks.places.end());
    const auto begin = blocks.bytes.begin() + (at - blocks.places.begin()) * size;
    bytes.insert(bytes.end(), begin, begin + size);
    ids.push_back(here.host_block);
  }
  const auto state = blocks.bytes.end() - backend.info().state_bytes;
  if (to_fill.state_slot >= 0) bytes.insert(bytes.end(), state, blocks.bytes.end());
  backend.write_host_blocks(ids, to_fill.state_slot, bytes);
}

}  // namespace llmb
