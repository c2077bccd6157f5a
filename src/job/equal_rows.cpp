#include "job/equal_rows.h"

#include <tuple>
#include <utility>

namespace llmb {

namespace {

uint64_t hash_of(const std::vector<TokenId>& tokens) {
  uint64_t hash = tokens.size();
  for (const TokenId token : tokens) {
    hash = (hash + static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return hash;
}

bool is_determined(const Request& request) {
  const SamplingParams& sampling = request.params.sampling;
  return sampling.temperature == 0 || sampling.seed.has_value();
}

// Bindings name every member, so that one more does not compile until it is here.
auto members(const SamplingParams& p) {
  const auto& [temperature, top_p, top_k, min_p, repetition, presence, frequency, bias, num_logprobs, seed, n, best_of,
               beams, num_choices] = p;
  const auto [width, length_penalty, early_stopping] = beams.value_or(BeamParams{0});  // 0: no beams
  return std::tuple_cat(std::tie(temperature, top_p, top_k, min_p, repetition, presence, frequency, bias, num_logprobs,
                                 seed, n, best_of, num_choices),
                        std::make_tuple(width, length_penalty, early_stopping));
}

auto members(const StopParams& p) {
  const auto& [max_tokens, min_tokens, stop, stop_token_ids, ignore_eos, include_stop] = p;
  return std::tie(max_tokens, min_tokens, stop, stop_token_ids, ignore_eos, include_stop);
}

auto members(const OutputParams& p) {
  const auto& [skip_special_tokens, return_token_ids] = p;
  return std::tie(skip_special_tokens, return_token_ids);
}

// How a prompt was cut shows in its tokens, the form of the answer in the constraint.
bool are_equal(const GenerationParams& a, const GenerationParams& b) {
  const auto& [a_sampling, a_stop, a_output, a_prompt, a_form] = a;
  const auto& [b_sampling, b_stop, b_output, b_prompt, b_form] = b;
  return members(a_sampling) == members(b_sampling) && members(a_stop) == members(b_stop) &&
         members(a_output) == members(b_output);
}

bool are_equal(const Request& a, const Request& b) {
  const auto& [line, form, id, model_name, input, tokens, num_truncated, params, eos, rng, is_indivisible, constraint,
               arrival] = a;
  return form == b.form && tokens == b.prompt_tokens && are_equal(params, b.params) && eos == b.eos_token_ids &&
         is_indivisible == b.is_indivisible && constraint == b.constraint;
}

}  // namespace

size_t EqualRows::bytes_of(const Waiting& row) {
  return sizeof row + row.line.source.size() + row.id_json.size() + row.model_name.size() + row.input_json.size();
}

bool EqualRows::wait_for_equal(int64_t ordinal, const std::shared_ptr<const Request>& request) {
  if (!is_determined(*request)) return false;
  const uint64_t hash = hash_of(request->prompt_tokens);
  std::lock_guard lock(mutex_);
  const auto [begin, end] = ordinal_of_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    Computed& computed = computed_.at(at->second);
    if (!are_equal(*computed.request, *request)) continue;
    Waiting row = {ordinal,           request->line,       request->id_json, request->model_name,
                   request->input_json, request->num_truncated_tokens};
    const size_t size = bytes_of(row);
    if (num_bytes_ + size > max_bytes_) return false;
    num_bytes_ += size;
    ++num_found_;
    computed.waiting.push_back(std::move(row));
    return true;
  }
  computed_.emplace(ordinal, Computed{request, hash, {}});
  ordinal_of_.emplace(hash, ordinal);
  return false;
}

std::vector<FinishedItem> EqualRows::answers_like(const FinishedItem& item) {
  std::vector<Waiting> waiting;
  {
    std::lock_guard lock(mutex_);
    const auto at = computed_.find(item.ordinal);
    if (at == computed_.end()) return {};
    waiting = std::move(at->second.waiting);
    for (const Waiting& row : waiting) num_bytes_ -= bytes_of(row);
    const auto [begin, end] = ordinal_of_.equal_range(at->second.hash);
    for (auto hash = begin; hash != end; ++hash) {
      if (hash->second != item.ordinal) continue;
      ordinal_of_.erase(hash);
      break;
    }
    computed_.erase(at);
  }
  std::vector<FinishedItem> items;
  items.reserve(waiting.size());
  for (Waiting& row : waiting) {
    FinishedItem& like = items.emplace_back(FinishedItem{row.ordinal, item.completion, {}});
    like.completion.line = std::move(row.line);
    like.completion.id_json = std::move(row.id_json);
    like.completion.model_name = std::move(row.model_name);
    like.completion.input_json = std::move(row.input_json);
    like.completion.num_truncated_tokens = row.num_truncated_tokens;
    like.completion.latency.num_cached_tokens = item.completion.num_prompt_tokens;
  }
  return items;
}

int64_t EqualRows::num_found() const {
  std::lock_guard lock(mutex_);
  return num_found_;
}

}  // namespace llmb
