#!/bin/bash
# examples/ray on a real Ray on loopback: eight shards, of which some are killed and tried again, are merged; the bytes must be
# those of one run. A directory of files as well.
#
#   tools/test_ray.sh BUILD/llm-batch
#
# Exit code 77 and a line where Ray is missing and cannot be installed. PYTHON names a python3 that has it.
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/.."
top=$PWD
dir=$(mktemp -d)
driver=
finish() {
  [ -z "$driver" ] || kill "$driver" 2> /dev/null || true
  wait
  rm -rf "$dir"
}
trap finish EXIT
python=${PYTHON:-python3}
if ! "$python" -c 'import ray' 2> /dev/null; then
  if ! { python3 -m venv "$dir/venv" && "$dir/venv/bin/pip" install -q ray; } > /dev/null 2>&1; then
    echo "skipped: no Ray, and it cannot be installed (pip install ray)"
    exit 77
  fi
  python=$dir/venv/bin/python3
fi

cd "$dir"
for ((i = 0; i < 320; ++i)); do
  echo "{\"id\":$i,\"prompt\":\"Story $i begins\",\"max_tokens\":$((20 + i % 50)),\"ignore_eos\":true}"
done > in.jsonl
"$program" -m "$top/data/model" in.jsonl -o one.jsonl --order input --no-metrics --progress none 2> one.log || { cat one.log; exit 1; }

# Ray is started and ended by the script's own process.
cat > run.py << 'END'
import runpy, sys, ray
ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=True)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
END
shards=("$python" run.py "$top/examples/ray/shards.py" --program "$program" --model "$top/data/model")
"${shards[@]}" --shards 8 "$dir/in.jsonl" "$dir/out.jsonl" -- --no-metrics --threads 1 > ray.log 2>&1 &
driver=$!
num_killed=0
for ((i = 0; i < 1200 && num_killed < 3; ++i)); do
  sleep 0.1
  kill -0 $driver 2> /dev/null || break
  for partial in "$dir"/out.jsonl.shard*.partial; do
    [ -s "$partial" ] || continue
    pid=$(pgrep -f -- "-o ${partial%.partial}( |\$)" | head -1) || continue
    kill -KILL "$pid" && num_killed=$((num_killed + 1))
    sleep 0.5
    break
  done
done
wait $driver || { tail -30 ray.log; exit 1; }
driver=
cmp one.jsonl out.jsonl || { tail -30 ray.log; exit 1; }

mkdir folder
head -5 in.jsonl > folder/a.jsonl
tail -5 in.jsonl > folder/b.jsonl
"${shards[@]}" folder answers -- --no-metrics --order input --threads 1 > ray.log 2>&1 || { tail -30 ray.log; exit 1; }
head -5 one.jsonl | cmp - answers/a.jsonl
[ "$(wc -l < answers/b.jsonl)" = 5 ]
echo "Ray $("$python" -c 'import ray; print(ray.__version__)'): 8 shards, $num_killed killed, merged: the bytes of one run"
