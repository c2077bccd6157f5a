#include "job/equal_rows.h"

#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace llmb {

namespace {

// In tables, beside what is stored there.
constexpr size_t kComputedBytes = 120, kWaitingBytes = 64;

bool is_determined(const SamplingParams& sampling) {
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
  const auto& [max_tokens, min_tokens, stop, stop_token_ids, ignore_eos, include_stop, repetition, thinking_budget] = p;
  return std::tie(max_tokens, min_tokens, stop, stop_token_ids, ignore_eos, include_stop, repetition, thinking_budget);
}

auto members(const OutputParams& p) {
  const auto& [skip_special_tokens, return_token_ids, echo] = p;
  return std::tie(skip_special_tokens, return_token_ids, echo);
}

// Bytes that no two different values have in common.
class Bytes {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_pointer_v<T>
  void add(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(const std::string& text) {
    add(text.size());
    bytes_ += text;
  }
  template <typename A, typename B>
  void add(const std::pair<A, B>& pair) {
    add(pair.first);
    add(pair.second);
  }
  template <typename T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(values.size());
    if constexpr (std::is_arithmetic_v<T>)
      bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    else
      for (const T& value : values) add(value);
  }
  template <typename... T>
  void add_all(const std::tuple<T...>& values) {
    std::apply([&](const auto&... value) { (add(value), ...); }, values);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

auto members(const PromptParams& p) {
  const auto& [truncate, max_prompt_tokens] = p;
  return std::tie(truncate, max_prompt_tokens);
}

auto members(const TokenRules& p) {
  const auto& [allowed, bad_words] = p;
  return std::tie(allowed, bad_words);
}

auto members(const ChatMessages& p) {
  const auto& [messages, tools, template_kwargs, tool_choice, tool_name, has_one_call, reasoning_effort,
               add_generation_prompt, continue_final_message] = p;
  return std::tie(messages, tools, template_kwargs, tool_choice, tool_name, has_one_call, reasoning_effort,
                  add_generation_prompt, continue_final_message);
}

void add(const AnswerForm& form, Bytes* bytes) {
  const auto& [kind, text, choices, is_strict, field, calls, has_several_calls] = form;
  bytes->add_all(std::tie(kind, text, choices, is_strict, field, has_several_calls));
  bytes->add(calls.size());
  for (const auto& [before, schema, after, is_strict_call] : calls)
    bytes->add_all(std::tie(before, schema, after, is_strict_call));
}

void add(const GenerationParams& params, Bytes* bytes) {
  const auto& [sampling, stop, output, prompt, form, token_rules] = params;
  bytes->add_all(members(sampling));
  bytes->add_all(members(stop));
  bytes->add_all(members(output));
  bytes->add_all(members(prompt));
  bytes->add_all(members(token_rules));
  bytes->add(form != nullptr);
  if (form) add(*form, bytes);
}

void add(const PromptInput& prompt, Bytes* bytes) {
  bytes->add(prompt.index());
  if (const auto* text = std::get_if<std::string>(&prompt)) bytes->add(*text);
  else if (const auto* chat = std::get_if<ChatMessages>(&prompt)) bytes->add_all(members(*chat));
  else bytes->add(std::get<std::vector<TokenId>>(prompt));
}

}  // namespace

size_t EqualRows::bytes_of(const Waiting& row) { return kWaitingBytes + sizeof row + row.texts.size(); }

EqualRows::Key EqualRows::key_of(const InputRequest& input) {
  const auto& [line, form, id, model_name, input_json, settings, prompt, params, arrival] = input;
  if (!is_determined(params.sampling)) return std::nullopt;
  Bytes bytes;
  bytes.add(form);
  bytes.add(settings);
  add(params, &bytes);
  add(prompt, &bytes);
  return sha256(bytes.bytes());
}

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

std::optional<EqualRows::Prompt> EqualRows::wait_for_equal(const Key& key, int64_t ordinal,
                                                           const InputRequest& input) {
  if (!key) return std::nullopt;
  std::lock_guard lock(mutex_);
  const auto first = computed_.find(*key);
  if (first == computed_.end()) return std::nullopt;
  Waiting row = waiting_of(ordinal, input);
  const size_t size = bytes_of(row);
  if (!has_room(size)) return std::nullopt;
  num_bytes_ += size;
  ++num_found_;
  waiting_[first->second.ordinal].push_back(std::move(row));
  return first->second.prompt;
}

void EqualRows::compute(const Key& key, int64_t ordinal, const Prompt& prompt) {
  if (!key) return;
  std::lock_guard lock(mutex_);
  if (!has_room(kComputedBytes)) return;
  const auto [first, is_new] = computed_.try_emplace(*key, First{ordinal, prompt});
  if (!is_new) return;  // there was no room to wait for that one
  digests_.emplace(ordinal, &first->first);
  num_bytes_ += kComputedBytes;
}

std::vector<FinishedItem> EqualRows::answers_like(const FinishedItem& item) {
  std::lock_guard lock(mutex_);
  const auto digest = digests_.find(item.ordinal);
  if (digest == digests_.end()) return {};
  computed_.erase(computed_.find(*digest->second));
  digests_.erase(digest);
  num_bytes_ -= kComputedBytes;
  std::vector<FinishedItem> items;
  const auto waiting = waiting_.find(item.ordinal);
  if (waiting == waiting_.end()) return items;
  items.reserve(waiting->second.size());
  for (const Waiting& row : waiting->second) {
    num_bytes_ -= bytes_of(row);
    items.push_back(answer_to(row, item));
  }
  waiting_.erase(waiting);
  return items;
}

int64_t EqualRows::num_found() const {
  std::lock_guard lock(mutex_);
  return num_found_;
}

}  // namespace llmb
