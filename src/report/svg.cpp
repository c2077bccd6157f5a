#include "report/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"

namespace llmb {

namespace {

constexpr double kWidth = 360, kHeight = 210;
constexpr double kLeft = 46, kRight = 12, kTop = 12, kBottom = 34;

std::string fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

// A coordinate.
std::string at(double value) { return fixed(value, 1); }

std::string with_digits(double value) {
  return fixed(value, value >= 100 || value == std::round(value) ? 0 : value >= 10 ? 1 : 2);
}

// Maps values to a stretch of the drawing.
class Scale {
 public:
  Scale(double low, double high, bool is_log, double from, double to)
      : is_log_(is_log), low_(place(low)), high_(place(high)), from_(from), to_(to) {}
  double operator()(double value) const {
    const double share = high_ > low_ ? (place(value) - low_) / (high_ - low_) : 0.5;
    return from_ + std::clamp(share, 0.0, 1.0) * (to_ - from_);
  }

 private:
  double place(double value) const { return is_log_ ? std::log(value) : value; }

  const bool is_log_;
  const double low_, high_, from_, to_;
};

struct Range {
  double low = INFINITY, high = -INFINITY;

  bool is_empty() const { return !(low <= high); }
  void take(double value) { low = std::min(low, value), high = std::max(high, value); }
  // So that there is room for a value that stands alone.
  void widen(bool is_log) {
    if (high > low) return;
    if (is_log) low /= 2, high *= 2;
    else low = std::min(0.0, low), high = high > 0 ? high * 1.1 : 1;
  }
};

bool is_drawable(double value, const Axis& axis) { return std::isfinite(value) && (!axis.is_logarithmic || value > 0); }

std::vector<double> ticks_of(const Range& range, const Axis& axis, int count) {
  return axis.is_logarithmic ? logarithmic_ticks(range.low, range.high) : linear_ticks(range.low, range.high, count);
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + at(x) + "\" y=\"" + at(y) + "\" text-anchor=\"" + anchor + "\">" + escape_html(text) + "</text>";
}

std::string open_svg(const std::string& title) {
  return "<svg viewBox=\"0 0 " + at(kWidth) + " " + at(kHeight) + "\" role=\"img\" aria-label=\"" + escape_html(title) +
         "\">";
}

std::string no_data(const std::string& title) {
  return open_svg(title) + text_at(kWidth / 2, kHeight / 2, "middle", "no data") + "</svg>";
}

std::string draw_axes(const Axis& x, const Axis& y, const Range& xs, const Range& ys, const Scale& sx, const Scale& sy) {
  std::string out = "<g class=\"grid\">";
  for (const double tick : ticks_of(ys, y, 4))
    out += "<path d=\"M" + at(kLeft) + " " + at(sy(tick)) + "H" + at(kWidth - kRight) + "\"/>";
  out += "</g><g class=\"tick\">";
  for (const double tick : ticks_of(ys, y, 4)) out += text_at(kLeft - 6, sy(tick) + 3.5, "end", format_value(tick, y.unit));
  double last = -INFINITY;
  for (const double tick : ticks_of(xs, x, 5)) {
    if (sx(tick) - last < 44) continue;
    last = sx(tick);
    out += text_at(last, kHeight - kBottom + 14, "middle", format_value(tick, x.unit));
  }
  out += "</g><path class=\"axis\" d=\"M" + at(kLeft) + " " + at(kHeight - kBottom) + "H" + at(kWidth - kRight) + "\"/>";
  return out + "<g class=\"label\">" + text_at((kLeft + kWidth - kRight) / 2, kHeight - 4, "middle", x.label) + "</g>";
}

std::string colour_class(int colour) { return "c" + std::to_string(colour % kNumSeriesColours); }

std::string draw_series(const Series& s, const std::vector<std::pair<double, double>>& places) {
  std::string out = "<g class=\"" + colour_class(s.colour) + "\">";
  if (!s.name.empty()) out += "<title>" + escape_html(s.name) + "</title>";
  if (s.look == SeriesLook::kDots) {
    for (const auto& [x, y] : places) out += "<circle class=\"dot\" cx=\"" + at(x) + "\" cy=\"" + at(y) + "\" r=\"2.2\"/>";
    return out + "</g>";
  }
  std::string line;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto [x, y] = places[i];
    line += (i == 0 ? "M" : "L") + at(x) + " " + at(y);
  }
  const double bottom = kHeight - kBottom;
  if (s.look == SeriesLook::kArea)
    out += "<path class=\"area\" d=\"" + line + "L" + at(places.back().first) + " " + at(bottom) + "L" +
           at(places.front().first) + " " + at(bottom) + "Z\"/>";
  return out + "<path class=\"" + (s.look == SeriesLook::kDashed ? "line dashed" : "line") + "\" d=\"" + line + "\"/></g>";
}

// The share of a histogram's values in its fullest bin.
double peak_share(const Histogram& h) {
  int64_t sum = 0, most = 0;
  for (const int64_t count : h.counts) sum += count, most = std::max(most, count);
  return sum > 0 ? static_cast<double>(most) / static_cast<double>(sum) : 0;
}

std::string draw_bars(const Histogram& h, int colour, const Axis& x, const Scale& sx, const Scale& sy) {
  int64_t sum = 0;
  for (const int64_t count : h.counts) sum += count;
  std::string out = "<g class=\"" + colour_class(colour) + "\">";
  for (size_t i = 0; i < h.counts.size(); ++i) {
    if (h.counts[i] == 0) continue;
    const double left = sx(h.edges[i]), right = sx(h.edges[i + 1]);
    const double width = std::max(3.0, right - left - 1), top = sy(static_cast<double>(h.counts[i]) / static_cast<double>(sum));
    out += "<rect class=\"bar\" x=\"" + at(right > left ? left : left - 1.5) + "\" y=\"" + at(top) + "\" width=\"" + at(width) +
           "\" height=\"" + at(std::max(0.5, kHeight - kBottom - top)) + "\"><title>" +
           escape_html(format_value(h.edges[i], x.unit) + " to " + format_value(h.edges[i + 1], x.unit) + ": " +
                       format_count(static_cast<double>(h.counts[i]))) +
           "</title></rect>";
  }
  return out + "</g>";
}

// The share of values up to each one.
std::string draw_cumulative(const HistogramSeries& s, const Scale& sx, const Scale& sy) {
  const Histogram& h = *s.histogram;
  double sum = 0, seen = 0;
  for (const int64_t count : h.counts) sum += static_cast<double>(count);
  std::vector<std::pair<double, double>> places = {{sx(h.edges[0]), sy(0)}};
  for (size_t i = 0; i < h.counts.size(); ++i) {
    seen += static_cast<double>(h.counts[i]);
    places.emplace_back(sx(h.edges[i + 1]), sy(seen / sum));
  }
  return draw_series({s.name, s.colour, SeriesLook::kLine, {}}, places);
}

std::string draw_marks(const std::vector<Mark>& marks, const Scale& sx) {
  std::string out = "<g class=\"mark\">";
  double last = -INFINITY;
  for (const Mark& mark : marks) {
    const double x = sx(mark.value);
    out += "<path d=\"M" + at(x) + " " + at(kTop + 4) + "V" + at(kHeight - kBottom) + "\"/>";
    if (x - last < 24) continue;  // its label would lie on the last one
    out += text_at(x, kTop, "middle", mark.label);
    last = x;
  }
  return out + "</g>";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t size = utf8_length(text.data() + i, text.data() + text.size());
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool is_control = size == 1 && (byte == 127 || (byte < 32 && byte != '\n' && byte != '\t'));
    if (size == 0 || is_control) out += "\uFFFD";
    else if (byte == '&') out += "&amp;";
    else if (byte == '<') out += "&lt;";
    else if (byte == '>') out += "&gt;";
    else if (byte == '"') out += "&quot;";
    else if (byte == '\'') out += "&#39;";
    else out.append(text.substr(i, size));
    i += std::max<size_t>(1, size);
  }
  return out;
}

std::string format_count(double value) {
  const double size = std::abs(value);
  if (size >= 1e12) return with_digits(value / 1e12) + " T";
  if (size >= 1e9) return with_digits(value / 1e9) + " G";
  if (size >= 1e6) return with_digits(value / 1e6) + " M";
  if (size >= 1e4) return with_digits(value / 1e3) + " k";
  if (size >= 1e3) {
    const std::string digits = fixed(std::round(value), 0);
    return digits.substr(0, digits.size() - 3) + "," + digits.substr(digits.size() - 3);
  }
  return with_digits(value);
}

std::string format_ms(double ms) {
  if (ms >= 2 * 3600e3) return with_digits(ms / 3600e3) + " h";
  if (ms >= 2 * 60e3) return with_digits(ms / 60e3) + " min";
  if (ms >= 1000) return with_digits(ms / 1000) + " s";
  if (ms > 0 && ms < 0.1) return with_digits(ms * 1000) + " µs";
  return with_digits(ms) + " ms";
}

std::string format_percent(double share) {
  const double percent = 100 * share;
  return fixed(percent, percent == std::round(percent) || percent >= 10 ? 0 : percent >= 1 ? 1 : 2) + " %";
}

std::string format_value(double value, Unit unit) {
  if (unit == Unit::kMilliseconds) return format_ms(value);
  if (unit == Unit::kSeconds) return value == 0 ? "0 s" : format_ms(1000 * value);
  return unit == Unit::kPercent ? format_percent(value) : format_count(value);
}

std::vector<double> linear_ticks(double low, double high, int count) {
  const double rough = (high - low) / count, magnitude = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * magnitude;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * magnitude >= rough * 0.999) {
      step = factor * magnitude;
      break;
    }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); ++i) ticks.push_back(i == 0 ? 0 : i * step);
  return ticks;
}

std::vector<double> logarithmic_ticks(double low, double high) {
  const bool is_wide = high / low > 2000;
  std::vector<double> ticks;
  for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10)
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (is_wide && factor > 1) continue;
      const double tick = factor * decade;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push_back(tick);
    }
  return ticks;
}

std::string draw_plot(const std::string& title, const Axis& x, const Axis& y, const std::vector<Series>& series) {
  Range xs, ys;
  if (!y.is_logarithmic) ys.take(0);
  bool is_empty = true;
  for (const Series& s : series)
    for (const auto& [px, py] : s.points) {
      if (!is_drawable(px, x) || !is_drawable(py, y)) continue;
      xs.take(px), ys.take(py);
      is_empty = false;
    }
  if (is_empty) return no_data(title);
  xs.widen(x.is_logarithmic), ys.widen(y.is_logarithmic);
  if (!y.is_logarithmic) ys.high *= 1.05;
  const Scale sx(xs.low, xs.high, x.is_logarithmic, kLeft, kWidth - kRight);
  const Scale sy(ys.low, ys.high, y.is_logarithmic, kHeight - kBottom, kTop);
  std::string out = open_svg(title) + draw_axes(x, y, xs, ys, sx, sy);
  for (const Series& s : series) {
    std::vector<std::pair<double, double>> places;
    for (const auto& [px, py] : s.points)
      if (is_drawable(px, x) && is_drawable(py, y)) places.emplace_back(sx(px), sy(py));
    if (!places.empty()) out += draw_series(s, places);
  }
  return out + "</svg>";
}

std::string draw_histograms(const std::string& title, const Axis& x, const std::vector<HistogramSeries>& series,
                            const std::vector<Mark>& marks) {
  Range xs, ys;
  ys.take(0);
  for (const HistogramSeries& s : series) {
    if (s.histogram->counts.empty() || !is_drawable(s.histogram->edges[0], x)) continue;
    xs.take(s.histogram->edges.front()), xs.take(s.histogram->edges.back());
    ys.take(series.size() == 1 ? peak_share(*s.histogram) : 1);
  }
  if (xs.is_empty() || !(ys.high > 0)) return no_data(title);
  xs.widen(x.is_logarithmic);
  ys.high *= 1.08;
  const Scale sx(xs.low, xs.high, x.is_logarithmic, kLeft, kWidth - kRight);
  const Scale sy(ys.low, ys.high, false, kHeight - kBottom, kTop + 6);
  std::string out = open_svg(title) + draw_axes(x, {"", Unit::kPercent, false}, xs, ys, sx, sy);
  for (const HistogramSeries& s : series) {
    if (s.histogram->counts.empty() || !is_drawable(s.histogram->edges[0], x) || !(peak_share(*s.histogram) > 0)) continue;
    out += series.size() == 1 ? draw_bars(*s.histogram, s.colour, x, sx, sy) : draw_cumulative(s, sx, sy);
  }
  return out + draw_marks(marks, sx) + "</svg>";
}

}  // namespace llmb
