#!/bin/bash
# Builds the libFuzzer programs with clang and the address and undefined-behaviour sanitizers, and runs each for some
# seconds on its corpus:
#
#   tools/run_fuzzers.sh BUILD_DIR SECONDS [NAME…]
#
# As many at a time as there are cores, or FUZZ_JOBS. New inputs that reach new code stay in BUILD_DIR/corpus, those
# that break something in BUILD_DIR/found: put the latter into tests/fuzz/corpus/NAME with the fix. Ends with 1 where
# anything was found.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 seconds=$2
shift 2

if ! command -v clang++-14 > /dev/null || ! ls /usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-x86_64.a > /dev/null 2>&1; then
  sudo=$([ "$(id -u)" = 0 ] || echo sudo)
  echo "installing: clang-14 libclang-rt-14-dev"
  $sudo apt-get update -q > /dev/null
  $sudo apt-get install -y -q clang-14 libclang-rt-14-dev > /dev/null
fi

mkdir -p "$build/found"
CC=clang-14 CXX=clang++-14 cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DLLMB_FUZZ=ON > "$build/configure.log"
cmake --build "$build" --target fuzz_programs

# Files that the tokenizer targets write go to memory where there is such a directory.
[ -w /dev/shm ] && export TMPDIR=/dev/shm
names=("$@")
[ ${#names[@]} -gt 0 ] || for source in tests/fuzz/*_fuzz.cpp; do names+=("$(basename "$source" _fuzz.cpp)"); done

run_one() {  # run_one BUILD_DIR SECONDS NAME
  local build=$1 seconds=$2 name=$3
  mkdir -p "$build/corpus/$name"
  if "$build/tests/${name}_fuzz" "$build/corpus/$name" "tests/fuzz/corpus/$name" \
      -artifact_prefix="$build/found/$name-" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 -max_len=40000 \
      -print_final_stats=1 > "$build/$name.log" 2>&1; then
    echo "$name: ok, $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") inputs"
  else
    echo "$name: FAILED, see $build/$name.log and $build/found"
    return 1
  fi
}
export -f run_one
printf '%s\n' "${names[@]}" | xargs -P "${FUZZ_JOBS:-$(nproc)}" -I{} bash -c 'run_one "$@"' run_one "$build" "$seconds" {} || exit 1
