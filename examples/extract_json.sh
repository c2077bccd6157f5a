#!/bin/bash
# Turns sentences, one a line, into a table: the model extracts the fields as JSON of a schema, jq writes the columns.
#
#   examples/extract_json.sh MODEL_DIR orders.txt > orders.tsv
#
# A line whose answer was cut has a question mark in every column. Further arguments go to llm-batch. LLM_BATCH: the
# program.
set -euo pipefail
model=$1 sentences=$2
shift 2
jq -R '{messages: [{role: "user", content: "Extract the name, count, item and price as JSON: \(.)"}]}' -c "$sentences" |
  "${LLM_BATCH:-llm-batch}" -m "$model" --order input --max-tokens 64 --progress none \
    --json-schema "$(dirname "$0")/order.schema.json" "$@" |
  jq -r '(.text | try fromjson catch {}) as $fields |
         [$fields | if type == "object" then . else {} end | .name, .count, .item, .price | . // "?"] | @tsv'
