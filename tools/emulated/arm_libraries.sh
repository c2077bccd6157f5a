#!/bin/bash
# Puts Debian's 64-bit ARM libraries that the program and its tests link into FOLDER/sysroot. Nothing is installed for them: apt
# keeps lists and packages of its own in FOLDER/apt. Exit code 77: they cannot be had.
#   arm_libraries.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$1"
folder=$(realpath "$1")
mapfile -t packages < <(tools/install_deps.sh --list | tr ' ' '\n' | grep -- '-dev$')
[ "$(cat "$folder/sysroot/packages" 2> /dev/null)" != "${packages[*]}" ] || exit 0
skip() { echo "skipped: $1"; exit 77; }
command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null || skip "no apt-get, which fetches the libraries for 64-bit ARM"

state=$folder/apt
mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
: > "$state/status"
apt_arm() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= -o Dir::State="$state" \
    -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" "$@"
}
apt_arm update && apt_arm install -y --no-install-recommends --download-only "${packages[@]}" > /dev/null ||
  skip "apt-get cannot fetch libraries for 64-bit ARM"

# Compiler and C library come with the cross compiler.
rm -rf "$folder/sysroot"
mkdir "$folder/sysroot"
for deb in "$state"/cache/archives/*.deb; do
  case $(basename "$deb") in
    libc6* | libc-dev* | linux-libc-* | libgcc-* | gcc-* | libstdc++*) ;;
    *) dpkg-deb -x "$deb" "$folder/sysroot" ;;
  esac
done
rm -rf "$state/cache/archives"
echo "${packages[*]}" > "$folder/sysroot/packages"
