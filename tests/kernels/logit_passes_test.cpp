#include "kernels/cpu/logit_passes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Calls body(n, values) for sizes at every vector and block border, on every target.
template <typename Body>
void for_each_size(const Body& body) {
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t n : {1, 2, 7, 8, 15, 16, 17, 31, 63, 64, 65, 1023, 1024, 1025, 2048, 5000}) {
      CAPTURE(n);
      body(n, random_normal(n, static_cast<uint32_t>(n), 3));
    }
  });
}

}  // namespace

TEST_CASE("scan_logits finds the maximum, and a NaN or +Inf at any place") {
  for_each_size([](int64_t n, std::vector<float> v) {
    CHECK(scan_logits(v.data(), n).is_finite);
    CHECK(scan_logits(v.data(), n).max == *std::max_element(v.begin(), v.end()));
    for (int64_t i = 0; i < n; i += n < 70 ? 1 : 97) {
      std::vector<float> bad = v;
      bad[i] = -kInf;
      CHECK(scan_logits(bad.data(), n).is_finite);
      bad[i] = -std::numeric_limits<float>::max();
      CHECK(scan_logits(bad.data(), n).is_finite);
      for (const float x : {kInf, std::nanf(""), -std::nanf("")}) {
        bad[i] = x;
        CHECK_FALSE(scan_logits(bad.data(), n).is_finite);
      }
    }
    std::fill(v.begin(), v.end(), -kInf);
    CHECK(scan_logits(v.data(), n).max == -kInf);
  });
}

TEST_CASE("find_in_range gives the next index in the half-open range, or n") {
  for_each_size([](int64_t n, const std::vector<float>& v) {
    for (const auto& [low, high] :
         {std::pair{1000.0f, kInf}, {-0.5f, 0.5f}, {v[n / 2], kInf}, {v[0], v[0]}, {-kInf, v[n - 1]}}) {
      for (int64_t begin = 0; begin <= n; begin += n < 70 ? 1 : 97) {
        int64_t expected = begin;
        while (expected < n && !(v[expected] >= low && v[expected] < high)) ++expected;
        CHECK(find_in_range(v.data(), begin, n, low, high) == expected);
      }
    }
  });
}

TEST_CASE("block_maxima and block_sums cover every value once") {
  for_each_size([](int64_t n, const std::vector<float>& v) {
    GuardedFloats maxima((n + kMaxBlock - 1) / kMaxBlock);
    block_maxima(v.data(), n, maxima.data());
    CHECK(maxima.guards_untouched());
    for (size_t b = 0; b < maxima.span().size(); ++b) {
      const auto begin = v.begin() + static_cast<int64_t>(b) * kMaxBlock;
      const auto end = v.end() - begin > kMaxBlock ? begin + kMaxBlock : v.end();
      CHECK(maxima.span()[b] == *std::max_element(begin, end));
    }
    std::vector<double> sums((n + kSumBlock - 1) / kSumBlock + 1, -7.0);
    const double total = block_sums(v.data(), n, sums.data());
    CHECK(sums.back() == -7.0);
    double expected_total = 0;
    for (size_t b = 0; b + 1 < sums.size(); ++b) {
      double expected = 0;
      for (int64_t i = static_cast<int64_t>(b) * kSumBlock;
           i < std::min<int64_t>(n, (static_cast<int64_t>(b) + 1) * kSumBlock); ++i)
        expected += v[i];
      CHECK(std::fabs(sums[b] - expected) <= 1e-11);
      expected_total += sums[b];
    }
    CHECK(total == expected_total);
  });
}

TEST_CASE("list_at_least lists what is at or above the threshold, in order, within its room") {
  for_each_size([](int64_t n, const std::vector<float>& v) {
    for (const float threshold : {-kInf, -1.0f, v[0], v[n / 2], 3.0f, kInf}) {
      std::vector<float> expected;
      std::vector<int32_t> expected_ids;
      for (int64_t i = 0; i < n; ++i) {
        if (!(v[i] >= threshold)) continue;
        expected.push_back(v[i]);
        expected_ids.push_back(static_cast<int32_t>(i));
      }
      const size_t count = expected.size(), room = count + kListSlack;
      std::vector<float> listed(room + 1, -77);
      std::vector<int32_t> ids(room + 1, -77);
      list_at_least(v.data(), n, threshold, listed.data(), ids.data());
      CHECK(std::vector(listed.begin(), listed.begin() + static_cast<int64_t>(count)) == expected);
      CHECK(std::vector(ids.begin(), ids.begin() + static_cast<int64_t>(count)) == expected_ids);
      CHECK(listed.back() == -77);
      CHECK(ids.back() == -77);
    }
  });
}

TEST_CASE("upper_tail counts and sums what is at or above the threshold") {
  for_each_size([](int64_t n, const std::vector<float>& v) {
    for (const float threshold : {-kInf, -1.0f, v[0], v[n / 2], 3.0f, kInf}) {
      UpperTail expected;
      for (const float x : v) {
        expected.count += x >= threshold;
        expected.sum += x >= threshold ? x : 0;
      }
      const UpperTail tail = upper_tail(v.data(), n, threshold);
      CHECK(tail.count == expected.count);
      CHECK(std::fabs(tail.sum - expected.sum) <= 1e-10);
    }
  });
}

TEST_CASE(
    "exp_weights: the maximum weighs exactly 1, others e^((x - max) / t) to a few ulp, -Inf nothing; nothing else is "
    "written") {
  for_each_size([](int64_t n, std::vector<float> v) {
    for (const float t : {0.5f, 1.0f, 7.0f}) {
      const float max = *std::max_element(v.begin(), v.end());
      std::vector<double> expected;
      for (const float x : v) expected.push_back(std::exp(double{(x - max) / t}));
      GuardedFloats weights(n);
      exp_weights(v.data(), n, max, t, weights.data());
      CHECK(weights.guards_untouched());
      CHECK(test::compare(weights.span(), expected, 3e-7, 1e-37) == "");
      CHECK(*std::max_element(weights.span().begin(), weights.span().end()) == 1.0f);
    }
    v[n - 1] = -kInf;
    GuardedFloats weights(n);
    exp_weights(v.data(), n, 0, 1e-30f, weights.data());
    CHECK(weights.span()[n - 1] == 0);
  });
}

TEST_CASE("replace_after keeps values above the cut, ties up to its id, and writes nothing past the end") {
  for_each_size([](int64_t n, const std::vector<float>& values) {
    std::vector<float> v = values;
    for (float& x : v) x = std::round(x);  // many ties
    for (const int64_t id : {int64_t{0}, n / 3, n - 1, int64_t{std::numeric_limits<int32_t>::max()}}) {
      const Cut cut{v[std::min(id, n - 1)], static_cast<int32_t>(id)};
      GuardedFloats out(n);
      std::copy(v.begin(), v.end(), out.data());
      replace_after(cut, -kInf, n, out.data());
      CHECK(out.guards_untouched());
      for (int64_t i = 0; i < n; ++i) {
        const bool kept = v[i] > cut.value || (v[i] == cut.value && i <= id);
        CHECK(out.span()[i] == (kept ? v[i] : -kInf));
      }
    }
  });
}

}  // namespace llmb::cpu
