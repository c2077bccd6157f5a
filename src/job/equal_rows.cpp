#include "job/equal_rows.h"

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/content_hash.h"

namespace llmb {

namespace {

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

void add(const GenerationParams& params, Bytes* bytes) {
  const auto& [sampling, stop, output, prompt, answer_form, token_rules] = params;
  bytes->add_all(members(sampling));
  bytes->add_all(members(stop));
  bytes->add_all(members(output));
}

}  // namespace

size_t EqualRows::bytes_of(const Waiting& row) {
  return sizeof row + row.line.source.size() + row.id_json.size() + row.model_name.size() + row.input_json.size();
}

// How a prompt was cut shows in its tokens, form and token rules in the constraint.
EqualRows::Digest EqualRows::digest_of(const Request& request) {
  const auto& [line, form, id, model_name, input, tokens, num_truncated, params, eos, rng, is_indivisible, constraint,
               constraint_bytes, arrival] = request;
  Bytes bytes;
  bytes.add(form);
  bytes.add(tokens);
  add(params, &bytes);
  bytes.add(eos);
  bytes.add(is_indivisible);
  bytes.add(constraint.get());
  ContentHash first, second;
  first.update(bytes.bytes());
  second.update("again");
  second.update(bytes.bytes());
  return {first.digest(), second.digest()};
}

bool EqualRows::wait_for_equal(int64_t ordinal, const std::shared_ptr<const Request>& request) {
  if (!is_determined(*request)) return false;
  const Digest digest = digest_of(*request);
  std::lock_guard lock(mutex_);
  const auto [at, is_first] = computed_.try_emplace(digest, Computed{ordinal, request->constraint, {}});
  if (is_first) {
    digests_.emplace(ordinal, digest);
    return false;
  }
  Waiting row = {ordinal,           request->line,       request->id_json, request->model_name,
                 request->input_json, request->num_truncated_tokens};
  const size_t size = bytes_of(row);
  if (num_bytes_ + size > max_bytes_) return false;
  num_bytes_ += size;
  ++num_found_;
  at->second.waiting.push_back(std::move(row));
  return true;
}

std::vector<FinishedItem> EqualRows::answers_like(const FinishedItem& item) {
  std::vector<Waiting> waiting;
  {
    std::lock_guard lock(mutex_);
    const auto at = digests_.find(item.ordinal);
    if (at == digests_.end()) return {};
    const auto computed = computed_.find(at->second);
    waiting = std::move(computed->second.waiting);
    for (const Waiting& row : waiting) num_bytes_ -= bytes_of(row);
    computed_.erase(computed);
    digests_.erase(at);
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
