#include "job/equal_rows.h"

#include <string_view>
#include <utility>
#include <variant>

#include "base/packed_bytes.h"
#include "job/packed_answer.h"

namespace llmb {

namespace {

// In tables, beside what is stored there.
constexpr size_t kComputedBytes = 152, kWaitingBytes = 64;

bool is_determined(const SamplingParams& sampling) { return sampling.temperature == 0 || sampling.seed.has_value(); }

}  // namespace

// Bindings name every member, so that one more does not compile until it is here.
template <typename F>
void each_member(BeamParams& p, F f) {
  auto& [width, length_penalty, early_stopping] = p;
  f(width), f(length_penalty), f(early_stopping);
}

template <typename F>
void each_member(SamplingParams& p, F f) {
  auto& [temperature, top_p, top_k, min_p, repetition, presence, frequency, bias, num_logprobs, seed, n, best_of, beams,
         num_choices] = p;
  f(temperature), f(top_p), f(top_k), f(min_p), f(repetition), f(presence), f(frequency), f(bias), f(num_logprobs);
  f(seed), f(n), f(best_of), f(beams), f(num_choices);
}

template <typename F>
void each_member(StopParams& p, F f) {
  auto& [max_tokens, min_tokens, stop, stop_token_ids, ignore_eos, include_stop, repetition, thinking_budget] = p;
  f(max_tokens), f(min_tokens), f(stop), f(stop_token_ids), f(ignore_eos), f(include_stop), f(repetition);
  f(thinking_budget);
}

template <typename F>
void each_member(OutputParams& p, F f) {
  auto& [skip_special_tokens, return_token_ids, echo] = p;
  f(skip_special_tokens), f(return_token_ids), f(echo);
}

template <typename F>
void each_member(PromptParams& p, F f) {
  auto& [truncate, max_prompt_tokens] = p;
  f(truncate), f(max_prompt_tokens);
}

template <typename F>
void each_member(TokenRules& p, F f) {
  auto& [allowed, bad_words] = p;
  f(allowed), f(bad_words);
}

template <typename F>
void each_member(ScoreParams& p, F f) {
  auto& [options, num_logprobs, prompt_logprobs, hides_details] = p;
  f(options), f(num_logprobs), f(prompt_logprobs), f(hides_details);
}

template <typename F>
void each_member(EmbedParams& p, F f) {
  auto& [normalizes, dimensions, is_list, is_base64] = p;
  f(normalizes), f(dimensions), f(is_list), f(is_base64);
}

template <typename F>
void each_member(ChatMessages& p, F f) {
  auto& [messages, tools, template_kwargs, tool_choice, tool_name, has_one_call, reasoning_effort,
         add_generation_prompt, continue_final_message] = p;
  f(messages), f(tools), f(template_kwargs), f(tool_choice), f(tool_name), f(has_one_call), f(reasoning_effort);
  f(add_generation_prompt), f(continue_final_message);
}

template <typename F>
void each_member(CallFrame& p, F f) {
  auto& [before, schema, after, is_strict] = p;
  f(before), f(schema), f(after), f(is_strict);
}

template <typename F>
void each_member(AnswerForm& p, F f) {
  auto& [kind, text, choices, is_strict, field, calls, has_several_calls] = p;
  f(kind), f(text), f(choices), f(is_strict), f(field), f(calls), f(has_several_calls);
}

EqualRows::Key EqualRows::key_of(const InputRequest& input) {
  const auto& [line, form, id, model_name, adapter, input_json, settings, prompt, more_prompts, params, arrival] = input;
  const auto& [sampling, stop, output, prompt_params, answer_form, token_rules, score, embed, task] = params;
  if (!is_determined(sampling) && score.options.empty() && task == Task::kGenerate) return std::nullopt;
  PackedBytes bytes;
  bytes.add(form);
  bytes.add(settings);
  bytes.add(adapter.value_or(""));
  bytes.add(sampling);
  bytes.add(stop);
  bytes.add(output);
  bytes.add(prompt_params);
  bytes.add(token_rules);
  bytes.add(score);
  bytes.add(embed);
  bytes.add(task);
  bytes.add(answer_form != nullptr);
  if (answer_form) bytes.add(*answer_form);
  const auto add_prompt = [&](const PromptInput& one) {
    bytes.add(static_cast<uint8_t>(one.index()));
    std::visit([&](const auto& value) { bytes.add(value); }, one);
  };
  add_prompt(prompt);
  bytes.add(more_prompts.size());
  for (const PromptInput& one : more_prompts) add_prompt(one);
  return sha256(bytes.bytes());
}

size_t EqualRows::bytes_of(const Waiting& row) { return kWaitingBytes + sizeof row + row.texts.size(); }

EqualRows::Waiting EqualRows::waiting_of(int64_t ordinal, const InputRequest& input) {
  const LineRef& line = input.line;
  if (sources_.empty() || sources_.back() != line.source) sources_.push_back(line.source);
  return {ordinal,
          line.index,
          line.line_number,
          line.byte_offset,
          line.content_hash,
          static_cast<int32_t>(sources_.size()) - 1,
          static_cast<uint32_t>(input.id_json.size()),
          static_cast<uint32_t>(input.model_name.size()),
          input.id_json + input.model_name + input.input_json};
}

FinishedItem EqualRows::answer_to(const Waiting& row, const FinishedItem& like) const {
  FinishedItem item = {row.ordinal, like.completion, {}};
  Completion& completion = item.completion;
  const std::string_view texts = row.texts;
  completion.line = {row.index, sources_[row.source], row.line_number, row.byte_offset, row.content_hash};
  completion.id_json = texts.substr(0, row.id_size);
  completion.model_name = texts.substr(row.id_size, row.model_size);
  completion.input_json = texts.substr(row.id_size + row.model_size);
  completion.latency.num_cached_tokens = like.completion.num_prompt_tokens;
  return item;
}

// Those that were answered first make room.
bool EqualRows::make_room(size_t bytes) {
  while (num_bytes_ + bytes > max_bytes_ && !answered_.empty()) {
    const auto first = computed_.find(*answered_.front());
    num_bytes_ -= kComputedBytes + first->second.answer.size();
    computed_.erase(first);
    answered_.pop_front();
  }
  return num_bytes_ + bytes <= max_bytes_;
}

std::optional<EqualRows::Equal> EqualRows::find_equal(const Key& key, int64_t ordinal, const InputRequest& input) {
  if (!key) return std::nullopt;
  std::lock_guard lock(mutex_);
  const auto at = computed_.find(*key);
  if (at == computed_.end()) return std::nullopt;
  const First& first = at->second;
  Equal equal = {first.prompt, {}};
  if (first.answer.empty()) {
    Waiting row = waiting_of(ordinal, input);
    const size_t size = bytes_of(row);
    if (!make_room(size)) return std::nullopt;
    num_bytes_ += size;
    waiting_[first.ordinal].push_back(std::move(row));
  } else {
    equal.answer = FinishedItem{ordinal, unpack_answer(first.answer), {}};
    Completion& completion = equal.answer->completion;
    completion.line = input.line;
    completion.id_json = input.id_json;
    completion.model_name = input.model_name;
    completion.input_json = input.input_json;
    completion.latency.num_cached_tokens = completion.num_prompt_tokens;
  }
  ++num_found_;
  return equal;
}

void EqualRows::compute(const Key& key, int64_t ordinal, const Prompt& prompt) {
  if (!key) return;
  std::lock_guard lock(mutex_);
  if (computed_.contains(*key) || !make_room(kComputedBytes)) return;  // there: but no room to wait for it
  const auto first = computed_.emplace(*key, First{ordinal, prompt, {}}).first;
  digests_.emplace(ordinal, &first->first);
  num_bytes_ += kComputedBytes;
}

// The answer stays for rows that come later, as long as there is room.
void EqualRows::keep_answer(Computed::iterator first, const Completion& completion) {
  if (!completion.error) {
    std::string answer = pack_answer(completion);
    if (make_room(answer.size())) {
      num_bytes_ += answer.size();
      first->second.answer = std::move(answer);
      answered_.push_back(&first->first);
      return;
    }
  }
  num_bytes_ -= kComputedBytes;
  computed_.erase(first);
}

std::vector<FinishedItem> EqualRows::answers_like(const FinishedItem& item) {
  std::lock_guard lock(mutex_);
  const auto digest = digests_.find(item.ordinal);
  if (digest == digests_.end()) return {};
  std::vector<FinishedItem> items;
  if (const auto waiting = waiting_.find(item.ordinal); waiting != waiting_.end()) {
    items.reserve(waiting->second.size());
    for (const Waiting& row : waiting->second) {
      num_bytes_ -= bytes_of(row);
      items.push_back(answer_to(row, item));
    }
    waiting_.erase(waiting);
  }
  keep_answer(computed_.find(*digest->second), item.completion);
  digests_.erase(digest);
  return items;
}

int64_t EqualRows::num_found() const {
  std::lock_guard lock(mutex_);
  return num_found_;
}

}  // namespace llmb
