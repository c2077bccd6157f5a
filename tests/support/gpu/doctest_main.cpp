// Device tests: skipped, as a whole and visibly, where there is no GPU.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime_api.h>

#include <cstdio>

#include "tests/support/skip.h"

REGISTER_LISTENER("skips", 1, llmb::test::SkipListener);

int main(int argc, char** argv) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::puts("skipped: no GPU");
    return 77;
  }
  return llmb::test::run_tests(argc, argv);
}
