#!/bin/bash
# The tests that take too long for every commit.
#
#   tools/test_long.sh                    # all parts, whole: hours. Before an issue is called resolved
#   tools/test_long.sh [--seed N] PART…   # these parts, whole
#   tools/test_long.sh --turn SECONDS     # for CI: as much of one part as the time allows; the commit's hash says which
#
# counts         random workloads, combinations of flags, failing allocations and kills in full numbers
# simt           CUDA kernels and backend on the host layer, threads and blocks in other orders
# architectures  nvcc for all of them
# arm            kernels, models and answers on 64-bit ARM, under qemu
# old            kernels on an emulated x86 processor without AVX
# packages       clean roots, and an emulated processor without AVX (as root, with mmdebstrap; elsewhere skipped)
# scale          ten million lines
# clusters       shards on a real Slurm and a real Ray on this machine, with kills (skipped where they cannot be installed)
# fuzz           all parsers
# asan, tsan     the suite under sanitizers
#
# Builds in build, and in a folder of its own for what is built otherwise. Exit code 1 where something fails; that the time is
# over is no failure.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=(counts simt architectures arm old packages scale clusters fuzz asan tsan)
hash=$((16#$(git rev-parse --short=7 HEAD 2> /dev/null | cut -c1-7 || echo 0)))
first_seed=1  # a turn draws its own

build() { cmake --build build --target "$@" -- --quiet; }
configure() { [ -f build/CMakeCache.txt ] || cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release ${CMAKE_FLAGS:-} > /dev/null; }

# In a turn they begin at another one each time, as there is no time for all; so do emulated processors' tests. The seeds of one
# part's turns are equal modulo 16.
run_counts() {
  local seed=LLMB_WORKLOAD_SEED=$first_seed many=LLMB_NUM_WORKLOADS words i
  local tests=(
    "property_scheduler_test $seed $many=100000"
    "property_cpu_workloads_test $seed $many=20000"
    "property_beams_test $seed $many=50000"
    "property_constraints_test $seed $many=100000"
    "property_speculation_test LLMB_JOB_SEED=$first_seed LLMB_NUM_JOBS=10000"
    "property_cpu_speculation_test LLMB_JOB_SEED=$first_seed LLMB_NUM_MODEL_JOBS=500"
    "property_grammar_masks_test LLMB_NUM_GRAMMARS=1000"
    "property_wide_masks_test LLMB_NUM_GRAMMARS=1000"
    "property_io_faults_test LLMB_ALL_FAULTS=1"
    "e2e_workers_test LLMB_NUM_KILLS=1000"
    "e2e_ranks_kills_test LLMB_NUM_KILLS=1000"
    "e2e_rank_delays_test LLMB_NUM_DELAYED_RUNS=300"
    "unit_prefix_cache_chains_test $many=100000"
    "e2e_allocation_test LLMB_NUM_ALLOCATIONS=100000"
    "e2e_forms_test LLMB_NUM_QUESTIONS=700"
    "e2e_speculation_test LLMB_ALL_SCHEDULES=1"
    combinations
    crash
  )
  for ((i = 0; i < ${#tests[@]}; ++i)); do
    read -r -a words <<< "${tests[(first_seed / 12 + i) % ${#tests[@]}]}"
    echo "-- ${words[*]}"
    if [ "${words[0]}" = crash ]; then
      make crash CRASH_FLAGS="--seed $first_seed"
    elif [ "${words[0]}" = combinations ]; then
      build llm-batch
      tools/try_combinations.py build/llm-batch --seed "$first_seed" --seconds 1200
    else
      build "${words[0]}"
      env "${words[@]:1}" "build/tests/${words[0]}"
    fi
  done
}

# AVX2 and AVX-512 are tested wherever the processor has them; a Nehalem (2008) has neither. A test that the end of a turn stops
# is reported as signal 11: doctest's handler of SIGTERM fails under qemu.
run_old() {
  command -v qemu-x86_64 > /dev/null || { echo "skipped: no qemu-x86_64 (Debian: qemu-user)"; return; }
  local tests test i
  mapfile -t tests < <(cd tests/kernels && printf 'kernels_%s\n' *_test.cpp | sed 's/\.cpp$//')
  build "${tests[@]}"
  for ((i = 0; i < ${#tests[@]}; ++i)); do
    test=${tests[(first_seed / 16 + i) % ${#tests[@]}]}
    echo "-- Nehalem: $test"
    qemu-x86_64 -cpu Nehalem "build/tests/$test" --minimal || [ $? = 77 ]
  done
}

run_part() {
  configure
  case $1 in
    counts) run_counts ;;
    simt)
      mapfile -t tests < <(cd build && ctest -N -R '_simt/' | sed -n 's/^ *Test *#[0-9]*: //p')
      build "${tests[@]//\//_}"
      for seed in 1 2 3 4; do
        LLMB_ALL_SCHEDULES=1 LLMB_SIMT_SEED=$((first_seed + seed)) ctest --test-dir build --output-on-failure -j 2 -R '_simt/'
      done ;;
    architectures)
      command -v "${CUDACXX:-nvcc}" > /dev/null || [ -x /usr/local/cuda/bin/nvcc ] || { echo "skipped: no nvcc"; return; }
      cmake -S . -B build-architectures -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLMB_CUDA=ON > /dev/null
      cmake --build build-architectures --target llm-batch gpu_tests bench_engine bench_kernels_cuda -- --quiet ;;
    arm)
      build llm-batch
      tools/emulated/test_arm.sh --from $((first_seed / 16)) build/llm-batch || [ $? = 77 ] ;;
    old) run_old ;;
    packages)
      tools/package/make_packages.sh build-package
      tools/package/test_packages.sh build-package || [ $? = 77 ] ;;
    scale) make scale ;;
    clusters)
      build llm-batch
      tools/test_slurm.sh build/llm-batch || [ $? = 77 ]
      tools/test_ray.sh build/llm-batch || [ $? = 77 ]
      tools/test_spot.sh build/llm-batch ;;
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
turns=(counts simt architectures arm old packages scale clusters fuzz)
part=${turns[hash / 2 % ${#turns[@]}]}
echo "turn: $part for $2 s, seed $hash"
code=0
timeout -k 10 "$2" tools/test_long.sh --seed "$hash" "$part" || code=$?
[ $code = 124 ] || [ $code = 137 ] || exit $code
echo "turn: the time is over, nothing failed"
