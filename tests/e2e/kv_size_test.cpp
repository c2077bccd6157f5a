// The size of the KV cache that a run announces: on the CPU what it is expected to take, never more than the pool.
#include <doctest/doctest.h>

#include <regex>

#include "cli/settings.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

BackendInfo backend_info(int32_t num_blocks, int32_t max_idle) {
  BackendInfo info;
  info.kv.block_size = 16;
  info.kv.num_blocks = num_blocks;
  info.max_idle_blocks = max_idle;
  return info;
}

std::string announced(const std::vector<std::string>& flags) {
  std::vector<std::string> argv = {kProgram, "-m", kModel};
  argv.insert(argv.end(), flags.begin(), flags.end());
  const ProcessResult result = run_process(argv, "{\"prompt\": \"Once\", \"max_tokens\": 1}\n");
  CHECK(result.exit_code == 0);
  std::smatch match;
  CHECK(std::regex_search(result.err, match, std::regex("\ndevice    .*(KV cache .*)\n")));
  return match[1];
}

}  // namespace

TEST_CASE("expected blocks: whole blocks of every running sequence, the prefix cache's, the pool at most") {
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = 4;
  scheduler.enable_prefix_caching = true;
  CHECK(expected_kv_blocks(scheduler, backend_info(1000, 10), 1) == 4 + 10);
  CHECK(expected_kv_blocks(scheduler, backend_info(1000, 10), 16) == 4 + 10);
  CHECK(expected_kv_blocks(scheduler, backend_info(1000, 10), 17) == 8 + 10);
  CHECK(expected_kv_blocks(scheduler, backend_info(18, 10), 17) == 18);
  CHECK(expected_kv_blocks(scheduler, backend_info(17, 10), 17) == 17);
  CHECK(expected_kv_blocks(scheduler, backend_info(1, 10), 17) == 1);
  CHECK(expected_kv_blocks(scheduler, backend_info(1000, INT32_MAX), 17) == 1000);  // a pool whose size was given
  scheduler.enable_prefix_caching = false;
  CHECK(expected_kv_blocks(scheduler, backend_info(1000, INT32_MAX), 17) == 8);
  BackendInfo windows = backend_info(1000, INT32_MAX);
  windows.kv.groups.windows = {0, 32};  // 32 tokens touch three blocks at most
  CHECK(expected_kv_blocks(scheduler, windows, 160) == 4 * (10 + 3));
  CHECK(expected_kv_blocks(scheduler, windows, 17) == 4 * (2 + 2));
  scheduler.max_num_seqs = 65536;
  CHECK(expected_kv_blocks(scheduler, backend_info(INT32_MAX, 0), 1 << 24) == INT32_MAX);
}

TEST_CASE("a run announces what it is expected to take, and the room that there is") {
  // The bundled model: 2 * 4 layers * 2 heads * 32 * 2 bytes = 1 KiB a token, at most 2,048 of them.
  CHECK(announced({}) == "KV cache bfloat16, 128.0 MiB; room for 131072 tokens in blocks of 16");
  CHECK(announced({"--no-enable-prefix-caching"}) ==
        "KV cache bfloat16, 32.0 MiB expected, with 64 requests of 512 tokens; room for 131072 tokens in blocks of 16");
  CHECK(announced({"--no-enable-prefix-caching", "--max-tokens", "100", "--max-num-seqs", "10"}) ==
        "KV cache bfloat16, 2.0 MiB expected, with 10 requests of 200 tokens; room for 20480 tokens in blocks of 16");
  CHECK(announced({"--no-enable-prefix-caching", "--max-tokens", "1500"}) ==
        "KV cache bfloat16, 128.0 MiB; room for 131072 tokens in blocks of 16");
  CHECK(announced({"--kv-cache-memory-bytes", "4M"}) ==
        "KV cache bfloat16, 4.0 MiB; room for 4096 tokens in blocks of 16");
}

}  // namespace llmb::test
