#!/bin/bash
# examples/slurm on a real Slurm: slurmctld and slurmd on loopback, without systemd and munge. Eight shards, of which some
# are killed and some requeued, are merged; the bytes must be those of one run.
#
#   tools/test_slurm.sh BUILD/llm-batch
#
# Exit code 77 and a line where Slurm is missing and cannot be installed (Debian: slurmctld slurmd slurm-client, as root).
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/.."
top=$PWD
export PATH=$PATH:/usr/sbin
if ! command -v slurmctld slurmd sbatch > /dev/null; then
  if [ "$(id -u)" != 0 ] || ! { apt-get update && apt-get install -y --no-install-recommends slurmctld slurmd slurm-client; } > /dev/null 2>&1; then
    echo "skipped: no Slurm, and it cannot be installed (Debian: slurmctld slurmd slurm-client)"
    exit 77
  fi
fi
if [ "$(id -u)" != 0 ]; then echo "skipped: slurmd needs root"; exit 77; fi

dir=$(mktemp -d)
pids=()
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  wait
  rm -rf "$dir"
}
trap finish EXIT
export SLURM_CONF=$dir/slurm.conf
mkdir "$dir/state" "$dir/spool"
port=$((20000 + $$ % 10000))
cat > "$SLURM_CONF" << END
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobRequeue=1
KillWait=5
ReturnToService=2
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
NodeName=localhost NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP
END
slurmctld -D & pids+=($!)
slurmd -D -N localhost & pids+=($!)
fail() { echo "$1"; tail -20 "$dir"/*.log; exit 1; }
for ((i = 0; i < 100; ++i)); do
  [ "$(sinfo -h -o %T 2> /dev/null)" = idle ] && break
  sleep 0.2
done
[ "$(sinfo -h -o %T)" = idle ] || fail "no node becomes idle: $(sinfo)"

cd "$dir"
for ((i = 0; i < 320; ++i)); do
  echo "{\"id\":$i,\"prompt\":\"Story $i begins\",\"max_tokens\":$((20 + i % 50)),\"ignore_eos\":true}"
done > in.jsonl
export LLM_BATCH=$program MODEL=$top/data/model INPUT=$dir/in.jsonl OUTPUT=$dir/out FLAGS="--no-metrics --threads 1"
"$program" -m "$MODEL" in.jsonl -o one.jsonl --order input --no-metrics --progress none 2> one.log || fail "$(cat one.log)"

job=$(sbatch --parsable "$top/examples/slurm/array.sbatch")
num_killed=0 num_requeued=0
# While the first tasks run: kill one shard's process, take another task from its node.
for ((i = 0; i < 600 && num_killed + num_requeued < 4; ++i)); do
  sleep 0.1
  running=$(squeue -h -r -j "$job" -t RUNNING -o %i 2> /dev/null | tail -1)
  [ -n "$running" ] || continue
  [ -s "$dir/out.${running#*_}.jsonl.partial" ] || continue
  if [ $num_killed -le $num_requeued ]; then
    pid=$(pgrep -f -- "-o $dir/out.${running#*_}.jsonl " | head -1) || continue
    kill -KILL "$pid" && num_killed=$((num_killed + 1))
  else
    scontrol requeue "$running" && num_requeued=$((num_requeued + 1))
  fi
  sleep 0.3
done
for ((i = 0; i < 1200; ++i)); do
  left=$(squeue -h -r -j "$job" 2> /dev/null | wc -l)
  [ "$left" = 0 ] && break
  sleep 0.25
done
[ "$left" = 0 ] || fail "tasks are left: $(squeue -r)"
"$program" merge merged.jsonl out.*.jsonl --order input || fail "not merged: $(tail -3 llm-batch-*.log)"
cmp one.jsonl merged.jsonl || fail "the bytes are others"
echo "Slurm $(slurmctld -V | cut -d' ' -f2): 8 shards, $num_killed killed, $num_requeued requeued, merged: the bytes of one run"
