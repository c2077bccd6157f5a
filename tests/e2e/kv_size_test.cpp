// The size of the KV cache that a run announces: on the CPU what its rows are expected to take, never more than the
// pool.
#include <doctest/doctest.h>

#include <regex>

#include "cli/forecast_text.h"
#include "core/kv_room.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

std::string run_with(std::vector<std::string> flags, const std::string& input) {
  flags.insert(flags.begin(), {kProgram, "-m", kModel});
  const ProcessResult result = run_process(flags, input);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return result.err;
}

// The group of `pattern` in `text`; "" where it is not there.
std::string found(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "";
}

std::string announced(const std::vector<std::string>& flags) {
  return found(run_with(flags, "{\"prompt\": \"Once\", \"max_tokens\": 1}\n"), "\ndevice    .*(KV cache .*)\n");
}

std::string make_rows(int num_rows, int num_words, int max_tokens) {
  std::string text;
  for (int i = 0; i < num_rows; ++i) {
    text += "{\"prompt\": \"" + std::to_string(i);
    for (int word = 0; word < num_words; ++word) text += " the day";
    text += "\", \"max_tokens\": " + std::to_string(max_tokens) + ", \"ignore_eos\": true}\n";
  }
  return text;
}

Forecast forecast_of(int64_t num_rows, int64_t peak, int64_t answers, int64_t slots, int64_t computed) {
  Forecast forecast;
  forecast.num_rows = num_rows;
  forecast.num_output_tokens = computed;
  forecast.peak_kv_tokens = peak;
  forecast.peak_kv_answers = answers;
  forecast.peak_kv_slots = slots;
  return forecast;
}

}  // namespace

TEST_CASE("tokens in blocks: a slot each; more where windows give blocks back, and as much less memory a token") {
  KvLayout kv;
  kv.num_layers = 1;
  kv.num_kv_heads = 1;
  kv.head_dim = 8;  // 64 bytes a token
  kv.num_blocks = 100;
  for (const int64_t row_tokens : {1, 15, 16, 17, 1'000'000}) {
    CHECK(tokens_in_blocks(kv, 100, row_tokens) == 1600);
    CHECK(kv_bytes_per_token(kv, row_tokens) == 64);
  }
  CHECK(tokens_in_blocks(kv, 0, 5) == 0);
  kv.groups.windows = {0, 32};  // 32 tokens touch three blocks at most
  CHECK(tokens_in_blocks(kv, 130, 160) == 100 * 16);
  CHECK(kv_bytes_per_token(kv, 160) == doctest::Approx(64 * 1.3));
  CHECK(tokens_in_blocks(kv, 130, 16) == 65 * 16);
  CHECK(kv_bytes_per_token(kv, 16) == 128);
}

TEST_CASE("a forecast's memory is whole blocks, those of kept prefixes too, and the pool at most") {
  ForecastContext context;
  context.pool_tokens = 1 << 20;
  context.kv_bytes_per_token = 1024;
  context.block_size = 17;  // half a block: 8 tokens
  const auto kv_text = [&](const Forecast& forecast) {
    return found(forecast_text(forecast, context), "peak \\((.*)\\)");
  };
  CHECK(kv_text(forecast_of(128, 1024, 128, 2048, 100'000)) == "2.0 MiB");
  CHECK(kv_text(forecast_of(1, 1016, 1, 1024, 1016)) == "1.0 MiB");
  CHECK(kv_text(forecast_of(1000, 1 << 20, 64, 1 << 21, 1 << 24)) == "1024.0 MiB");
  context.kept_tokens = 4096;
  CHECK(kv_text(forecast_of(1000, 1024, 128, 2048, 100'000)) == "2.0 MiB, 6.0 MiB with kept prefixes");
  CHECK(kv_text(forecast_of(640, 1024, 128, 2048, 6144)) == "2.0 MiB, 3.0 MiB with kept prefixes");
  CHECK(kv_text(forecast_of(128, 1024, 128, 2048, 1024)) == "2.0 MiB");  // all run at one time
  context.kept_tokens = int64_t{INT32_MAX} * 16;
  CHECK(kv_text(forecast_of(1, 1 << 20, 1, 1 << 20, 1 << 24)) == "1024.0 MiB");
}

TEST_CASE("a forecast says how much memory the blocks add that a draft model may have of the pool") {
  ForecastContext context;
  context.pool_tokens = 1 << 13;
  context.kv_bytes_per_token = 1024;
  context.block_size = 16;
  context.lent_tokens = 32;
  const auto kv_text = [&](const Forecast& forecast) {
    return found(forecast_text(forecast, context), "peak \\((.*)\\)");
  };
  CHECK(kv_text(forecast_of(128, 1024, 128, 2048, 1024)) == "2.0 MiB, at most 3.0 MiB with the draft model's");
  CHECK(kv_text(forecast_of(1, 1000, 1, 1008, 1000)) == "1.0 MiB, at most 1.5 MiB with the draft model's");
  CHECK(kv_text(forecast_of(1000, 6144, 128, 7168, 100'000)) == "7.0 MiB, at most 8.0 MiB with the draft model's");
  context.kept_tokens = 4096;
  CHECK(kv_text(forecast_of(1000, 1024, 128, 2048, 100'000)) ==
        "2.0 MiB, 6.0 MiB with kept prefixes, at most 7.0 MiB with the draft model's");
}

TEST_CASE("a run announces the room that there is, and on the CPU no memory that its rows will not take") {
  // The bundled model: 2 * 4 layers * 2 heads * 32 * 2 bytes = 1 KiB a token, at most 2,048 of them.
  CHECK(announced({}) == "KV cache bfloat16, room for 262144 tokens in blocks of 16, memory as rows take it");
  CHECK(announced({"--max-num-seqs", "10"}) ==
        "KV cache bfloat16, room for 20480 tokens in blocks of 16, memory as rows take it");
  CHECK(announced({"--kv-cache-memory-bytes", "4M"}) ==
        "KV cache bfloat16, room for 4096 tokens in blocks of 16, memory as rows take it");
}

// Rows take less where they do not arrive all at one time, as some have ended when others join: on a busy machine a run
// may have to be repeated. tests/scheduler/kv_forecast_test has them arrive at one time. No tokens are guessed, as rows
// whose guesses are right end earlier.
TEST_CASE("the memory that a forecast announces is the memory that the run takes") {
  struct Case {
    int num_rows, num_words, max_tokens;
    std::vector<std::string> flags;
    double least_share = 0.85;
  };
  const Case cases[] = {
      {64, 1, 60, {}},
      {50, 200, 40, {}},
      {60, 20, 40, {"--n", "4", "--max-num-seqs", "256"}},
      {64, 1, 20, {"--block-size", "32"}},
      {300, 1, 20, {"--block-size", "32"}, 0.5},
      {100, 30, 30, {"--max-num-seqs", "4"}, 0.5},
  };
  for (const Case& c : cases) {
    CAPTURE(c.num_rows);
    CAPTURE(c.num_words);
    double expected_mib = 0, taken_mib = -1;
    for (int attempt = 0; attempt < 4 && taken_mib < c.least_share * expected_mib; ++attempt) {
      const TemporaryDirectory dir;
      std::vector<std::string> flags = {"--no-enable-prefix-caching", "--speculative", "none", "--metrics",
                                        dir.file("m")};
      flags.insert(flags.end(), c.flags.begin(), c.flags.end());
      const std::string err = run_with(flags, make_rows(c.num_rows, c.num_words, c.max_tokens));
      expected_mib = std::stod("0" + found(err, "\nforecast  .* at the peak \\(([0-9.]+) MiB"));
      const double room_tokens = std::stod("0" + found(err, "\ndevice .* room for ([0-9]+) tokens"));
      const double share = parse_lines(read_file(dir.file("m")))[0]["kv_cache_usage_peak"];
      taken_mib = share * room_tokens / 1024;
      CHECK(taken_mib <= 1.15 * expected_mib);
    }
    CHECK(taken_mib >= c.least_share * expected_mib);
  }
}

}  // namespace llmb::test
