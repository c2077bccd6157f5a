#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
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

// Where it is not known: by the share of the inputs' bytes that the lines seen so far take.
std::optional<double> estimate_lines(const JobProgress& p) {
  if (p.num_lines) return static_cast<double>(*p.num_lines);
  if (!p.total_bytes || p.input_bytes <= 0) return std::nullopt;
  const double share = static_cast<double>(p.input_bytes) / static_cast<double>(*p.total_bytes);
  return static_cast<double>(p.num_read) / std::min(1.0, share);
}

}  // namespace

std::optional<double> fraction_done(const JobProgress& p) {
  const std::optional<double> lines = estimate_lines(p);
  if (!lines || p.num_read == 0) return std::nullopt;
  const Forecast& f = p.forecast;
  constexpr double kMost = 0.999;  // all is done when the records are on disk
  const double unread = std::max(1.0, *lines / static_cast<double>(p.num_read));
  const double expected = static_cast<double>(f.num_prompt_tokens - f.num_equal_tokens + f.num_output_tokens) * unread;
  if (!(expected > 0)) return std::min(kMost, static_cast<double>(p.num_done) / std::max(1.0, *lines));
  return std::min(kMost, static_cast<double>(p.num_finished_tokens + p.engine.num_active_tokens) / expected);
}

std::string Progress::describe(const JobProgress& p) {
  char buffer[256];
  const std::optional<double> lines = estimate_lines(p), fraction = fraction_done(p);
  const bool is_exact = p.num_lines || p.input_bytes == p.total_bytes;
  const double seconds = std::max(1e-3, p.engine.now_ms / 1000);
  std::string text;
  if (fraction) {
    fraction_ = std::max(fraction_, *fraction);
    text = std::to_string(static_cast<int>(100 * fraction_)) + " % | ";
  }
  text += std::to_string(p.num_done);
  if (lines) text += (is_exact ? "/" : "/~") + std::to_string(static_cast<int64_t>(*lines + 0.5));
  text += " done, ";
  if (p.only_error.empty()) text += std::to_string(p.num_failed) + " failed";
  else text += "every one failed: " + escape_control(p.only_error);
  std::snprintf(buffer, sizeof buffer, " | %.0f in + %.0f out tokens/s | %lld running, %lld waiting, KV %.0f %%",
                static_cast<double>(p.engine.num_input_tokens) / seconds,
                static_cast<double>(p.engine.num_output_tokens) / seconds, static_cast<long long>(p.engine.num_running),
                static_cast<long long>(p.engine.num_waiting), 100 * p.engine.kv_use);
  text += buffer;
  if (fraction && *fraction > 0) text += " | ETA " + duration(seconds * (1 - *fraction) / *fraction);
  return text;
}

Progress::Progress(ProgressKind kind)
    : kind_(resolve(kind)), next_ms_(kind_ == ProgressKind::kBar ? kBarIntervalMs : kPlainIntervalMs) {}

void Progress::print_status(const JobProgress& p) {
  finish();
  log_info(describe(p));
}

void Progress::print_error(const ErrorCount& error) {
  if (kind_ == ProgressKind::kNone) return;
  finish();
  log_warning(error.first_place + ": " + error.code + ": " + error.first_message);
}

void Progress::update(const JobProgress& p) {
  if (kind_ == ProgressKind::kNone || p.engine.now_ms < next_ms_) return;
  next_ms_ = p.engine.now_ms + (kind_ == ProgressKind::kBar ? kBarIntervalMs : kPlainIntervalMs);
  const std::string text = describe(p);
  if (kind_ == ProgressKind::kPlain) return write_stderr_if_idle("llm-batch: " + text + "\n");
  constexpr int kWidth = 20;
  std::string bar;
  if (estimate_lines(p)) {
    const int filled = static_cast<int>(kWidth * fraction_);
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
