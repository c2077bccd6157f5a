#!/bin/bash
# Runs a command and appends what it took to FOLDER/times.jsonl, a line a phase; ends with the command's exit code:
#
#   tools/timed.sh FOLDER PHASE COMMAND…
#
# wall_s, cpu_s: of the command and all that it started. compile_s, link_s, steps: of the steps that ninja did meanwhile in
# FOLDER, summed over steps that ran side by side. `tools/measure.py --only build` makes a table of the last line of each phase.
set -uo pipefail
folder=$1 phase=$2
shift 2
log=$folder/.ninja_log
before=$(cat "$log" 2> /dev/null | wc -l)
TIMEFORMAT='%R %U %S'
exec 3>&1 4>&2
took=$({ time "$@" 1>&3 2>&4 3>&- 4>&-; } 2>&1; echo "$?")
code=${took##*$'\n'}
read -r wall user system <<< "$took"
steps=$(tail -n "+$((before + 1))" "$log" 2> /dev/null | awk -F'\t' '
  $1 ~ /^[0-9]+$/ && !seen[$4]++ { n++; if ($4 ~ /\.(o|gch)$/) compile += $2 - $1; else link += $2 - $1 }
  END { printf "\"steps\":%d,\"compile_s\":%.1f,\"link_s\":%.1f", n, compile / 1000, link / 1000 }')
launcher=$(sed -n 's/^CMAKE_CXX_COMPILER_LAUNCHER:[A-Z]*=//p' "$folder/CMakeCache.txt" 2> /dev/null)
mkdir -p "$folder"
printf '{"date":"%s","phase":"%s","exit_code":%d,"wall_s":%.1f,"cpu_s":%.1f,%s,"load":%s,"compiler_cache":"%s"}\n' \
  "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$phase" "$code" "$wall" "$(awk "BEGIN {print $user + $system}")" "$steps" \
  "$(cut -d' ' -f1 /proc/loadavg 2> /dev/null || echo 0)" "$launcher" >> "$folder/times.jsonl"
exit "$code"
