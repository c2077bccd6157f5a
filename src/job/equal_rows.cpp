#include "job/equal_rows.h"

#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace llmb {

namespace {

// In tables, beside what is stored there.
constexpr size_t kComputedBytes = 112, kWaitingBytes = 64;

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

auto members(const AnswerSplit& p) {
  const auto& [formats, starts_in_reasoning, tool_names] = p;
  const auto& [calls, reasoning] = formats;
  return std::tie(calls, reasoning, starts_in_reasoning, tool_names);
}

void add(const GenerationParams& params, Bytes* bytes) {
  const auto& [sampling, stop, output, prompt, answer_form, token_rules] = params;
  bytes->add_all(members(sampling));
  bytes->add_all(members(stop));
  bytes->add_all(members(output));
}

}  // namespace

size_t EqualRows::bytes_of(const Waiting& row) { return kWaitingBytes + sizeof row + row.texts.size(); }

// How a prompt was cut shows in its tokens, form and token rules in the constraint.
Sha256Digest EqualRows::digest_of(const Request& request) {
  const auto& [line, form, id, model_name, input, settings, echo_text, split, tokens, num_truncated, params, eos, rng,
               is_indivisible, constraint, constraint_bytes, arrival] = request;
  Bytes bytes;
  bytes.add(form);
  bytes.add(settings);
  bytes.add(echo_text);
  bytes.add_all(members(split));
  bytes.add(tokens);
  add(params, &bytes);
  bytes.add(eos);
  bytes.add(is_indivisible);
  bytes.add(constraint.get());
  return sha256(bytes.bytes());
}

EqualRows::Waiting EqualRows::waiting_of(int64_t ordinal, const Request& request) {
  const LineRef& line = request.line;
  if (sources_.empty() || sources_.back() != line.source) sources_.push_back(line.source);
  return {ordinal,
          line.index,
          line.line_number,
          line.byte_offset,
          line.content_hash,
          static_cast<int32_t>(sources_.size()) - 1,
          request.num_truncated_tokens,
          static_cast<uint32_t>(request.id_json.size()),
          static_cast<uint32_t>(request.model_name.size()),
          request.id_json + request.model_name + request.input_json};
}

FinishedItem EqualRows::answer_to(const Waiting& row, const FinishedItem& like) const {
  FinishedItem item = {row.ordinal, like.completion, {}};
  Completion& completion = item.completion;
  const std::string_view texts = row.texts;
  completion.line = {row.index, sources_[row.source], row.line_number, row.byte_offset, row.content_hash};
  completion.id_json = texts.substr(0, row.id_size);
  completion.model_name = texts.substr(row.id_size, row.model_size);
  completion.input_json = texts.substr(row.id_size + row.model_size);
  completion.num_truncated_tokens = row.num_truncated_tokens;
  completion.latency.num_cached_tokens = like.completion.num_prompt_tokens;
  return item;
}

bool EqualRows::wait_for_equal(int64_t ordinal, const std::shared_ptr<const Request>& request) {
  if (!is_determined(*request)) return false;
  const Sha256Digest digest = digest_of(*request);
  std::lock_guard lock(mutex_);
  const auto first = computed_.find(digest);
  if (first == computed_.end()) {
    if (!has_room(kComputedBytes)) return false;
    digests_.emplace(ordinal, &computed_.emplace(digest, ordinal).first->first);
    if (request->constraint) constraints_.emplace(ordinal, request->constraint);
    num_bytes_ += kComputedBytes;
    return false;
  }
  Waiting row = waiting_of(ordinal, *request);
  const size_t size = bytes_of(row);
  if (!has_room(size)) return false;
  num_bytes_ += size;
  ++num_found_;
  waiting_[first->second].push_back(std::move(row));
  return true;
}

std::vector<FinishedItem> EqualRows::answers_like(const FinishedItem& item) {
  std::lock_guard lock(mutex_);
  const auto digest = digests_.find(item.ordinal);
  if (digest == digests_.end()) return {};
  computed_.erase(computed_.find(*digest->second));
  digests_.erase(digest);
  constraints_.erase(item.ordinal);
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
