// Memory that does not grow with the input, through the built program: FAULTS rows 16, 17 and 45.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/hostile_run.h"
#include "tests/e2e/run.h"
#include "tests/support/bounded.h"

namespace llmb::test {

namespace {

// Peak resident memory of the program that a shell command runs.
double peak_mebibytes(const std::string& command, int expected_exit_code) {
  const TemporaryDirectory dir;
  const BoundedRun run = run_bounded(
      [&] {
        const ProcessResult result = run_shell(command);
        if (result.exit_code != expected_exit_code)
          std::fprintf(stderr, "exit code %d: %s\n", result.exit_code, result.err.c_str());
        rusage usage{};
        getrusage(RUSAGE_CHILDREN, &usage);
        write_file(dir.file("peak"), std::to_string(usage.ru_maxrss));
        return result.exit_code == expected_exit_code ? 0 : 1;
      },
      300);
  CHECK(run.exit_code == 0);
  return std::stod("0" + read_file(dir.file("peak"))) / 1024;
}

// A line whose text is `piece` again and again, written without holding it: a child begins with its parent's peak.
void write_line(const std::string& path, const std::string& before, const std::string& piece, const std::string& after) {
  std::ofstream file(path, std::ios::binary);
  file << before;
  for (size_t i = 0; i < (size_t{63} << 20) / piece.size(); ++i) file << piece;
  file << after << "\n" << kGood << "\n";
}

// A model of some 340 MiB of random weights.
void write_shape(const std::string& path) {
  constexpr int kNumLayers = 6;
  auto config = nlohmann::json::parse(read_file(source_dir() + "/data/shapes/qwen2.5-0.5b/config.json"));
  config["num_hidden_layers"] = kNumLayers;
  config["vocab_size"] = 49152;
  config["tie_word_embeddings"] = false;
  config["max_window_layers"] = kNumLayers;
  write_file(path, config.dump());
}

}  // namespace

TEST_CASE("FAULTS 16: an empty file, one line, and memory that does not grow with the number of lines") {
  const TemporaryDirectory dir;
  write_file(dir.file("empty.jsonl"), "");
  const ProcessResult none = run_ledger({dir.file("empty.jsonl")});
  CHECK(none.exit_code == 0);
  CHECK(none.out == "");
  CHECK(parse_lines(run_ledger({}, kGood).out).size() == 1);

  const std::string line = R"({"prompt":"Once","max_tokens":1})"
                           "\n";
  const auto peak = [&](int num_lines) {
    const std::string path = dir.file(std::to_string(num_lines) + ".jsonl");
    write_file(path, repeat(line, num_lines));
    return peak_mebibytes(kProgram + " -m " + quoted(kModel) + " --device ledger --progress none --no-metrics --plan-memory 4M " +
                              quoted(path) + " > " + quoted(dir.file("out")),
                          0);
  };
  const double small = peak(10'000), large = peak(100'000);
  CHECK(read_file(dir.file("out")).size() > 100'000);
  if (memory_figures_count()) CHECK(large - small <= 16);
}

TEST_CASE("FAULTS 16: resuming from many records takes little memory; the full size is `make scale`") {
  const TemporaryDirectory dir;
  const std::string line = R"({"prompt_token_ids":[1,2,3],"max_tokens":1})"
                           "\n";
  constexpr int kNumLines = 200'000;
  const auto peak = [&](const std::string& name) {
    return peak_mebibytes(kProgram + " -m " + quoted(kModel) +
                              " --device ledger --progress none --no-metrics --metrics none " + quoted(dir.file(name)) +
                              " -o " + quoted(dir.file(name + ".out")),
                          0);
  };
  write_file(dir.file("one"), line);
  write_file(dir.file("many"), repeat(line, kNumLines));
  const double one = peak("one");
  peak("many");
  write_file(dir.file("many"), repeat(line, kNumLines + 1));
  const double resumed = peak("many");
  CHECK(std::ranges::count(read_file(dir.file("many.out")), '\n') == kNumLines + 1);
  if (memory_figures_count()) CHECK(resumed - one <= 8);
}

TEST_CASE("FAULTS 17: a line of a gibibyte is one error record in bounded memory, and the rest runs") {
  const TemporaryDirectory dir;
  write_file(dir.file("good.jsonl"), kGood + "\n");
  const std::string good = quoted(dir.file("good.jsonl"));
  const double peak = peak_mebibytes("{ cat " + good + "; head -c 1073741824 /dev/zero | tr '\\0' x; echo; cat " +
                                         good + "; } | " + kProgram + " -m " + quoted(kModel) +
                                         " --device ledger --progress none --order input > " + quoted(dir.file("out")),
                                     3);
  const auto records = parse_lines(read_file(dir.file("out")));
  REQUIRE(records.size() == 3);
  CHECK(records[1]["error"]["code"] == "line_too_long");
  CHECK(records[2]["text"] == records[0]["text"]);
  if (memory_figures_count()) CHECK(peak <= 64 + 64);
}

TEST_CASE("FAULTS 17: a line just below the limit and full of punctuation takes little more memory than itself") {
  const TemporaryDirectory dir;
  std::string line = R"({"prompt":"x","y":[)";
  while (line.size() < (size_t{63} << 20)) line += "[],[],[],[],[],[],[],[],";
  write_file(dir.file("in"), line + "0]}\n" + kGood + "\n");
  line = std::string();
  const double peak = peak_mebibytes(kProgram + " -m " + quoted(kModel) + " --device ledger --progress none " +
                                         quoted(dir.file("in")) + " --order input > " + quoted(dir.file("out")),
                                     3);
  const auto records = parse_lines(read_file(dir.file("out")));
  REQUIRE(records.size() == 2);
  CHECK(records[0]["error"]["code"] == "invalid_request");
  CHECK(!records[1]["text"].empty());
  if (memory_figures_count()) CHECK(peak <= 64 + 64);
}

TEST_CASE("FAULTS 45: prompts of 63 MiB that cannot fit are refused within the limit on lines and 64 MiB") {
  const TemporaryDirectory dir;
  const std::string word = "Once upon a time ", user = R"({"role":"user","content":"hi"})";
  for (const auto& [before, piece, after] : std::vector<std::array<std::string, 3>>{
           {R"({"prompt":")", word, R"("})"},
           {R"({"prompt":")", "\\u4e2d", R"("})"},
           {R"({"messages":[{"role":"user","content":")", word, R"("}]})"},
           {R"({"messages":[{"role":"assistant","content":")", word, R"("},)" + user + "]}"}}) {
    write_line(dir.file("in"), before, piece, after);
    const double peak = peak_mebibytes(kProgram + " -m " + quoted(kModel) + " --device ledger --progress none " +
                                           quoted(dir.file("in")) + " --order input > " + quoted(dir.file("out")),
                                       3);
    const auto records = parse_lines(read_file(dir.file("out")));
    REQUIRE(records.size() == 2);
    CHECK(records[0]["error"]["code"] == "prompt_too_long");
    CHECK(!records[1]["text"].empty());
    if (memory_figures_count()) CHECK(peak <= 64 + 64);
  }
}

TEST_CASE("a tensor-parallel rank takes at most 1.1 times its share of one process's memory beside the program's own") {
  const TemporaryDirectory dir;
  std::filesystem::create_directory(dir.file("model"));
  write_shape(dir.file("model/config.json"));
  std::string lines;
  for (int i = 0; i < 4; ++i)
    lines += R"({"prompt_token_ids":[5,6,7,8,9,)" + std::to_string(i) + R"(],"max_tokens":3,"ignore_eos":true})" + "\n";
  write_file(dir.file("in"), lines);
  const auto peak = [&](const std::string& arguments) {
    return peak_mebibytes(kProgram + " --device cpu --threads 2 --progress none " + arguments + " " +
                              quoted(dir.file("in")) + " > " + quoted(dir.file("out")),
                          0);
  };
  const std::string model = "--load-format dummy -m " + quoted(dir.file("model"));
  const double own = peak("-m " + quoted(kModel)), alone = peak(model);
  CHECK(alone > 300);
  const double largest = peak(model + " --tensor-parallel-size 2");  // of both
  MESSAGE(largest << " MiB of " << alone << ", the program's own " << own);
  if (memory_figures_count()) CHECK(largest - own <= 1.1 * (alone - own) / 2);
}

}  // namespace llmb::test
