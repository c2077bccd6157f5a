// `make gpu-check` without a GPU, and its report from the figures of programs that only pretend.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/skip.h"
#include "tests/support/source_dir.h"

namespace llmb::test {
namespace {

namespace fs = std::filesystem;

// A message where it is missing.
bool has_python() {
  if (run_shell("python3 --version").exit_code == 0) return true;
  skip("no python3");
  return false;
}

void write_program(const std::string& path, const std::string& script) {
  write_file(path, "#!/bin/sh\n" + script);
  fs::permissions(path, fs::perms::owner_all);
}

// A line of bench_kernels_cuda --json.
std::string kernel_row(const std::string& op, const std::string& shape, double value, const std::string& unit,
                       double limit = 0, double us = 310) {
  nlohmann::json row = {{"op", op}, {"shape", shape}, {"us", us}, {"value", value}, {"unit", unit}};
  if (limit > 0) row["limit"] = limit, row["share"] = value / limit;
  return row.dump() + "\n";
}

// A folder with a pretended nvidia-smi and the programs of a bundle, and what gpu_check makes of them.
class PretendedGpu {
 public:
  PretendedGpu() {
    write_program(dir_.file("nvidia-smi"), "echo 'GPU 0: pretended'\n");
    write_program(dir_.file("gpu_tests"), "echo all passed\n");
    write_program(dir_.file("bench_engine"), R"(echo a title
echo 'case batch context tokens/s ms/step limit_ms share bound GB/s GFLOP/s host_ms idle hash of tokens'
echo 'decode 64 1024 9000.0 7.1 6.0 84.5% bytes 4000 100.0 0.100 1.5% 00ff'
echo 'decode 256 1024 16500.0 15.515 12.0 77.3% bytes 4000 100.0 0.300 0.4% 00ff'
)");
  }

  void set_kernel_rows(const std::string& rows) {
    write_file(dir_.file("rows"), rows);
    write_program(dir_.file("bench_kernels_cuda"), "cp " + dir_.file("rows") + " \"$2\"\n");
  }
  void write(const std::string& name, const std::string& script) { write_program(dir_.file(name), script); }

  ProcessResult check(const std::string& arguments) const {
    return run_shell("cd " + source_dir() + " && PATH=" + dir_.path() + ":$PATH tools/gpu_check.py " + dir_.path() +
                     " --out " + report_path() + " " + arguments);
  }
  std::string report() const { return read_file(report_path()); }
  std::string report_path() const { return dir_.file("report.md"); }

 private:
  const TemporaryDirectory dir_;
};

TEST_CASE("gpu_check: the report says what was measured, beside which limit, and which targets were met") {
  if (!has_python()) return;
  PretendedGpu gpu;
  const std::string decode = "llama-3.1-8b decode 64 ", prefill = "llama-3.1-8b prefill ";
  gpu.set_kernel_rows(kernel_row("limit", "read 1024 MiB", 4000, "GB/s") +
                      kernel_row("limit", "bf16 matrix product", 700, "TFLOP/s") +
                      kernel_row("paged_attention", decode + "x 1024, mma", 3000, "GB/s", 4000) +
                      kernel_row("paged_attention", decode + "x 4096, mma", 3500, "GB/s", 4000) +
                      kernel_row("paged_attention", decode + "skewed, mean 1024, mma", 2700, "GB/s", 4000) +
                      kernel_row("paged_attention", decode + "x 2048 + 64 same blocks, mma", 900, "GB/s", 4000, 93) +
                      kernel_row("paged_attention", decode + "x 2048 + 64 own, mma", 900, "GB/s", 4000, 120) +
                      kernel_row("paged_attention", decode + "x 2048 + 64 shared, mma", 900, "GB/s", 4000, 24) +
                      kernel_row("paged_attention", decode + "x 2048 + 64 window 1024 same blocks, mma", 900, "GB/s", 4000, 30) +
                      kernel_row("paged_attention", decode + "x 2048 + 64 window 1024 shared, mma", 900, "GB/s", 4000, 24) +
                      kernel_row("block_copy", "64 blocks within the pool", 3600, "GB/s", 4000) +
                      kernel_row("paged_attention", prefill + "2048, Hopper", 510, "TFLOP/s", 700) +
                      kernel_row("linear", "llama-3.1-8b qkv 16x6144x4096", 3700, "GB/s", 4000) +
                      kernel_row("linear", "llama-3.1-8b o 16x4096x4096", 3500, "GB/s", 4000) +
                      kernel_row("sample", "llama-3.1-8b 256 rows, greedy", 100, "GB/s", 4000));
  const ProcessResult result = gpu.check("--only tests,kernels,steps");
  CHECK_MESSAGE(result.exit_code == 0, result.out << result.err);
  const std::string report = gpu.report(), kernels = " | bench_kernels_cuda | ", steps = " | bench_engine | ";
  const std::vector<std::string> expected = {
      "| paged decode attention, 64 × 1,024" + kernels + "3,000 GB/s | 4,000 GB/s | 75.0 % | 70 % | met |",
      "| paged decode attention, 64 × 4,096" + kernels + "3,500 GB/s | 4,000 GB/s | 87.5 % | 90 % | **missed** |",
      "| paged decode attention, 64 × 8,192" + kernels + "not measured |",
      "| the same, skewed, mean 1,024" + kernels + "2,700 GB/s | 3,000 GB/s | 90.0 % | 85 % of even | met |",
      "| 64 rows over 2,048 shared and 64 own positions, row by row over the same blocks, mma" + kernels +
          "3.875 × the time |  |  | ≥ 4 × | **missed** |",
      "| 64 rows over 2,048 shared and 64 own positions, over blocks of their own, mma" + kernels +
          "5 × the time |  |  | ≥ 4 × | met |",
      "| 64 rows over 2,048 shared and 64 own positions, over blocks of their own, Hopper" + kernels + "not measured |",
      "| the same within a window of 1,024, row by row over the same blocks, mma" + kernels +
          "1.25 × the time |  |  | ≥ 1 × | met |",
      "| decode, 64 × 8,192, a window of 1,024" + kernels + "not measured |",
      "| block_copy, 64 blocks within the pool" + kernels + "3,600 GB/s | 4,000 GB/s | 90.0 % | 80 % | met |",
      "| prefill attention, 2,048, Hopper" + kernels + "510 TFLOP/s | 700 TFLOP/s | 72.9 % | 500 TFLOP/s | met |",
      "| prefill attention, 2,048, mma" + kernels + "not measured |",
      "| skinny GEMM, M = 16, the worst shape" + kernels + "3,500 GB/s | 4,000 GB/s | 87.5 % | 90 % | **missed** |",
      "| GPU idle between steps, B = 64" + steps + "1.5 % |  |  | ≤ 1 % | **missed** |",
      "| GPU idle between steps, B = 256" + steps + "0.4 % |  |  | ≤ 1 % | met |",
      "| host work per step, B = 256" + steps + "0.3 ms |  |  | ≤ 0.25 ms | **missed** |",
      "| sampling 256 × 128k, greedy" + kernels + "0.31 ms | 15.52 ms | 2.0 % | ≤ 3 % of the step | met |",
      "| decode step, 8B, 1k context, B = 1" + steps + "not measured |",
      // P = 7.50e9: 2 · P · 256 / F are 5.49 ms; KV = 256 · 1040.5 · 128 KiB at 4 TB/s are 8.73 ms.
      "B = 256" + steps + "16,500 tokens/s | 18,006 tokens/s | 91.6 % | 80 % (about 15,900) | met |",
      "## Device tests",
      "all passed",
  };
  for (const std::string& row : expected)
    CHECK_MESSAGE(report.find(row) != std::string::npos, row << "\nis not in\n" << report);
}

TEST_CASE("gpu_check: a stage that fails, or for which no time is left, is reported, and the exit code says so") {
  if (!has_python()) return;
  PretendedGpu gpu;
  gpu.set_kernel_rows("");
  gpu.write("gpu_tests", "echo one failed; exit 1\n");
  ProcessResult result = gpu.check("--only tests,kernels");
  CHECK(result.exit_code == 1);
  CHECK(result.out.find("FAILED: Device tests") != std::string::npos);
  CHECK(gpu.report().find("one failed") != std::string::npos);
  result = gpu.check("--only tests,kernels --minutes 0");
  CHECK(result.exit_code == 1);
  CHECK(gpu.report().find("the time for all stages is over") != std::string::npos);
}

TEST_CASE("gpu_check: ranks that meet are timed where there are GPUs for them; one GPU alone is no failure") {
  if (!has_python()) return;
  PretendedGpu gpu;
  for (const int code : {0, 77, 1}) {
    gpu.write("bench_collectives_cuda", "echo all_reduce 2 of " + std::to_string(code) + "; exit " + std::to_string(code));
    const ProcessResult result = gpu.check("--only collectives");
    CHECK(result.exit_code == (code == 1 ? 1 : 0));
    CHECK(gpu.report().find("## Ranks that meet") != std::string::npos);
    CHECK(gpu.report().find("all_reduce 2 of " + std::to_string(code)) != std::string::npos);
  }
}

TEST_CASE("gpu_check: without a GPU one line, no report, and an exit code of its own") {
  if (!has_python()) return;
  PretendedGpu gpu;
  gpu.write("nvidia-smi", "echo 'No devices were found'; exit 6\n");
  for (const bool is_known : {false, true}) {  // by nvidia-smi, or only by the tests
    if (is_known) {
      gpu.write("nvidia-smi", "echo 'GPU 0: pretended'\n");
      gpu.write("gpu_tests", "echo skipped: no GPU; exit 77\n");
    }
    const ProcessResult result = gpu.check("");
    CHECK(result.exit_code == 77);
    CHECK(result.out.find("no figure was written\n") == result.out.size() - 22);
    CHECK(result.out.find('\n') == result.out.size() - 1);
    CHECK(result.err.empty());
    CHECK_FALSE(fs::exists(gpu.report_path()));
  }
}

}  // namespace
}  // namespace llmb::test
