#include "cli/forecast_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace llmb {

namespace {

std::string in_thousands(int64_t n) {
  std::string digits = std::to_string(n);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string duration_text(double seconds) {
  char text[64];
  if (seconds < 100) {
    std::snprintf(text, sizeof text, "%.1f s", seconds);
  } else {
    const auto s = static_cast<long>(seconds + 0.5);
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld h", s / 3600, s / 60 % 60, s % 60);
  }
  return text;
}

std::string saved_text(const Forecast& f) {
  std::string text;
  if (f.num_shared_tokens > 0) text += in_thousands(f.num_shared_tokens) + " shared with other rows";
  if (f.num_equal_rows > 0)
    text += (text.empty() ? "" : ", ") + in_thousands(f.num_equal_tokens) + " in " + in_thousands(f.num_equal_rows) +
            (f.num_equal_rows == 1 ? " row equal to another" : " rows equal to others");
  return text.empty() ? "" : " of which " + in_thousands(f.num_computed_prompt_tokens()) + " are computed (" + text + ")";
}

std::string mebibytes(double num_slots, const ForecastContext& c) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f MiB", num_slots * c.kv_bytes_per_token / 1048576.0);
  return text;
}

std::string kv_text(const Forecast& f, const ForecastContext& c) {
  const int64_t peak = *f.peak_kv_tokens;
  std::string text = "; KV " + in_thousands(peak) + " tokens at the peak";
  if (!c.pool_tokens) return text;
  // The last block of an ended row, on average half full, is not kept; half of a running one's is spare.
  const auto pool = static_cast<double>(*c.pool_tokens), half_block = (c.block_size - 1) / 2.0;
  const auto running = static_cast<double>(f.peak_kv_answers);
  const auto ended = std::max(0.0, static_cast<double>(f.num_rows - f.num_equal_rows) - running);
  const double at_peak = std::min(static_cast<double>(f.peak_kv_slots), pool);
  const double all = static_cast<double>(f.num_computed_tokens()) + (running - ended) * half_block;
  const double kept = std::min(std::min(at_peak + static_cast<double>(c.kept_tokens), all), pool);
  text += " (" + mebibytes(at_peak, c);
  if (c.kept_tokens > 0 && kept > at_peak) text += ", " + mebibytes(kept, c) + " with kept prefixes";
  if (c.lent_tokens > 0) {  // it may have read all that the rows hold
    const double lent = std::ceil(at_peak / c.lent_tokens) * c.block_size;
    text += ", at most " + mebibytes(std::min(std::max(at_peak, kept) + lent, pool), c) + " with the draft model's";
  }
  // Rows wait for room there, so the peak is never above it.
  const bool is_full = peak >= *c.pool_tokens - *c.pool_tokens / 50;
  return text + (is_full ? "), the pool is full" : "), which fits");
}

std::string time_text(const Forecast& f, const ForecastContext& c) {
  if (!f.seconds) return "; time not known, no run was measured";
  std::string text = "; " + std::string(f.is_limit ? "at most " : "") + duration_text(*f.seconds);
  if (!c.price_per_hour) return text;
  char price[64];
  std::snprintf(price, sizeof price, ", costs %.4g", *f.seconds / 3600 * *c.price_per_hour);
  return text + price;
}

}  // namespace

std::string forecast_text(const Forecast& f, const ForecastContext& context) {
  std::string text = in_thousands(f.num_rows) + (f.num_rows == 1 ? " row, " : " rows, ") +
                     in_thousands(f.num_prompt_tokens) + " prompt tokens";
  text += saved_text(f);
  if (context.has_answers)
    text += std::string(", ") + (f.knows_lengths ? "" : f.is_limit ? "at most " : "about ") +
            in_thousands(f.num_output_tokens) + " output tokens";
  if (f.peak_kv_tokens) text += kv_text(f, context);
  return text + time_text(f, context);
}

}  // namespace llmb
