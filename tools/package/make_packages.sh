#!/bin/bash
# Makes FOLDER/packages: a .deb, a tarball that runs wherever it is unpacked, and a Python wheel. FOLDER is a build folder of
# its own; CMAKE_FLAGS go to CMake. What the program needs of a system, its C library, is read from the program.
#   make_packages.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$1"
folder=$(realpath "$1")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || date +%s)}

tools/package/static_libraries.sh "$folder/static"
# shellcheck disable=SC2086 — a list of words
cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF -DLLMB_STATIC="$folder/static" \
  ${CMAKE_FLAGS:-} > "$folder/configure.log" 2>&1 || { cat "$folder/configure.log"; exit 1; }
cmake --build "$folder" --target llm-batch docs
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$folder/CMakeCache.txt")
newest_glibc() { objdump -T "$1" | grep -oE 'GLIBC_[0-9.]+' | cut -d_ -f2 | sort -Vu | tail -n 1; }

# ---- the tree that all of them hold ---------------------------------------------------------------------------------------
stage=$folder/stage packages=$folder/packages name=llm-batch
rm -rf "$stage" "$packages"
mkdir -p "$stage" "$packages"
cmake --install "$folder" --prefix "$stage/usr" --strip > /dev/null
program=$stage/usr/bin/$name
glibc=$(newest_glibc "$program")
needed=$(objdump -p "$program" | awk '$1 == "NEEDED" {print $2}' | grep -vE '^(ld-linux-x86-64|libc|libm|libpthread|libdl|librt)\.so' || true)
[ -z "$needed" ] || { echo "the program of the packages needs $needed, which is not part of the C library" >&2; exit 1; }
gzip -9n "$stage/usr/share/man/man1/$name.1"
doc=$stage/usr/share/doc/$name
mkdir -p "$doc"
cp -r examples README.md "$doc/"
{
  printf 'llm-batch\n\n'
  cat LICENSE
  for package in zlib1g-dev libzstd-dev libpcre2-dev libutf8proc-dev libsimdjson-dev libhwy-dev libcli11-dev nlohmann-json3-dev \
    libstdc++-12-dev; do
    copyright=/usr/share/doc/$package/copyright
    [ ! -f "$copyright" ] || { printf '\n\n%s\nLinked into the program: %s\n\n' "$(printf '=%.0s' {1..100})" "$package"; cat "$copyright"; }
  done
} > "$doc/copyright"
chmod -R u+rwX,go+rX,go-w "$stage"
find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

# ---- the tarball ------------------------------------------------------------------------------------------------------------
top=$name-$version-linux-$(uname -m)
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --transform="s,^usr,$top," -C "$stage" -c usr |
  gzip -9n > "$packages/$top.tar.gz"

# ---- the wheel --------------------------------------------------------------------------------------------------------------
tools/package/make_wheel.py --program "$program" --version "$version" --glibc "$glibc" --license "$doc/copyright" \
  --output "$packages" > /dev/null

# ---- the .deb -----------------------------------------------------------------------------------------------------------------
mv "$stage/usr/share/zsh/site-functions" "$stage/usr/share/zsh/vendor-completions"  # where Debian's zsh looks
size=$(du -k -s "$stage/usr" | cut -f 1)
(cd "$stage" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) > "$folder/md5sums"
mkdir "$stage/DEBIAN"
mv "$folder/md5sums" "$stage/DEBIAN/"
cat > "$stage/DEBIAN/control" << END
Package: $name
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: $(git log -1 --format='%an <%ae>' 2> /dev/null || echo "llm-batch")
Installed-Size: $size
Depends: libc6 (>= $glibc)
Section: science
Priority: optional
Description: offline batch inference for language models
 A file of prompts and a model in, a file of completions out, one answer for
 every line. Interrupted jobs continue, and answers do not depend on how the
 job was run.
END
dpkg-deb --root-owner-group --build "$stage" "$packages/${name}_${version}_$(dpkg --print-architecture).deb" > /dev/null
echo "The program needs glibc $glibc or newer. Packages:"
ls -l "$packages" | awk 'NR > 1 {print "  " $5, $9}'
