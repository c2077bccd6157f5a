#include "engine/swap_cost.h"

#include <doctest/doctest.h>

namespace llmb::test {

namespace {

// 1 MiB a token, a GiB/s: about 2 ms there and back.
BackendInfo backend_with(double bytes_per_s) {
  BackendInfo info;
  info.kv.num_layers = 1;
  info.kv.num_kv_heads = 1;
  info.kv.head_dim = (1 << 20) / 8;
  info.swap_bytes_per_s = bytes_per_s;
  return info;
}

bool pays(double ms_of_100_rows, double bytes_per_s) {
  StepCost cost;
  for (int i = 0; i < 4; ++i) cost.observe(100, 0, ms_of_100_rows);
  return swap_pays(backend_with(bytes_per_s), cost, 100);
}

}  // namespace

TEST_CASE("moving pays where both ways take less than computing a token") {
  CHECK_FALSE(pays(190, 1 << 30));
  CHECK(pays(200, 1 << 30));
  CHECK_FALSE(pays(200, 1 << 29));
}

TEST_CASE("as long as nothing is known, blocks are not moved") {
  CHECK_FALSE(swap_pays(backend_with(1e12), StepCost(), 100));
  CHECK_FALSE(pays(1e9, 0));
}

}  // namespace llmb::test
