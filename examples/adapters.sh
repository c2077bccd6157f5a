#!/bin/bash
# Answers one file whose lines name different LoRA adapters of one model, and prints for each line adapter, question and
# answer.
#
#   examples/adapters.sh MODEL_DIR data/adapters data/eval/adapters.jsonl
#
# Further arguments go to llm-batch. LLM_BATCH: the program.
set -euo pipefail
model=$1 adapters=$2 lines=$3
shift 3
"${LLM_BATCH:-llm-batch}" -m "$model" --adapter-dir "$adapters" "$lines" --order input --progress none "$@" |
  jq -rs --slurpfile lines "$lines" '
    [., $lines] | transpose | .[] | "\(.[1].adapter // "none"): \(.[1].messages[-1].content) -> \(.[0].text)"'
