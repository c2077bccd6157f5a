// Stages follow each other as in sample.cpp, each for all rows: every rank looks at its part, then all learn of all.
// Top-p bisects as there, with an exchange of a count and a sum for each halving, of all rows that are still looking.
#include "kernels/cpu/sample_parts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/logit_passes.h"
#include "kernels/cpu/part_row.h"
#include "kernels/cpu/sampled_row.h"

namespace llmb::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kFew = 256;  // candidates for the border of top-p, of all ranks together

class PartSampler {
 public:
  PartSampler(const VocabPart& part, const SampleInput& in, Collectives& ranks, ThreadPool& pool)
      : part_(part), in_(in), ranks_(ranks), pool_(pool), rows_(in.rows.size()) {}

  void run(float* logits, SampledRows* out, size_t first) {
    scan(logits);
    draw();
    give_logprobs(out, first);
    for (size_t i = 0; i < rows_.size(); ++i) {
      out->tokens[first + i] = rows_[i].token;
      out->is_finite[first + i] = rows_[i].is_finite;
    }
  }

 private:
  using Chosen = std::vector<PartRow*>;

  template <typename Keep>
  Chosen rows_that(const Keep& keep) {
    Chosen chosen;
    for (PartRow& row : rows_)
      if (keep(row)) chosen.push_back(&row);
    return chosen;
  }
  // Every rank's `mine`, which are of equal sizes, one behind the other.
  template <typename T>
  std::vector<T> gather(const std::vector<T>& mine) {
    std::vector<T> all(mine.size() * num_ranks());
    if (!mine.empty()) ranks_.all_gather(mine.data(), static_cast<int64_t>(mine.size() * sizeof(T)), all.data());
    return all;
  }
  // Looks at each of the rows on every rank: item r * rows.size() + i is what rank r found of row i.
  template <typename T, typename Look>
  std::vector<T> gather_rows(const Chosen& rows, const Look& look) {
    std::vector<T> mine(rows.size());
    pool_.parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t i, int) { mine[i] = look(*rows[i]); });
    return gather(mine);
  }
  size_t num_ranks() const { return static_cast<size_t>(ranks_.size()); }

  struct Scan {
    float raw_max, max;
    TokenId best;  // the first with the maximum
    bool is_finite;
  };

  void scan(float* logits) {
    size_t num_copies = 0;
    for (const SampleRow& row : in_.rows) num_copies += row.num_logprobs >= 0;
    copies_.resize(num_copies * static_cast<size_t>(part_.count));
    Chosen all;
    float* copy = copies_.data();
    for (size_t i = 0; i < rows_.size(); ++i) {
      PartRow& row = rows_[i];
      row.row = &in_.rows[i];
      row.logits = row.values = logits + static_cast<int64_t>(i) * part_.count;
      if (row.row->num_logprobs >= 0) row.values = std::exchange(copy, copy + part_.count);
      all.push_back(&row);
    }
    const auto scans = gather_rows<Scan>(all, [&](PartRow& row) { return scan_row(row); });
    for (size_t i = 0; i < rows_.size(); ++i) {
      PartRow& row = rows_[i];
      row.is_finite = true;
      for (size_t r = 0; r < num_ranks(); ++r) {
        const Scan& of = scans[r * rows_.size() + i];
        row.is_finite = row.is_finite && of.is_finite;
        row.raw_max = std::max(row.raw_max, of.raw_max);
        if (of.max <= row.max) continue;
        row.max = of.max;
        row.token = of.best;
      }
      row.is_finite = row.is_finite && row.raw_max > -kInfinity && row.max > -kInfinity;
      if (!row.is_finite) row.token = 0;
    }
  }

  Scan scan_row(PartRow& row) {
    const std::span<const uint32_t> mask = mask_of(*row.row, in_.masks, in_.mask_words);
    float max = -kInfinity;
    LogitScan scan;
    if (!mask.empty()) {
      scan = scan_masked_logits(row.logits, mask.data() + part_.begin / 32, part_.count, row.values, &max);
    } else {
      scan = scan_logits(row.logits, part_.count);
      max = scan.max;
      if (row.values != row.logits) std::copy_n(row.logits, part_.count, row.values);
    }
    Scan found = {scan.max, max, 0, scan.is_finite};
    if (!found.is_finite) return {-kInfinity, -kInfinity, 0, false};
    if (row.row->penalty_begin < row.row->penalty_end || row.row->bias_begin < row.row->bias_end) {
      apply_bias_and_penalties(in_, *row.row, [&](TokenId token) {
        const int64_t at = token - part_.begin;
        return at >= 0 && at < part_.count ? row.values + at : nullptr;
      });
      const LogitScan changed = scan_logits(row.values, part_.count);
      found.max = changed.max;
      found.is_finite = changed.is_finite;
    }
    if (found.is_finite && found.max > -kInfinity)
      found.best = static_cast<TokenId>(part_.begin + find_in_range(row.values, 0, part_.count, found.max, kInfinity));
    return found;
  }

  // Overwrites what comes after a cut whose id is of the whole vocabulary.
  void replace_behind(const PartRow& row, const Cut& cut, float replacement) const {
    const auto id = std::clamp<int64_t>(int64_t{cut.id} - part_.begin, -1, part_.count);
    replace_after({cut.value, static_cast<int32_t>(id)}, replacement, part_.count, row.values);
  }

  // For each of the rows the counts[i] best of all ranks, best first, in items[begins[i], begins[i + 1]).
  struct Best {
    std::vector<size_t> begins;
    std::vector<Cut> items;
  };
  Best best_of(const Chosen& rows, const std::vector<int64_t>& counts, float* PartRow::*values) {
    Best best;
    best.begins.push_back(0);
    for (const int64_t count : counts) best.begins.push_back(best.begins.back() + static_cast<size_t>(count));
    std::vector<Cut> mine(best.begins.back(), Cut{-kInfinity, INT32_MAX});
    pool_.parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t i, int) {
      const int64_t count = std::min(counts[i], part_.count);
      BestLogits& found = part_scratch().best;
      if (count == 0) return;
      found.select(rows[i]->*values, part_.count, count);
      for (int64_t k = 0; k < count; ++k)
        mine[best.begins[i] + static_cast<size_t>(k)] = {
            found.candidates[k].value, static_cast<int32_t>(found.candidates[k].id + part_.begin)};
    });
    const std::vector<Cut> all = gather(mine);
    std::vector<Cut> of_row;
    best.items.resize(mine.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t begin = best.begins[i], count = best.begins[i + 1] - begin;
      of_row.clear();
      for (size_t r = 0; r < num_ranks(); ++r)
        of_row.insert(of_row.end(), all.begin() + static_cast<std::ptrdiff_t>(r * mine.size() + begin),
                      all.begin() + static_cast<std::ptrdiff_t>(r * mine.size() + begin + count));
      std::sort(of_row.begin(), of_row.end(), goes_before);
      std::copy_n(of_row.begin(), count, best.items.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    return best;
  }

  void draw() {
    const Chosen drawn = rows_that([](const PartRow& row) { return row.is_drawn(); });
    if (drawn.empty()) return;
    cut_top_k();
    pool_.parallel_for(static_cast<int64_t>(drawn.size()), [&](int64_t i, int) {
      const PartRow& row = *drawn[i];
      exp_weights(row.values, part_.count, row.max, row.row->temperature, row.values);
      if (row.row->min_p > 0)
        replace_after({std::min(row.row->min_p, 1.0f), INT32_MAX}, 0, part_.count, row.values);
    });
    cut_top_p();
    const auto sums = gather_rows<double>(drawn, [&](PartRow& row) { return part_sum(row.values, part_.count); });
    const auto tokens = gather_rows<TokenId>(drawn, [&, this](PartRow& row) {
      const auto i = static_cast<size_t>(std::find(drawn.begin(), drawn.end(), &row) - drawn.begin());
      return draw_row(row, sums, i, drawn.size());
    });
    for (size_t i = 0; i < drawn.size(); ++i)
      for (size_t r = 0; r < num_ranks(); ++r)
        if (const TokenId token = tokens[r * drawn.size() + i]; token >= 0) drawn[i]->token = token;
  }

  void cut_top_k() {
    const Chosen rows = rows_that(
        [&](const PartRow& row) { return row.is_drawn() && row.row->top_k > 0 && row.row->top_k < part_.vocab; });
    std::vector<int64_t> counts;
    for (const PartRow* row : rows) counts.push_back(row->row->top_k);
    const Best best = best_of(rows, counts, &PartRow::values);
    for (size_t i = 0; i < rows.size(); ++i) replace_behind(*rows[i], best.items[best.begins[i + 1] - 1], -kInfinity);
  }

  // How many weights are at least the threshold of each row, and their sum, on all ranks.
  template <typename Threshold>
  std::vector<UpperTail> tails(const Chosen& rows, const Threshold& threshold) {
    const auto parts = gather_rows<UpperTail>(
        rows, [&](PartRow& row) { return upper_tail(row.values, part_.count, std::bit_cast<float>(threshold(row))); });
    std::vector<UpperTail> sums(rows.size());
    for (size_t r = 0; r < num_ranks(); ++r)
      for (size_t i = 0; i < rows.size(); ++i) {
        sums[i].count += parts[r * rows.size() + i].count;
        sums[i].sum += parts[r * rows.size() + i].sum;
      }
    return sums;
  }

  static uint32_t middle(const PartRow& row) { return row.low + (row.high - row.low) / 2; }

  void cut_top_p() {
    const Chosen rows = rows_that([](const PartRow& row) { return row.is_drawn() && row.row->top_p < 1; });
    if (rows.empty()) return;
    const auto sums = gather_rows<double>(rows, [&](PartRow& row) { return part_sum(row.values, part_.count); });
    for (size_t i = 0; i < rows.size(); ++i) {
      PartRow& row = *rows[i];
      double total = 0;
      for (size_t r = 0; r < num_ranks(); ++r) total += sums[r * rows.size() + i];
      const double left_out = (1.0 - row.row->top_p) * total / static_cast<double>(part_.vocab);
      row.low = std::bit_cast<uint32_t>(static_cast<float>(std::max(left_out / 2, 1e-45)));
      row.high = std::bit_cast<uint32_t>(1.0f) + 1;
      row.wanted = row.row->top_p * total;
      row.at_high = {};
    }
    const auto lowest = tails(rows, [](const PartRow& row) { return row.low; });
    for (size_t i = 0; i < rows.size(); ++i) rows[i]->at_low = lowest[i];
    const auto is_looking = [](const PartRow& row) {
      return row.at_low.count - row.at_high.count > kFew && row.high - row.low > 1;
    };
    while (true) {
      Chosen looking;
      for (PartRow* row : rows)
        if (is_looking(*row)) looking.push_back(row);
      if (looking.empty()) break;
      const auto found = tails(looking, middle);
      for (size_t i = 0; i < looking.size(); ++i) {
        PartRow& row = *looking[i];
        const bool is_above = found[i].sum >= row.wanted;
        const uint32_t at = middle(row);
        (is_above ? row.low : row.high) = at;
        (is_above ? row.at_low : row.at_high) = found[i];
      }
    }
    cut_at_borders(rows);
  }

  // The border is one of few weights in [low, high), or of many that are equal.
  void cut_at_borders(const Chosen& rows) {
    const auto counts = gather_rows<int64_t>(rows, [&](PartRow& row) {
      return upper_tail(row.values, part_.count, std::bit_cast<float>(row.low)).count -
             upper_tail(row.values, part_.count, std::bit_cast<float>(row.high)).count;
    });
    Chosen few;
    std::vector<size_t> begins = {0};
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i]->at_low.count - rows[i]->at_high.count > kFew) {
        cut_equal(*rows[i], counts, i, rows.size());
        continue;
      }
      int64_t most = 0;
      for (size_t r = 0; r < num_ranks(); ++r) most = std::max(most, counts[r * rows.size() + i]);
      few.push_back(rows[i]);
      begins.push_back(begins.back() + static_cast<size_t>(most));
    }
    std::vector<Cut> mine(begins.back(), Cut{-kInfinity, INT32_MAX});
    for (size_t i = 0; i < few.size(); ++i) {
      std::vector<Cut>& found = part_scratch().best.candidates;
      found.clear();
      const auto low = std::bit_cast<float>(few[i]->low), high = std::bit_cast<float>(few[i]->high);
      collect(few[i]->values, 0, part_.count, low, high, found);
      for (size_t k = 0; k < found.size(); ++k)
        mine[begins[i] + k] = {found[k].value, static_cast<int32_t>(found[k].id + part_.begin)};
    }
    const std::vector<Cut> all = gather(mine);
    for (size_t i = 0; i < few.size(); ++i) {
      std::vector<Cut> found;
      for (size_t r = 0; r < num_ranks(); ++r)
        for (size_t k = begins[i]; k < begins[i + 1]; ++k)
          if (const Cut& cut = all[r * mine.size() + k]; cut.value > -kInfinity) found.push_back(cut);
      std::sort(found.begin(), found.end(), goes_before);
      double need = few[i]->wanted - few[i]->at_high.sum;
      size_t last = 0;
      while (last + 1 < found.size() && (need -= found[last].value) > 0) ++last;
      replace_behind(*few[i], found[last], 0);
    }
  }

  // The weights in [low, high) are equal: the first so many of them are kept, in order of ids.
  void cut_equal(const PartRow& row, const std::vector<int64_t>& counts, size_t i, size_t num_rows) const {
    const float value = std::bit_cast<float>(row.low);
    int64_t num_kept = 1, total = row.at_low.count - row.at_high.count, before = 0;
    for (double need = row.wanted - row.at_high.sum; num_kept < total && (need -= value) > 0;) ++num_kept;
    for (int r = 0; r < ranks_.rank(); ++r) before += counts[static_cast<size_t>(r) * num_rows + i];
    const int64_t own = counts[static_cast<size_t>(ranks_.rank()) * num_rows + i];
    const int64_t kept = std::clamp<int64_t>(num_kept - before, 0, own);
    int64_t last = -1;
    for (int64_t k = 0; k < kept; ++k)
      last = find_in_range(row.values, last + 1, part_.count, value, std::bit_cast<float>(row.high));
    replace_after({value, static_cast<int32_t>(last)}, 0, part_.count, row.values);
  }

  // The token where it is this rank's, else -1. sums: of ranks.
  TokenId draw_row(const PartRow& row, const std::vector<double>& sums, size_t i, size_t num_rows) const {
    const auto sum_of = [&](size_t r) { return sums[r * num_rows + i]; };
    double total = 0;
    for (size_t r = 0; r < num_ranks(); ++r) total += sum_of(r);
    double rest = sampling_uniform(row.row->rng, row.row->choice, row.row->position) * total;
    size_t owner = 0;
    while (owner + 1 < num_ranks() && rest >= sum_of(owner)) rest -= sum_of(owner++);
    while (owner > 0 && !(sum_of(owner) > 0)) --owner;  // rounding carried past the last positive weight
    if (static_cast<int>(owner) != ranks_.rank()) return -1;
    PartScratch& s = part_scratch();
    s.sums.resize(static_cast<size_t>(ceil_div(part_.count, kSumBlock)));
    block_sums(row.values, part_.count, s.sums.data());
    size_t block = 0;
    while (block + 1 < s.sums.size() && rest >= s.sums[block]) rest -= s.sums[block++];
    int64_t last = -1;
    for (int64_t t = static_cast<int64_t>(block) * kSumBlock; t < part_.count; ++t) {
      if (!(row.values[t] > 0)) continue;
      last = t;
      if ((rest -= row.values[t]) < 0) break;
    }
    if (last < 0)
      for (last = part_.count - 1; !(row.values[last] > 0);) --last;
    return static_cast<TokenId>(part_.begin + last);
  }

  struct OfToken {
    double sum;
    float logit;
    bool is_own;
  };

  void give_logprobs(SampledRows* out, size_t first) {
    const Chosen rows = rows_that([](const PartRow& row) { return row.is_finite && row.row->num_logprobs >= 0; });
    if (rows.empty()) return;
    const auto parts = gather_rows<OfToken>(rows, [&](PartRow& row) {
      exp_weights(row.logits, part_.count, row.raw_max, 1, row.values);
      const int64_t at = row.token - part_.begin;
      const bool is_own = at >= 0 && at < part_.count;
      return OfToken{part_sum(row.values, part_.count), is_own ? row.logits[at] : 0, is_own};
    });
    std::vector<int64_t> counts;
    for (const PartRow* row : rows) counts.push_back(std::min<int64_t>(row->row->num_logprobs, part_.vocab));
    const Best best = best_of(rows, counts, &PartRow::logits);
    for (size_t i = 0; i < rows.size(); ++i) {
      double sum = 0;
      float logit = 0;
      for (size_t r = 0; r < num_ranks(); ++r) {
        const OfToken& of = parts[r * rows.size() + i];
        sum += of.sum;
        if (of.is_own) logit = of.logit;
      }
      const double log_sum = rows[i]->raw_max + std::log(sum);
      const size_t at = first + static_cast<size_t>(rows[i] - rows_.data());
      out->logprobs[at] = static_cast<float>(logit - log_sum);
      auto to = static_cast<size_t>(out->top_start[at]);
      for (size_t k = best.begins[i]; k < best.begins[i + 1]; ++k, ++to) {
        out->top_tokens[to] = best.items[k].id;
        out->top_logprobs[to] = static_cast<float>(best.items[k].value - log_sum);
      }
    }
  }

  const VocabPart part_;
  const SampleInput& in_;
  Collectives& ranks_;
  ThreadPool& pool_;
  std::vector<PartRow> rows_;
  std::vector<float> copies_;
};

}  // namespace

void sample_parts(float* logits, const VocabPart& part, const SampleInput& in, SampledRows* out, Collectives& ranks,
                  ThreadPool& pool) {
  LLMB_CHECK(part.begin % 32 == 0 && part.count >= 1 && part.begin + part.count <= part.vocab);
  const size_t first = add_rows(in, part.vocab, out);
  PartSampler(part, in, ranks, pool).run(logits, out, first);
}

}  // namespace llmb::cpu
