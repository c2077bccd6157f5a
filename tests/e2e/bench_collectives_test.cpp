// tools/bench_collectives, and bench_collectives_cuda on the host layer: every case is right, timed and printed. The
// programs themselves look at each number that a rank gets.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/source_dir.h"

namespace llmb::test {
namespace {

const std::string kProcessors = binary_dir() + "/tools/bench_collectives";
const std::string kGpus = binary_dir() + "/tests/bench_collectives_simt";
const std::string kCases = " --repeats 3 --round-ms 0 --kib 4,1024,2052";  // the last one goes in pieces

struct Row {
  std::string call;
  int ranks = 0, kib = 0;
  double us = 0, gb_per_s = 0, limit_us = 0, share = 0;
};

std::vector<Row> rows_of(const std::string& out) {
  std::vector<Row> rows;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);)
    for (const char* const call : {"broadcast", "all_reduce", "all_gather", "send, receive"}) {
      if (!line.starts_with(call)) continue;
      Row& row = rows.emplace_back();
      row.call = call;
      std::istringstream(line.substr(row.call.size())) >> row.ranks >> row.kib >> row.us >> row.gb_per_s >>
          row.limit_us >> row.share;
    }
  return rows;
}

bool is_near(double printed, double exact) { return std::abs(printed - exact) <= 0.1 * exact + 0.1; }

void check_rows(const std::string& out, const std::vector<int>& ranks) {
  const std::vector<Row> rows = rows_of(out);
  REQUIRE_MESSAGE(rows.size() == 4 * 3 * ranks.size(), out);
  size_t i = 0;
  for (const int num_ranks : ranks)
    for (const char* const call : {"broadcast", "all_reduce", "all_gather", "send, receive"})
      for (const int kib : {4, 1024, 2052}) {
        const Row& row = rows[i++];
        CHECK_MESSAGE((row.call == call && row.ranks == num_ranks && row.kib == kib), out);
        CHECK_MESSAGE((row.us > 0 && row.limit_us > 0), out);
        CHECK_MESSAGE(is_near(row.gb_per_s, kib * 1024 / row.us / 1e3), out);
        CHECK_MESSAGE(is_near(row.share, 100 * row.limit_us / row.us), out);
      }
}

}  // namespace

TEST_CASE("ranks on processors: two and four of them") {
  const ProcessResult result = run_shell(kProcessors + kCases + " --ranks 2,4");
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  check_rows(result.out, {2, 4});
  CHECK(run_shell(kProcessors + " --ranks 3").exit_code != 0);
}

TEST_CASE("ranks on GPUs: two and four of them, no more than there are, and nothing on one") {
  const ProcessResult four = run_shell("LLMB_SIMT_DEVICES=4 " + kGpus + kCases);
  CHECK_MESSAGE(four.exit_code == 0, four.err);
  check_rows(four.out, {2, 4});
  CHECK(four.out.find("sum and norm, 4 ranks: us a call") != std::string::npos);
  CHECK(four.out.find("hidden states before rows, 264 numbers each, 4 ranks: us a step") != std::string::npos);
  CHECK(four.out.find("8 ranks: left out, there are 4 GPUs") != std::string::npos);
  CHECK(four.out.find("GPU 0 reaches GPU 1 directly") != std::string::npos);
  const ProcessResult one = run_shell("LLMB_SIMT_DEVICES=1 " + kGpus + kCases);
  CHECK(one.exit_code == 77);
  CHECK(one.out.find("ranks need two GPUs, and there are 1: nothing was timed") != std::string::npos);
}

}  // namespace llmb::test
