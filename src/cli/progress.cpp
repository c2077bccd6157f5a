#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/log.h"
#include "base/stderr_writer.h"

namespace llmb {

namespace {

constexpr double kBarIntervalMs = 200;
constexpr double kPlainIntervalMs = 10000;

ProgressKind resolve(ProgressKind kind) {
  if (kind != ProgressKind::kAuto) return kind;
  return isatty(STDERR_FILENO) ? ProgressKind::kBar : ProgressKind::kPlain;
}

std::string duration(double seconds) {
  char buffer[48];
  const auto s = static_cast<long>(seconds + 0.5);
  if (s >= 3600) std::snprintf(buffer, sizeof buffer, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  else std::snprintf(buffer, sizeof buffer, "%ld:%02ld", s / 60, s % 60);
  return buffer;
}

std::string describe(const JobProgress& p, std::optional<double> lines, bool is_exact) {
  char buffer[256];
  const double seconds = std::max(1e-3, p.engine.now_ms / 1000);
  std::string text = std::to_string(p.num_done);
  if (lines) text += (is_exact ? "/" : "/~") + std::to_string(static_cast<int64_t>(*lines + 0.5));
  std::snprintf(buffer, sizeof buffer,
                " done, %lld failed | %.0f in + %.0f out tokens/s | %lld running, %lld waiting, KV %.0f %%",
                static_cast<long long>(p.num_failed), static_cast<double>(p.engine.num_input_tokens) / seconds,
                static_cast<double>(p.engine.num_output_tokens) / seconds, static_cast<long long>(p.engine.num_running),
                static_cast<long long>(p.engine.num_waiting), 100 * p.engine.kv_use);
  text += buffer;
  // By tokens: requests under way count by the tokens that they are expected to need, the mean of those that are done.
  if (lines && p.num_done > 0 && p.engine.num_output_tokens > 0) {
    const double tokens_per_line =
        static_cast<double>(p.engine.num_output_tokens) / (p.num_done + 0.5 * p.engine.num_running);
    const double left = std::max(0.0, *lines * tokens_per_line - static_cast<double>(p.engine.num_output_tokens));
    text += " | ETA " + duration(left * seconds / static_cast<double>(p.engine.num_output_tokens));
  }
  return text;
}

}  // namespace

Progress::Progress(ProgressKind kind, std::optional<int64_t> num_lines, std::optional<int64_t> total_bytes)
    : kind_(resolve(kind)),
      num_lines_(num_lines),
      total_bytes_(total_bytes),
      next_ms_(kind_ == ProgressKind::kBar ? kBarIntervalMs : kPlainIntervalMs) {}

// By the share of the inputs' bytes that the lines seen so far take.
std::optional<double> Progress::estimate_lines(const JobProgress& p) const {
  if (num_lines_) return static_cast<double>(*num_lines_);
  if (!total_bytes_ || p.input_bytes <= 0) return std::nullopt;
  const double share = static_cast<double>(p.input_bytes) / static_cast<double>(*total_bytes_);
  return static_cast<double>(p.num_read) / std::min(1.0, share);
}

void Progress::print_status(const JobProgress& p) {
  finish();
  log_info(describe(p, estimate_lines(p), num_lines_.has_value() || p.input_bytes == total_bytes_));
}

void Progress::update(const JobProgress& p) {
  if (kind_ == ProgressKind::kNone || p.engine.now_ms < next_ms_) return;
  next_ms_ = p.engine.now_ms + (kind_ == ProgressKind::kBar ? kBarIntervalMs : kPlainIntervalMs);
  const std::optional<double> lines = estimate_lines(p);
  const std::string text = describe(p, lines, num_lines_.has_value() || p.input_bytes == total_bytes_);
  if (kind_ == ProgressKind::kPlain) return write_stderr_if_idle("llm-batch: " + text + "\n");
  constexpr int kWidth = 20;
  std::string bar;
  if (lines) {
    const int filled = static_cast<int>(kWidth * std::clamp(p.num_done / *lines, 0.0, 1.0));
    for (int i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "░";
    bar += ' ';
  }
  write_stderr_if_idle("\r\x1b[K" + bar + text);
  drawn_ = true;
}

void Progress::finish() {
  if (drawn_) write_stderr("\r\x1b[K");
  drawn_ = false;
}

}  // namespace llmb
