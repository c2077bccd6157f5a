#!/bin/sh
# A nightly job over a folder: answers every *.jsonl in it that is new or has grown, runs lines again whose records were
# errors, and leaves finished files alone. In a crontab:
#
#   17 3 * * *  examples/nightly.sh MODEL_DIR inbox answers
#
# Exit code 0 where all is answered, else the code of the last file that needs a look. Further arguments go to llm-batch.
# LLM_BATCH: the program.
set -u
model=$1 inbox=$2 answers=$3 failed=0
shift 3
mkdir -p "$answers"
for input in "$inbox"/*.jsonl; do
  name=$(basename "$input")
  messages=$("${LLM_BATCH:-llm-batch}" -m "$model" "$input" -o "$answers/$name" --retry-errors --progress none "$@" 2>&1)
  code=$?
  case $code in
    0) echo "$name: $(wc -l < "$answers/$name") answers" ;;
    8) echo "$name: another run is at it" ;;
    *) failed=$code
       printf '%s: exit code %s\n%s\n' "$name" "$code" "$messages" ;;
  esac
done
exit $failed
