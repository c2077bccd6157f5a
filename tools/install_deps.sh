#!/bin/sh
# Installs the distribution packages that the build needs, where any is missing. Debian 12 and its kin.
#   install_deps.sh [--list]    --list: only prints their names
set -eu

packages="g++ cmake ninja-build pkg-config libcli11-dev nlohmann-json3-dev libsimdjson-dev doctest-dev libhwy-dev
libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libboost-context-dev"

if [ "${1:-}" = --list ]; then
  echo $packages
  exit
fi
missing=""
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "llm-batch needs these packages (Debian's names):$missing" >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "llm-batch needs these packages; as root run: apt-get install$missing" >&2
    exit 1
  fi
  as_root="sudo"
fi
echo "Installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
# shellcheck disable=SC2086 — a list of words
$as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
