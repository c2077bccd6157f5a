#!/bin/sh
# `make demo` runs this: examples/prompts.jsonl through the bundled model, then a look at the answers.
set -eu
program=$1
"$program" -m data/model examples/prompts.jsonl -o out.jsonl --order input --restart
echo
echo "The first answers (out.jsonl):"
head -n 12 out.jsonl | sed -n 's/.*"id":"\([^"]*\)","text":"\(.*\)","finish_reason".*/  \1: \2/p' | cut -c1-150
echo
echo "All $(wc -l < out.jsonl) answers are in out.jsonl, the metrics of each run in out.metrics.jsonl."
