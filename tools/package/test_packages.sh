#!/bin/bash
# Installs each package that make_packages.sh has left in FOLDER into clean roots, without compiler and network, runs the demo
# there, upgrades, removes, and looks for what is left behind. The roots are Debian 12 and the oldest system that is claimed,
# Debian 11. Answers must be those of the program itself. Exit code 77: it cannot run here.
#   test_packages.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath "$1")
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
skip() { echo "skipped: $1"; exit 77; }
fail() { echo "FAILED: $1" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || skip "a root is made by root"
command -v mmdebstrap > /dev/null || skip "no mmdebstrap"
deb=$(ls "$folder"/packages/*.deb) wheel=$(ls "$folder"/packages/*.whl) tarball=$(ls "$folder"/packages/*.tar.gz)
mkdir -p "$folder/roots"
work=$(mktemp -d "$folder/roots/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

# ---- what is compared, and packages to upgrade from ----------------------------------------------------------------------
demo="-m /mnt/input/model /mnt/input/prompts.jsonl --order input --no-metrics --progress none"
answers() { sed 's,/mnt/input/,'"$work/files/"',g' <<< "$demo" | xargs "$folder/llm-batch" "$@" 2> /dev/null; }
mkdir -p "$work/files"
cp -r data/model examples/prompts.jsonl "$work/files/"
answers > "$work/files/expected"
answers --arithmetic unfused > "$work/files/expected_unfused"
[ "$(wc -l < "$work/files/expected")" -eq "$(wc -l < examples/prompts.jsonl)" ] || fail "the program does not answer the demo"

dpkg-deb -R "$deb" "$work/older"
sed -i 's/^Version: .*/Version: 0.0.1/' "$work/older/DEBIAN/control"
touch "$work/older/usr/share/doc/llm-batch/only-in-the-older-one"
dpkg-deb --root-owner-group --build "$work/older" "$work/files/older.deb" > /dev/null
glibc=$(sed -E 's/.*manylinux_([0-9]+)_([0-9]+)_.*/\1.\2/' <<< "$wheel")
tools/package/make_wheel.py --program "$folder/llm-batch" --version 0.0.1 --glibc "$glibc" --license LICENSE \
  --output "$work/files" > /dev/null
cp "$deb" "$tarball" "$wheel" "$work/files/"
cat > "$work/files/use.py" << 'END'
import json, llm_batch, sys
job = llm_batch.run("/mnt/input/model", files=["/mnt/input/prompts.jsonl"], order="input", no_metrics=True)
expected = [json.loads(line) for line in open("/mnt/input/expected", encoding="utf-8")]
assert list(job) == expected and job.summary["exit_code"] == 0, job.summary
assert llm_batch.__version__ == sys.argv[1], llm_batch.__version__
try:
    list(llm_batch.run("/mnt/input/none", ["a"]))
except llm_batch.Error as error:
    assert error.exit_code == 4 and "/mnt/input/none" in str(error), error
else:
    raise SystemExit("no exception")
END

# ---- roots ---------------------------------------------------------------------------------------------------------------
declare -A extra=([bookworm]=python3-venv,qemu-user [bullseye]=python3-venv)
make_root() {
  local tar=$folder/roots/$1.tar
  if [ ! -s "$tar" ]; then
    local host=${mirror#*://}
    timeout 20 bash -c "exec 3<> /dev/tcp/${host%%/*}/80" 2> /dev/null || skip "$mirror cannot be reached"
    mmdebstrap --quiet --variant=minbase --include="${extra[$1]}" "$1" "$tar.part" --format=tar "$mirror"
    mv "$tar.part" "$tar"
  fi
  mkdir "$work/$1"
  tar -xf "$tar" -C "$work/$1"
  cp -r "$work/files" "$work/$1/mnt/input"
}
in_root() {
  unshare --net --pid --fork --kill-child --mount-proc="$work/$root/proc" chroot "$work/$root" \
    /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 bash -euc "$1"
}
# Every path of the root but what dpkg itself keeps; where no package is, nothing of its state names ours.
list_files() { (cd "$work/$root" && find . -xdev -not -path './var/log/*' -not -path './var/lib/dpkg/*' | LC_ALL=C sort); }
expect_unchanged() {
  list_files | diff "$work/before" - || fail "$root: $1 leaves these behind"
  ! grep -rl llm-batch "$work/$root/var/lib/dpkg/info" "$work/$root/var/lib/dpkg/status" || fail "$root: $1 is still known to dpkg"
}
passed() { echo "passed: $root: $1"; }

for root in bookworm bullseye; do
  make_root $root
  in_root '! command -v c++ gcc cc' || fail "$root has a compiler"
  list_files > "$work/before"

  in_root 'dpkg -i /mnt/input/older.deb > /dev/null && test -e /usr/share/doc/llm-batch/only-in-the-older-one'
  in_root "dpkg -i /mnt/input/$(basename "$deb") > /dev/null && test ! -e /usr/share/doc/llm-batch/only-in-the-older-one"
  in_root "llm-batch $demo 2> /dev/null | cmp - /mnt/input/expected"
  in_root 'code=0; llm-batch --no-such-flag 2> /dev/null || code=$?; test $code = 2'  # an exception on its way
  in_root 'test -s /usr/share/doc/llm-batch/copyright && zcat /usr/share/man/man1/llm-batch.1.gz | grep -q "SH EXIT STATUS"'
  in_root '. /usr/share/bash-completion/completions/llm-batch && COMP_WORDS=(llm-batch --order i) COMP_CWORD=2 &&
           _llm_batch && test "${COMPREPLY[*]}" = input'
  in_root 'dpkg --purge llm-batch > /dev/null'
  expect_unchanged "the .deb"
  passed "the .deb is installed, upgraded, run and removed"

  in_root "mkdir /opt/a && tar -xzf /mnt/input/$(basename "$tarball") -C /opt/a --strip-components 1 && mv /opt/a '/srv/b c'"
  in_root "'/srv/b c/bin/llm-batch' $demo 2> /dev/null | cmp - /mnt/input/expected"
  in_root "rm -r '/srv/b c'"
  expect_unchanged "the tarball"
  passed "the tarball is unpacked, moved, run and removed"

  in_root 'python3 -m venv /srv/venv && /srv/venv/bin/pip --version > /dev/null'
  (cd "$work/$root/srv" && find venv -not -path '*/__pycache__*' | sort > "$work/venv")
  in_root '/srv/venv/bin/pip install -q --no-index /mnt/input/llm_batch-0.0.1-*.whl && /srv/venv/bin/python /mnt/input/use.py 0.0.1'
  version=$(basename "$wheel" | cut -d- -f 2)
  in_root "/srv/venv/bin/pip install -q --no-index --upgrade /mnt/input/$(basename "$wheel") && /srv/venv/bin/python /mnt/input/use.py $version"
  in_root "/srv/venv/bin/llm-batch $demo 2> /dev/null | cmp - /mnt/input/expected"
  in_root '/srv/venv/bin/python -m llm_batch --version > /dev/null && /srv/venv/bin/pip check -q && /srv/venv/bin/pip uninstall -q -y llm-batch'
  (cd "$work/$root/srv" && find venv -not -path '*/__pycache__*' | sort) | diff "$work/venv" - || fail "$root: the wheel leaves these behind"
  in_root 'rm -r /srv/venv'
  expect_unchanged "the wheel"
  passed "the wheel is installed, upgraded, used and removed"

  if [ $root = bookworm ]; then
    in_root "mkdir /opt/a && tar -xzf /mnt/input/$(basename "$tarball") -C /opt/a --strip-components 1"
    in_root "qemu-x86_64 -cpu Nehalem /opt/a/bin/llm-batch $demo 2> /dev/null | cmp - /mnt/input/expected_unfused"
    passed "the program answers on a processor without AVX"
  fi
  rm -rf "${work:?}/$root"
done
