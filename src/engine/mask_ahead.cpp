#include "engine/mask_ahead.h"

#include <algorithm>
#include <functional>
#include <new>

#include "core/step_plan.h"

namespace llmb {

void FrequentTokens::add(TokenId token) {
  constexpr size_t kMaxEntries = 64;
  const auto at = std::find_if(entries_.begin(), entries_.end(), [token](const Entry& e) { return e.token == token; });
  if (at != entries_.end()) {
    ++at->count;
  } else if (entries_.size() < kMaxEntries) {
    entries_.push_back({token, 1});
  } else {
    const auto least = std::min_element(entries_.begin(), entries_.end(),
                                        [](const Entry& a, const Entry& b) { return a.count < b.count; });
    *least = {token, least->count + 1};
  }
}

std::vector<TokenId> FrequentTokens::best(size_t num_tokens) const {
  std::vector<Entry> entries = entries_;
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.count > b.count; });
  entries.resize(std::min(entries.size(), num_tokens));
  std::vector<TokenId> tokens;
  for (const Entry& entry : entries) tokens.push_back(entry.token);
  return tokens;
}

MaskAhead::~MaskAhead() {
  end();
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void MaskAhead::begin(std::span<const Row> rows) {
  constexpr size_t kMostTokens = 8;
  if (!is_used() || rows.empty()) return;
  tokens_ = frequent_.best(kMostTokens);
  if (tokens_.empty()) return;
  rows_.clear();
  for (const Row& row : rows) {
    rows_.push_back({row.form, row.state->clone()});
    const Followed& followed = rows_.back();
    for (const TokenId draft : row.drafts) followed.state->advance(draft);
  }
  std::stable_sort(rows_.begin(), rows_.end(),
                   [](const Followed& a, const Followed& b) { return std::less<>()(a.form, b.form); });
  forms_.clear();
  for (size_t i = 0; i < rows_.size(); ++i)
    if (i == 0 || rows_[i].form != rows_[i - 1].form) forms_.push_back(i);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  is_over_ = false;
  {
    const std::lock_guard lock(mutex_);
    has_work_ = true;
  }
  changed_.notify_all();
}

void MaskAhead::end() {
  is_over_ = true;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !has_work_; });
}

void MaskAhead::run() {
  std::unique_ptr<ThreadPool> pool;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return has_work_ || is_closed_; });
    if (is_closed_) return;
    lock.unlock();
    try {
      if (pool == nullptr) pool = std::make_unique<ThreadPool>(num_threads_);
      pool->parallel_for(static_cast<int64_t>(forms_.size()), [this](int64_t form, int) { find_form(forms_[form]); });
    } catch (const std::bad_alloc&) {  // who needs the mask will say so
    }
    lock.lock();
    has_work_ = false;
    changed_.notify_all();
  }
}

void MaskAhead::find_form(size_t first_row) {
  for (size_t i = first_row; i < rows_.size() && rows_[i].form == rows_[first_row].form; ++i) {
    if (is_over_.load(std::memory_order_relaxed)) return;
    const std::span<const uint32_t> allowed = rows_[i].state->allowed();
    for (const TokenId token : tokens_) {
      if (is_over_.load(std::memory_order_relaxed)) return;
      if (!is_allowed(allowed, token)) continue;
      const auto behind = rows_[i].state->clone();
      behind->advance(token);
      behind->allowed();
      num_masks_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

}  // namespace llmb
