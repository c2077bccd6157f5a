#!/bin/bash
# The tests that take too long for every commit.
#
#   tools/test_long.sh                    # all parts, whole: hours. Before an issue is called resolved
#   tools/test_long.sh [--seed N] PART…   # these parts, whole
#   tools/test_long.sh --turn SECONDS     # for CI: as much of one part as the time allows; the commit's hash says which
#
# counts         random workloads, failing allocations and kills in full numbers
# simt           CUDA kernels and backend on the host layer, threads and blocks in other orders
# architectures  nvcc for all of them
# packages       clean roots, and an emulated processor without AVX (as root, with mmdebstrap; elsewhere skipped)
# scale          ten million lines
# fuzz           all parsers
# asan, tsan     the suite under sanitizers
#
# Builds in build, and in a folder of its own for what is built otherwise. Exit code 1 where something fails; that the time is
# over is no failure.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=(counts simt architectures packages scale fuzz asan tsan)
hash=$((16#$(git rev-parse --short=7 HEAD 2> /dev/null | cut -c1-7 || echo 0)))
first_seed=1  # a turn draws its own

build() { cmake --build build --target "$@" -- --quiet; }
configure() { [ -f build/CMakeCache.txt ] || cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release ${CMAKE_FLAGS:-} > /dev/null; }

run_part() {
  configure
  case $1 in
    counts)
      build property_scheduler_test property_cpu_workloads_test unit_prefix_cache_test e2e_allocation_test
      LLMB_WORKLOAD_SEED=$first_seed LLMB_NUM_WORKLOADS=100000 build/tests/property_scheduler_test
      LLMB_NUM_WORKLOADS=100000 build/tests/unit_prefix_cache_test
      LLMB_NUM_ALLOCATIONS=100000 build/tests/e2e_allocation_test
      LLMB_WORKLOAD_SEED=$first_seed LLMB_NUM_WORKLOADS=20000 build/tests/property_cpu_workloads_test
      make crash CRASH_FLAGS="--seed $first_seed" ;;
    simt)
      mapfile -t tests < <(cd build && ctest -N -R '_simt/' | sed -n 's/^ *Test *#[0-9]*: //p')
      build "${tests[@]//\//_}"
      for seed in 1 2 3 4; do
        LLMB_SIMT_SEED=$((first_seed + seed)) ctest --test-dir build --output-on-failure -j 2 -R '_simt/'
      done ;;
    architectures)
      command -v "${CUDACXX:-nvcc}" > /dev/null || [ -x /usr/local/cuda/bin/nvcc ] || { echo "skipped: no nvcc"; return; }
      cmake -S . -B build-architectures -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLMB_CUDA=ON > /dev/null
      cmake --build build-architectures --target llm-batch -- --quiet ;;
    packages)
      tools/package/make_packages.sh build-package
      tools/package/test_packages.sh build-package || [ $? = 77 ] ;;
    scale) make scale ;;
    fuzz) make fuzz ;;
    asan | tsan) make "test-$1" ;;
    *) echo "no part is named $1; there are ${parts[*]}" >&2; exit 2 ;;
  esac
}

if [ "${1:-}" = --seed ]; then
  first_seed=$2
  shift 2
fi
if [ "${1:-}" != --turn ]; then
  [ $# -gt 0 ] || set -- "${parts[@]}"
  for part in "$@"; do
    echo "---- $part"
    run_part "$part"
  done
  exit
fi

# Every second turn is a sanitizer's: these find most.
if [ $((hash % 2)) = 1 ]; then
  sanitizers=(asan tsan)
  exec tools/sanitizer_turn.sh "$2" "${sanitizers[hash / 2 % 2]}" $((hash / 4))
fi
turns=(counts simt architectures packages scale fuzz)
part=${turns[hash / 2 % ${#turns[@]}]}
echo "turn: $part for $2 s, seed $hash"
code=0
timeout -k 10 "$2" tools/test_long.sh --seed "$hash" "$part" || code=$?
[ $code = 124 ] || [ $code = 137 ] || exit $code
echo "turn: the time is over, nothing failed"
