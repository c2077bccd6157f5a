#include "backend/cuda/divided_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/tuning.h"

namespace llmb {

namespace tuning = cuda::tuning;

double saved_us_of_row(const DividedRowsCase& c) {
  const auto size = static_cast<double>(c.size), width = static_cast<double>(c.width);
  const double bytes = width * static_cast<double>(c.number_bytes), others = (size - 1) / size;
  const double link = c.deterministic ? (size - 1 - 2 * others) * bytes : 0;
  const double sum = (size + 1) * bytes, norm = 8 * width + 2 * bytes;
  const double memory = norm * others + (c.deterministic ? sum * others : -sum / size);
  return link / tuning::kLinkBytesPerUs + memory / tuning::kRankMemoryBytesPerUs;
}

int64_t min_divided_rows(const DividedRowsCase& c, double meeting_us) {
  const double saved_us = saved_us_of_row(c);
  if (!(saved_us > 0)) return INT64_MAX;
  return std::max(tuning::kFewestDividedRows, static_cast<int64_t>(std::ceil(meeting_us / saved_us)));
}

Range rows_of_rank(int64_t rows, int64_t size, int64_t rank) {
  const int64_t each = rows_of_each(rows, size);
  return {std::min(rows, rank * each), std::min(rows, (rank + 1) * each)};
}

}  // namespace llmb
