#!/bin/bash
# A part of the suite under a sanitizer, as much as the time allows:
#
#   tools/sanitizer_turn.sh SECONDS [asan|tsan [FIRST]]
#
# The commit's hash chooses the sanitizer and the place FIRST in the list of tests to begin at, so that over the commits
# every test has its turn under each. Only what these tests need is built, in build-asan or build-tsan. Ends with 1 where
# something does not build or a test fails; that the time is over is no failure.
set -euo pipefail
cd "$(dirname "$0")/.."
end=$((SECONDS + $1))
hash=$((16#$(git rev-parse --short=7 HEAD 2> /dev/null | cut -c1-7 || echo 0)))
kind=${2:-$([ $((hash % 2)) = 0 ] && echo asan || echo tsan)}
build=build-$kind
flag=$([ "$kind" = asan ] && echo address,undefined || echo thread)

in_time() {  # in_time COMMAND…: ends the script where the time is over
  local left=$((end - SECONDS)) code=124
  if [ $left -gt 0 ]; then timeout -k 10 $left "$@" && return || code=$?; fi
  [ $code = 124 ] || [ $code = 137 ] || exit 1
  finish
}
finish() {
  echo "$kind turn: $num_run of ${#tests[@]} tests from ${tests[first]} on, none failed"
  exit 0
}

# shellcheck disable=SC2086
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release ${CMAKE_FLAGS:-} -DLLMB_SANITIZE=$flag > /dev/null
mapfile -t tests < <(cd "$build" && ctest -N 2> /dev/null | sed -n 's/^ *Test *#[0-9]*: \([^ ]*\).*/\1/p')
first=$((${3:-hash / 2} % ${#tests[@]}))
num_run=0
# ThreadSanitizer cannot place its memory where a kernel scatters addresses widely.
fixed=()
if [ "$kind" = tsan ] && setarch "$(uname -m)" -R true 2> /dev/null; then fixed=(setarch "$(uname -m)" -R); fi
echo "$kind turn: $1 s from ${tests[first]} on"
ordered=("${tests[@]:first}" "${tests[@]::first}")
for ((i = 0; i < ${#ordered[@]}; i += 4)); do
  batch=("${ordered[@]:i:4}")
  in_time cmake --build "$build" --target "${batch[@]//\//_}" -- --quiet
  in_time "${fixed[@]}" ctest --test-dir "$build" --output-on-failure -j 2 -R "^($(IFS='|' && echo "${batch[*]}"))\$"
  num_run=$((num_run + ${#batch[@]}))
done
finish
