#!/bin/sh
# Makes in FOLDER what the packages' program is linked with and Debian 12 has no archive of:
#   lib/      simdjson and Highway, from Debian's sources of the installed version
#   sysroot/  the C library of Debian 11, whose symbols also older systems have
# apt checks the signatures of all that it fetches. Does nothing where FOLDER is complete.
#   static_libraries.sh FOLDER
set -eu
mkdir -p "$1"
cd "$1"
folder=$PWD
[ -f complete ] && exit 0
. /etc/os-release
if [ "$ID $VERSION_CODENAME $(dpkg --print-architecture)" != "debian bookworm amd64" ]; then
  echo "packages are built on Debian 12 for amd64, not on ${PRETTY_NAME} for $(dpkg --print-architecture)" >&2
  exit 1
fi

mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keys=/usr/share/keyrings/debian-archive-keyring.gpg
mkdir -p apt/lists/partial apt/cache/archives/partial lib source sysroot
printf '%s\n' "deb-src [signed-by=$keys] $mirror bookworm main" "deb [signed-by=$keys] $mirror bullseye main" > apt/sources.list
private_apt() {
  apt-get -qq -o Dir::Etc::SourceList="$folder/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State::Lists="$folder/apt/lists" -o Dir::Cache="$folder/apt/cache" -o APT::Sandbox::User="$(id -un)" "$@"
}
private_apt update
upstream_version() { dpkg-query -W -f='${source:Upstream-Version}' "$1"; }
simdjson=simdjson-$(upstream_version libsimdjson-dev) highway=highway-$(upstream_version libhwy-dev)
(cd apt && private_apt source --download-only simdjson highway && private_apt download libc6/bullseye libc6-dev/bullseye)
for package in apt/libc6_*.deb apt/libc6-dev_*.deb; do dpkg-deb -x "$package" sysroot; done
find sysroot -lname '/*' | while read -r link; do ln -sfr "$folder/sysroot$(readlink "$link")" "$link"; done
for name in "$simdjson" "$highway"; do tar -xf "apt/$(echo "$name" | tr - _).orig.tar.gz" -C source; done

compile() { c++ -O2 -std=c++17 -ffunction-sections -c "$@"; }
compile -DSIMDJSON_THREADS_ENABLED=1 -I"source/$simdjson/include" -I"source/$simdjson/src" "source/$simdjson/src/simdjson.cpp" -o simdjson.o
ar rcs lib/libsimdjson.a simdjson.o
for stem in aligned_allocator per_target targets; do
  compile -I"source/$highway" "source/$highway/hwy/$stem.cc" -o "hwy_$stem.o"
done
ar rcs lib/libhwy.a hwy_*.o
rm -rf apt source ./*.o
touch complete
