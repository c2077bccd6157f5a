// Whether ranks on GPUs divide the rows of a step behind a sum over ranks (sequence parallel: Korthikanti et al. 2022,
// arXiv:2205.05198): each sums, adds and norms its own rows and gives the others what comes out, in place of all doing
// all rows.
#pragma once

#include <cstdint>

#include "core/rank_part.h"

namespace llmb {

// The sizes that decide it. A row of products has `width` numbers of `number_bytes` each.
//
// For each such byte a rank is sent, over its link,
//     sums in the order of ranks:   size - 1   where all do all rows,  2 (size - 1) / size  where rows are divided
//     NCCL's all-reduce:            2 (size - 1) / size  either way (less where switches add)
// and its memory moves, beside that, size + 1 bytes for a sum in the order of ranks and, for the norm, 8 bytes a number
// and 2 a byte; divided rows take a size-th of both. There is one call more in which ranks meet, of which each takes
// some 10 us, so few rows are not divided.
struct DividedRowsCase {
  int64_t size = 2;  // ranks
  int64_t width = 0;
  int64_t number_bytes = 2;
  bool deterministic = false;  // sums are in the order of ranks also where rows are not divided
};

// How many microseconds a row saves by that.
double saved_us_of_row(const DividedRowsCase& c);
// From how many rows on they are divided, where a call takes `meeting_us`. INT64_MAX: never
int64_t min_divided_rows(const DividedRowsCase& c, double meeting_us);

// As many rows for each rank, from the first one on: the last ranks may have fewer or none.
constexpr int64_t rows_of_each(int64_t rows, int64_t size) { return (rows + size - 1) / size; }
Range rows_of_rank(int64_t rows, int64_t size, int64_t rank);

}  // namespace llmb
