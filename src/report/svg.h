// Plots as SVG text: pure functions of values. Colours are CSS classes (c0 … c6 of a series, and those of page_style.h),
// so that a page's light and dark looks need one drawing. All text is escaped.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/quantile_sketch.h"

namespace llmb {

inline constexpr int kNumSeriesColours = 7;

// For text and attributes of HTML and SVG. Control characters but line breaks and tabs, and bytes that are not UTF-8,
// become U+FFFD.
std::string escape_html(std::string_view text);

std::string format_count(double value);     // "1,234", "12.3 k", "4.56 M"
std::string format_ms(double milliseconds);  // "0.8 ms", "120 ms", "2.5 s", "3.1 min", "2.0 h"
std::string format_percent(double share);    // "12 %", "0.4 %"

enum class Unit { kCount, kMilliseconds, kSeconds, kPercent };

std::string format_value(double value, Unit unit);

struct Axis {
  std::string label;
  Unit unit = Unit::kCount;
  bool is_logarithmic = false;
};

enum class SeriesLook { kLine, kArea, kDots, kDashed };

// Values that are not finite are left out, on a logarithmic axis also those that are not positive.
struct Series {
  std::string name;  // of the tooltip
  int colour = 0;    // taken modulo kNumSeriesColours
  SeriesLook look = SeriesLook::kLine;
  std::vector<std::pair<double, double>> points;
};

// Ascending, all within [low, high]; REQUIRES: low < high, for logarithmic ones low > 0.
std::vector<double> linear_ticks(double low, double high, int count);
std::vector<double> logarithmic_ticks(double low, double high);

// A whole <svg>, 360 units wide; y begins at 0 unless it is logarithmic. Says "no data" where there is none.
std::string draw_plot(const std::string& title, const Axis& x, const Axis& y, const std::vector<Series>& series);

// Bars of one histogram, as shares of its values; of several the shares up to each value, as curves. `marks` are values
// to show by a line.
struct HistogramSeries {
  std::string name;
  int colour = 0;
  const Histogram* histogram = nullptr;
};
struct Mark {
  std::string label;
  double value = 0;
};
std::string draw_histograms(const std::string& title, const Axis& x, const std::vector<HistogramSeries>& series,
                            const std::vector<Mark>& marks);

}  // namespace llmb
