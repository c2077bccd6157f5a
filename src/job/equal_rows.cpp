#include "job/equal_rows.h"

#include <string_view>
#include <utility>

#include "base/packed_bytes.h"
#include "job/packed_answer.h"
#include "job/packed_params.h"

namespace llmb {

namespace {

// In tables, beside what is stored there.
constexpr size_t kComputedBytes = 152, kWaitingBytes = 64;

bool is_determined(const SamplingParams& sampling) { return sampling.temperature == 0 || sampling.seed.has_value(); }

}  // namespace

EqualRows::Key EqualRows::key_of(const InputRequest& input) {
  const auto& [line, form, id, model_name, adapter, input_json, settings, prompt, more_prompts, first_texts, params,
               arrival] = input;
  if (!is_determined(params.sampling) && params.score.options.empty() && params.task == Task::kGenerate)
    return std::nullopt;
  PackedBytes bytes;
  bytes.add(form);
  bytes.add(settings);
  bytes.add(adapter.value_or(""));
  add_params(params, &bytes);
  add_prompts(prompt, more_prompts, &bytes);
  bytes.add(first_texts);
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
