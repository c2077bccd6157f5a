#!/bin/bash
# The cost of a durable output: the same job with `-o FILE` (manifest, fingerprint, a sync a second, the sync and rename at
# the end) and with its results redirected to a file, in turn.
#
#   tools/bench_durability.sh PROGRAM RUNS DIR [ARGUMENT…]
#
# ARGUMENTs are the job: model, input, device. Prints wall and processor time of each run and the medians.
set -euo pipefail
program=$1 runs=$2 dir=$3
shift 3
mkdir -p "$dir"
TIMEFORMAT='%R %U %S'

measure() {  # measure NAME COMMAND…
  local name=$1
  shift
  { time "$@" > "$dir/stdout" 2> "$dir/stderr"; } 2>> "$dir/$name.times"
}

rm -f "$dir"/*.times
for ((i = 0; i < runs; ++i)); do
  rm -f "$dir"/out.jsonl*
  measure durable "$program" "$@" --progress none --metrics none -o "$dir/out.jsonl"
  measure plain "$program" "$@" --progress none --metrics none
done
for name in durable plain; do
  awk '{ print $1, $2 + $3 }' "$dir/$name.times" > "$dir/$name.sums"
  for column in 1 2; do
    cut -d' ' -f$column "$dir/$name.sums" | sort -n | awk '{ v[NR] = $1 } END { m = int((NR + 1) / 2); printf "%.3f ", NR % 2 ? v[m] : (v[m] + v[m + 1]) / 2 }'
  done > "$dir/$name.median"
  echo "$name: median $(awk '{ printf "%.3f s, %.3f s of processors", $1, $2 }' "$dir/$name.median") ($(tr '\n' ';' < "$dir/$name.sums"))"
done
paste -d' ' "$dir/durable.median" "$dir/plain.median" |
  awk '{ printf "durability costs %+.2f %% of the time, %+.2f %% of the processors\n", 100 * ($1 / $3 - 1), 100 * ($2 / $4 - 1) }'
