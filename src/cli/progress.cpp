#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/log.h"

namespace llmb {

namespace {

constexpr double kBarIntervalMs = 200;
constexpr double kPlainIntervalMs = 10000;

ProgressKind resolve(ProgressKind kind) {
  if (kind != ProgressKind::kAuto) return kind;
  return isatty(STDERR_FILENO) ? ProgressKind::kBar : ProgressKind::kPlain;
}

void write_stderr(const std::string& text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Lines in all inputs, from the bytes read for the lines seen so far.
std::optional<double> estimate_lines(const EngineProgress& p, int64_t bytes_read, std::optional<int64_t> total_bytes) {
  const auto seen = static_cast<double>(p.num_done + p.num_running + p.num_waiting);
  if (!total_bytes || *total_bytes <= 0 || bytes_read <= 0 || seen < 1) return std::nullopt;
  // The reader works in chunks and ahead: near the end this is exact, early it is a little low.
  return std::max(seen, seen * static_cast<double>(*total_bytes) / static_cast<double>(std::min(bytes_read, *total_bytes)));
}

double fraction_of(int64_t bytes_read, std::optional<int64_t> total_bytes) {
  return total_bytes && *total_bytes > 0 ? static_cast<double>(bytes_read) / static_cast<double>(*total_bytes) : 0;
}

std::string duration(double seconds) {
  char buffer[48];
  const auto s = static_cast<long>(seconds + 0.5);
  if (s >= 3600) std::snprintf(buffer, sizeof buffer, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  else std::snprintf(buffer, sizeof buffer, "%ld:%02ld", s / 60, s % 60);
  return buffer;
}

std::string describe(const EngineProgress& p, std::optional<double> lines, double fraction) {
  char buffer[256];
  const double seconds = std::max(1e-3, p.now_ms / 1000);
  std::string text = std::to_string(p.num_done);
  if (lines) text += (fraction < 1 ? "/~" : "/") + std::to_string(static_cast<int64_t>(*lines + 0.5));
  std::snprintf(buffer, sizeof buffer, " done, %lld failed | %.0f in + %.0f out tokens/s | %lld running, %lld waiting, KV %.0f %%",
                static_cast<long long>(p.num_failed), static_cast<double>(p.num_input_tokens) / seconds,
                static_cast<double>(p.num_output_tokens) / seconds, static_cast<long long>(p.num_running),
                static_cast<long long>(p.num_waiting), 100 * p.kv_use);
  text += buffer;
  // By tokens: requests under way count by the tokens that they are expected to need, the mean of those that are done.
  if (lines && p.num_done > 0 && p.num_output_tokens > 0) {
    const double tokens_per_line = static_cast<double>(p.num_output_tokens) / (p.num_done + 0.5 * p.num_running);
    const double left = std::max(0.0, *lines * tokens_per_line - static_cast<double>(p.num_output_tokens));
    text += " | ETA " + duration(left * seconds / static_cast<double>(p.num_output_tokens));
  }
  return text;
}

}  // namespace

Progress::Progress(ProgressKind kind)
    : kind_(resolve(kind)), next_ms_(kind_ == ProgressKind::kBar ? kBarIntervalMs : kPlainIntervalMs) {}

void Progress::print_status(const EngineProgress& p, int64_t bytes_read, std::optional<int64_t> total_bytes) {
  finish();
  log_info(describe(p, estimate_lines(p, bytes_read, total_bytes), fraction_of(bytes_read, total_bytes)));
}

void Progress::update(const EngineProgress& p, int64_t bytes_read, std::optional<int64_t> total_bytes) {
  if (kind_ == ProgressKind::kNone || p.now_ms < next_ms_) return;
  next_ms_ = p.now_ms + (kind_ == ProgressKind::kBar ? kBarIntervalMs : kPlainIntervalMs);
  const std::optional<double> lines = estimate_lines(p, bytes_read, total_bytes);
  const std::string text = describe(p, lines, fraction_of(bytes_read, total_bytes));
  if (kind_ == ProgressKind::kPlain) return log_info(text);
  constexpr int kWidth = 20;
  std::string bar;
  if (lines) {
    const int filled = static_cast<int>(kWidth * std::clamp(p.num_done / *lines, 0.0, 1.0));
    for (int i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "░";
    bar += ' ';
  }
  write_stderr("\r\x1b[K" + bar + text);
  drawn_ = true;
}

void Progress::finish() {
  if (drawn_) write_stderr("\r\x1b[K");
  drawn_ = false;
}

}  // namespace llmb
