#!/bin/bash
# Samples several stories from one prompt: one line that asks for n answers. The prompt is computed once, and the same
# seed gives the same stories, however many of them are asked for.
#
#   examples/sample_stories.sh MODEL_DIR 3 "Once upon a time"
#
# Further arguments go to llm-batch. LLM_BATCH: the program.
set -euo pipefail
model=$1 count=$2 prompt=$3
shift 3
jq -nc --argjson count "$count" --arg prompt "$prompt" '{prompt: $prompt, n: $count, seed: 1}' |
  "${LLM_BATCH:-llm-batch}" -m "$model" --temperature 0.8 --top-p 0.95 --max-tokens 60 --progress none "$@" |
  jq -r '(.outputs // [.])[] | "\(.index): \(.text | gsub("\\s+"; " "))"'
