#!/usr/bin/env bash
# Builds what tools/gpu_check.py runs, for one GPU architecture, into a folder that also works on a machine without this
# one's packages (it needs the driver, cuBLAS and python3): tools/gpu_bundle.sh BUILD_DIR [ARCHITECTURE]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
architecture=${2:-90a}
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLMB_CUDA=ON -DLLMB_CUDA_ARCHITECTURES="$architecture" ${CMAKE_FLAGS:-} >/dev/null
cmake --build "$build" --target llm-batch gpu_tests bench_engine bench_kernels_cuda bench_collectives_cuda
bundle=$build/bundle
rm -rf "$bundle"
mkdir -p "$bundle/lib"
for program in llm-batch tests/gpu_tests tools/bench_engine tools/bench_kernels_cuda tools/bench_collectives_cuda; do
  strip -o "$bundle/$(basename $program)" "$build/$program"
done
# Everything but the C library, the driver's and CUDA's own.
ldd "$bundle"/llm-batch "$bundle"/gpu_tests "$bundle"/bench_* |
  awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  grep -v -E '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcuda|libcublas|libcublasLt)\.so' |
  while read -r library; do cp -L "$library" "$bundle/lib/"; done
du -sh "$bundle"
