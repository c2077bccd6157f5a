// How fast the outputs of shards are merged, and in how much memory.
//
//     make tools && build/tools/bench_merge [ROWS [SHARDS [FOLDER]]]
//
// Makes SHARDS outputs of ROWS records together, natively without metrics, each in a random order of completion within
// windows of 100,000 records, and merges them in both orders. It times the processor as well as the clock: a disk that
// cannot take what is written holds the clock up.
//
// Rows a second of 10,000,000 rows of 8 shards on two cores of an AMD EPYC 7003, files in memory (tmpfs), 2026-11-26,
// twice, nothing else running: in order of completion 1.69 and 1.41 million in 57 MiB; in order of input 1.25 and 1.13
// million in 280 MiB.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "io/result_writer.h"
#include "job/merge.h"
#include "job/run_manifest.h"
#include "job/shard.h"

namespace {

namespace fs = std::filesystem;
using namespace llmb;

constexpr int64_t kWindow = 100000;

uint64_t hash_of(int64_t index) { return static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u; }

void write_shard(const Shard& shard, int64_t num_rows, const InputTally& input, const std::string& path) {
  const ResultFormatter formatter(ResultFormat{.metrics = false});
  std::ofstream out(path, std::ios::binary);
  std::mt19937_64 random(static_cast<uint64_t>(shard.index));
  std::vector<int64_t> window;
  std::string text;
  const auto flush = [&] {
    std::shuffle(window.begin(), window.end(), random);
    for (const int64_t index : window) {
      Completion completion;
      completion.line = {index, "in.jsonl", index + 1, 0, hash_of(index)};
      completion.id_json = std::to_string(index);
      completion.choices.emplace_back();
      completion.choices[0].text = " The answer to row " + std::to_string(index) + " takes a sentence of some words.";
      formatter.format_to(text, completion);
    }
    out << text;
    text.clear();
    window.clear();
  };
  for (int64_t index = 0; index < num_rows; ++index) {
    if (shard_of_row(index, shard.count) != shard.index) continue;
    window.push_back(index);
    if (static_cast<int64_t>(window.size()) == kWindow) flush();
  }
  flush();
  RunManifest manifest;
  manifest.build = "bench";
  manifest.created = 1;
  manifest.state = RunState::kComplete;
  manifest.fingerprint.settings = {{kShardName, shard_text(shard)}, {"no_metrics", "true"}};
  manifest.input = input;
  std::ofstream(path + ".manifest.json") << format_manifest(manifest);
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double most_memory_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

bool merge(const std::string& folder, const std::vector<std::string>& shards, OutputOrder order, const char* name) {
  MergeOptions options;
  options.output = folder + "/" + name + ".jsonl";
  options.shards = shards;
  options.order = order;
  const auto begin = std::chrono::steady_clock::now();
  const double processor_begin = processor_seconds();
  const auto merged = merge_outputs(options, [] { return true; });
  if (!merged.ok()) {
    std::fprintf(stderr, "%s\n", merged.status().message().c_str());
    return false;
  }
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double processor = processor_seconds() - processor_begin;
  const auto rows = static_cast<double>(merged->num_records);
  std::printf("%-10s %10lld rows %8.2f s %10.0f rows/s   processor %8.2f s %10.0f rows/s   memory so far %6.0f MiB\n", name,
              static_cast<long long>(merged->num_records), wall, rows / wall, processor, rows / processor,
              most_memory_mib());
  std::fflush(stdout);
  fs::remove(options.output);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t num_rows = argc > 1 ? std::atoll(argv[1]) : 10'000'000;
  const int64_t num_shards = argc > 2 ? std::atoll(argv[2]) : 8;
  const std::string folder = (argc > 3 ? fs::path(argv[3]) : fs::temp_directory_path()) / "llm-batch-bench-merge";
  fs::remove_all(folder);
  fs::create_directories(folder);
  InputTally input;
  for (int64_t index = 0; index < num_rows; ++index) input.add(index, hash_of(index));
  std::vector<std::string> shards;
  for (int64_t i = 0; i < num_shards; ++i) {
    shards.push_back(folder + "/shard" + std::to_string(i) + ".jsonl");
    write_shard({i, num_shards}, num_rows, input, shards.back());
  }
  const bool is_done = merge(folder, shards, OutputOrder::kCompletion, "completion") &&
                       merge(folder, shards, OutputOrder::kInput, "input");
  fs::remove_all(folder);
  return is_done ? 0 : 1;
}
