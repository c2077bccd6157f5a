#!/bin/bash
# examples/skypilot/shard.sh where two machines are lost with their disks: what the store has is continued, and the bytes are
# those of one run.
#
#   tools/test_spot.sh BUILD/llm-batch
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/.."
top=$PWD
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
for ((i = 0; i < 400; ++i)); do echo "{\"prompt\":\"Story $i\",\"max_tokens\":150,\"ignore_eos\":true}"; done > in.jsonl
export LLM_BATCH=$program MODEL=$top/data/model INPUT=$dir/in.jsonl STORE=$dir/store EVERY=1 SKYPILOT_NUM_NODES=2
export FLAGS="--no-metrics --progress none --threads 1 --max-num-seqs 16"
"$program" -m "$MODEL" in.jsonl -o one.jsonl --order input --no-metrics --progress none 2> log || { cat log; exit 1; }
num_lost=0
for rank in 0 1; do
  export SKYPILOT_NODE_RANK=$rank
  WORK=$dir/lost$rank setsid "$top/examples/skypilot/shard.sh" 2> /dev/null &
  machine=$!
  for ((i = 0; i < 300; ++i)); do
    [ -s "store/out.$rank.jsonl.partial" ] && break
    sleep 0.1
  done
  kill -KILL -- -$machine 2> /dev/null && [ ! -e "store/out.$rank.jsonl" ] && num_lost=$((num_lost + 1))
  wait $machine 2> /dev/null || true
  rm -rf "lost$rank"
  WORK=$dir/machine$rank "$top/examples/skypilot/shard.sh" 2> log || { cat log; exit 1; }
done
"$program" merge merged.jsonl store/out.?.jsonl --order input 2> log || { cat log; exit 1; }
cmp one.jsonl merged.jsonl
echo "a store without locks: 2 shards, $num_lost machines lost, merged: the bytes of one run"
