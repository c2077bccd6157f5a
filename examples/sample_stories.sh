#!/bin/bash
# Samples several stories from one prompt: a line each, with a seed of its own. The same seeds give the same stories.
#
#   examples/sample_stories.sh MODEL_DIR 3 "Once upon a time"
#
# Further arguments go to llm-batch. LLM_BATCH: the program.
set -euo pipefail
model=$1 count=$2 prompt=$3
shift 3
jq -nc --argjson count "$count" --arg prompt "$prompt" 'range($count) | {id: "seed \(.)", prompt: $prompt, seed: .}' |
  "${LLM_BATCH:-llm-batch}" -m "$model" --order input --temperature 0.8 --top-p 0.95 --max-tokens 60 --progress none "$@" |
  jq -r '"\(.id): \(.text | gsub("\\s+"; " "))"'
