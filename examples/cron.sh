#!/bin/sh
# An hourly job over a file that grows. In a crontab:
#
#   7 * * * *  examples/cron.sh MODEL_DIR in.jsonl out.jsonl >> cron.log
#
# Each run answers what is new since the last one and continues what was cut off; a run that finds the last one still at
# work leaves it alone. It says one line where something was done, and fails (so that cron sends mail) only where a person
# has to look. Further arguments go to llm-batch. LLM_BATCH: the program.
set -u
model=$1 input=$2 output=$3
shift 3
messages=$("${LLM_BATCH:-llm-batch}" -m "$model" "$input" -o "$output" --progress none "$@" 2>&1)
code=$?
report=$(printf '%s\n' "$messages" | tail -n 1)  # {"exit_code":0,"done":12,…}
case $code in
  0) done=$(printf '%s' "$report" | sed 's/.*"done":\([0-9]*\).*/\1/')
     skipped=$(printf '%s' "$report" | sed 's/.*"skipped":\([0-9]*\).*/\1/')
     [ "$done" = "$skipped" ] || echo "$output: $((done - skipped)) new answers" ;;
  3) echo "$output: finished with errors, $report" ;;
  8) ;;                                                  # the last run is still at work
  129|130|143) echo "$output: interrupted, $report" ;;   # the next run continues
  *) printf '%s\n' "$messages" >&2; exit "$code" ;;
esac
