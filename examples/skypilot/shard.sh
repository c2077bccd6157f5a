#!/bin/bash
# One shard on a machine whose disk is lost with it, as a spot machine's is: the run writes to the disk, and every EVERY
# seconds what there is goes to STORE, a folder that need not have locks, such as a mounted bucket. Where STORE has something of
# the shard, the run continues it. MODEL, INPUT, STORE and the rank's variables come from the environment.
set -u
rank=${SKYPILOT_NODE_RANK:?}
out=out.$rank.jsonl
mkdir -p "$STORE" "${WORK:=$HOME/llm-batch-shard}"
cd "$WORK" || exit 1

# Under its name a file in STORE is whole.
keep() { [ ! -e "$1" ] || { cp "$1" "$STORE/$1.copy" && mv "$STORE/$1.copy" "$STORE/$1"; }; }
save() {
  if [ -e $out ]; then keep $out && keep $out.manifest.json && rm -f "$STORE/$out.partial"
  else keep $out.partial; keep $out.manifest.json; fi
}
# A machine that is lost while it saves for the first time leaves no manifest, and nothing to go on from.
if [ ! -e $out.manifest.json ] && [ -e "$STORE/$out.manifest.json" ]; then
  if [ -e "$STORE/$out" ]; then cp "$STORE/$out" .; else cp "$STORE/$out.partial" . 2> /dev/null; fi
  cp "$STORE/$out.manifest.json" .
fi

"${LLM_BATCH:-llm-batch}" -m "$MODEL" "$INPUT" --shard auto -o $out ${FLAGS:-} &
shard=$!
trap 'kill -TERM $shard' TERM INT
while kill -0 $shard 2> /dev/null; do
  for ((i = 0; i < ${EVERY:-60}; ++i)); do kill -0 $shard 2> /dev/null && sleep 1; done
  save
done
wait $shard
code=$?
save
[ $code -eq 3 ] && exit 0  # all rows are answered, some by error records
exit $code
