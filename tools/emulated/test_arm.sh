#!/bin/bash
# Cross-compiles for 64-bit ARM into build-arm and runs under qemu-user:
#   kernels  their tests on a processor with all that there is (i8mm, SVE), and those of int8 on one without dot products and on
#            one with dotprod alone
#   models   forward passes against the fp64 oracle and the golden files, and random workloads whose bytes must not depend on
#            the schedule
#   answers  of the bundled model, byte for byte those of this machine's program PROGRAM in the same arithmetic; in
#            bf16-mmla, which x86 has not, those of one row at a time
# Each part is some steps, which say what they ran. Where the time will not do for all, --from N begins at the Nth, goes round,
# and builds no more than its steps need. Exit code 77: it cannot run here.
#   test_arm.sh [--from N] PROGRAM [kernels|models|answers]…
set -euo pipefail
cd "$(dirname "$0")/../.."
from=0
if [ "$1" = --from ]; then
  from=$2
  shift 2
fi
program=$1
shift
[ $# -gt 0 ] || set -- kernels models answers
build=$PWD/build-arm
skip() { echo "skipped: $1"; exit 77; }

missing=()
command -v aarch64-linux-gnu-g++ > /dev/null || missing+=(g++-aarch64-linux-gnu)
command -v qemu-aarch64 > /dev/null || missing+=(qemu-user)
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null || skip "64-bit ARM needs, installed by root: ${missing[*]}"
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
    > /dev/null || skip "apt-get cannot install ${missing[*]}"
fi
tools/emulated/arm_libraries.sh "$build" || exit $?
# shellcheck disable=SC2086 — a list of words
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release ${CMAKE_FLAGS:-} -DLLMB_CUDA=OFF -DLLMB_ARM_ROOT="$build/sysroot" \
  -DCMAKE_TOOLCHAIN_FILE="$PWD/tools/emulated/arm.cmake" > "$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }

# run_tests PROCESSOR NAME…: names as ctest has them
run_tests() {
  local processor=$1
  shift
  cmake --build "$build" --target "${@//\//_}" -- --quiet
  echo "-- $processor: $*"
  QEMU_CPU=$processor ctest --test-dir "$build" --output-on-failure -j 2 -R "^($(IFS='|'; echo "$*"))\$"
}

# emulated PROCESSOR FLAG…: answers to some prompts on stdout
emulated() {
  local processor=$1
  shift
  cmake --build "$build" --target llm-batch -- --quiet >&2
  head -n 4 examples/prompts.jsonl | sed 's/}$/, "logprobs": 2}/' > "$build/prompts.jsonl"
  qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$processor" "$build/llm-batch" "${answer_flags[@]}" "$@" < "$build/prompts.jsonl"
}
answer_flags=(-m data/model --order input --no-metrics --progress none)

# answers_equal PROCESSOR FLAG…
answers_equal() {
  emulated "$@" --max-num-seqs 3 > "$build/found.jsonl"
  "$program" "${answer_flags[@]}" "${@:2}" < "$build/prompts.jsonl" > "$build/expected.jsonl"
  cmp "$build/expected.jsonl" "$build/found.jsonl"
  echo "passed: $1 gives the answers of $(uname -m): ${*:2}"
}

# answers_hold PROCESSOR FLAG…
answers_hold() {
  emulated "$@" --max-num-seqs 3 > "$build/found.jsonl"
  emulated "$@" --max-num-seqs 1 --speculative none > "$build/expected.jsonl"
  cmp "$build/expected.jsonl" "$build/found.jsonl"
  echo "passed: $1 gives the same answers one by one: ${*:2}"
}

steps=()  # each a command and its arguments
for part in "$@"; do
  case $part in
    kernels)
      mapfile -t tests < <(cd tests && printf '%s\n' kernels/*_test.cpp | sed 's/\.cpp$//')
      for ((i = 0; i < ${#tests[@]}; i += 4)); do steps+=("run_tests max ${tests[*]:i:4}"); done
      for processor in cortex-a72 neoverse-n1; do
        steps+=("run_tests $processor kernels/linear_quantized_test kernels/exact_arithmetic_test")
      done ;;
    models)
      steps+=("run_tests max unit/transformer_test unit/golden_models_test"
        "run_tests max unit/cpu_backend_test property/cpu_workloads_test") ;;
    answers)
      for quantization in none int8 int4; do
        for sampling in "--temperature 0" "--temperature 1.1 --seed 7 --top-p 0.95"; do
          steps+=("answers_equal max --dtype float32 --quantization $quantization $sampling")
        done
        steps+=("answers_equal cortex-a72 --dtype float32 --quantization $quantization")
      done
      steps+=("answers_equal max --dtype bfloat16 --arithmetic fma" "answers_equal max --arithmetic unfused"
        "answers_hold max --arithmetic bf16-mmla") ;;
    *) echo "no part is named $part; there are kernels, models, answers" >&2; exit 2 ;;
  esac
done
for ((i = 0; i < ${#steps[@]}; ++i)); do
  read -r -a words <<< "${steps[(from + i) % ${#steps[@]}]}"
  "${words[@]}"
done
