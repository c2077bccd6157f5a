#!/bin/bash
# Scores a model on questions whose answers are known: the share of exact answers for each task, and the questions that it
# got wrong.
#
#   examples/score_heldout.sh MODEL_DIR data/eval/heldout.jsonl
#
# The expected answer stands in a line's metadata, which llm-batch does not read. Further arguments go to llm-batch.
# LLM_BATCH: the program.
set -euo pipefail
model=$1 questions=$2
shift 2
"${LLM_BATCH:-llm-batch}" -m "$model" "$questions" --order input --progress none "$@" |
  jq -rs --slurpfile questions "$questions" '
    [., $questions] | transpose | map({
      task: .[1].metadata.task, question: (.[1].messages // [{content: .[1].prompt}])[-1].content,
      expected: .[1].metadata.expected, answer: (.[0].text // "" | ltrimstr(" "))})
    | map(select(.expected))
    | (group_by(.task)[] | "\(.[0].task): \(map(select(.answer == .expected)) | length) of \(length)"),
      (.[] | select(.answer != .expected) | "  wrong: \(.question) \(.answer | tojson), expected \(.expected | tojson)")'
