#!/bin/bash
# Which lines of the parsers the fuzz corpora and the unit tests reach, by clang's source-based coverage:
#
#   tools/coverage.sh BUILD_DIR
#
# Ends with 1 where less than 90 % of the lines are reached. `llvm-cov-14 show BUILD_DIR/tests/fuzz_replay_test
# -instr-profile=BUILD_DIR/coverage.profdata FILE` shows which.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1

if ! command -v clang++-14 > /dev/null || ! command -v llvm-cov-14 > /dev/null ||
   ! ls /usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.profile-x86_64.a > /dev/null 2>&1; then
  sudo=$([ "$(id -u)" = 0 ] || echo sudo)
  echo "installing: clang-14 libclang-rt-14-dev llvm-14"
  $sudo apt-get update -q > /dev/null
  $sudo apt-get install -y -q clang-14 libclang-rt-14-dev llvm-14 > /dev/null
fi

tests=(fuzz_replay_test)
for source in tests/unit/*_test.cpp; do
  case $(basename "$source") in
    json_*|line_reader_*|request_parser_*|request_fields_*|resume_scan_*|record_order_*|run_manifest_*|\
    completed_lines_*|safetensors_*|config_loader_*|architectures_*|fp8_weights_*|weight_cache_*|*gguf*|\
    hostile_files_*|truncation_*|regex_*|tokenizer_*|detokenizer_*|jinja_*|chat_template_*|chat_lines_*)
      tests+=("unit_$(basename "$source" .cpp)") ;;
  esac
done
parsers=(src/io/{line_reader,byte_source,json_scan,request_parser,request_fields,request_params,field_values}.cpp
         src/io/{chat_messages,resume_scan,run_manifest,manifest_file,completed_lines}.cpp
         src/formats/*.cpp src/backend/cpu/weight_cache.cpp
         src/model/{weight_files,config_loader,config_fields,rope_config}.cpp
         src/model/quantization_config.cpp
         src/model/{architecture*,*gguf*}.cpp
         src/tokenizer/{tokenizer_file,tokenizer_loader,slow_formats,sentencepiece,tiktoken,base64,vocab,added_vocabulary}.cpp
         src/text/regex*.cpp src/tokenizer/{precompiled,normalizer,pre_tokenizer}.cpp
         src/tokenizer/{post_processor,decoder,decoder_steps,detokenizer,gguf_tokenizer}.cpp
         src/chat/*.cpp src/jinja/*.cpp)
ls "${parsers[@]}" > /dev/null  # none is missing

mkdir -p "$build"
CC=clang-14 CXX=clang++-14 cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None -DLLMB_CUDA=OFF \
  -DCMAKE_CXX_FLAGS="-O1 -fprofile-instr-generate -fcoverage-mapping" > "$build/configure.log"
cmake --build "$build" --target "${tests[@]}"
rm -f "$build"/*.profraw
objects=()
for test in "${tests[@]}"; do
  echo "running $test"
  # Limits of time and memory may be missed in a build like this; here only the lines count.
  LLVM_PROFILE_FILE="$build/$test-%p.profraw" "$build/tests/$test" > "$build/$test.log" 2>&1 || echo "  (ends with $?)"
  objects+=(-object "$build/tests/$test")
done
llvm-profdata-14 merge -sparse "$build"/*.profraw -o "$build/coverage.profdata"
rm -f "$build"/*.profraw
llvm-cov-14 report "${objects[@]:1}" -instr-profile="$build/coverage.profdata" "${parsers[@]}" > "$build/coverage.txt"
# Columns: name, regions (3), functions (3), lines, lines missed, share of lines.
awk '/\.cpp/ { printf "%-40s %6d lines %8s\n", $1, $8, $10 }
     /^TOTAL/ { printf "%-40s %6d lines %8s\n", "all parsers", $8, $10; if ($10 + 0 < 90) exit 1 }' "$build/coverage.txt"
