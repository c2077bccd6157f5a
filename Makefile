# make demo   installs what is missing, builds, runs the main job on the bundled model
# make test   builds and passes all tests
# make help   the other targets

BUILD ?= build
CMAKE_FLAGS ?=
CONFIGURE = cmake -S . -G Ninja -DCMAKE_BUILD_TYPE=Release $(CMAKE_FLAGS)

# The time of each phase goes to $(BUILD)/times.jsonl.
TIMED = tools/timed.sh $(BUILD)

.PHONY: all build demo test test-long test-asan test-tsan test-turn test-arm fuzz coverage crash scale bench measure measure-build gpu-bundle gpu-check gpu-sanitize install package test-packages clean help deps

all: build

# Installs packages only where some are missing.
deps:
	@tools/install_deps.sh

build: deps
	@mkdir -p $(BUILD)
	@$(TIMED) configure $(CONFIGURE) -B $(BUILD) > $(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	@$(TIMED) "build of the program" cmake --build $(BUILD) --target llm-batch

demo: build
	@$(TIMED) demo examples/demo.sh $(BUILD)/llm-batch

# A fixed, seeded share of the long tests; test-long has all of them, for hours.
test: build
	@$(TIMED) "build of the tests" cmake --build $(BUILD)
	@# Three at a time, for two cores: some of them wait.
	@$(TIMED) tests ctest --test-dir $(BUILD) --output-on-failure -j 3
	@sed -n '/^skipped: /p' $(BUILD)/Testing/Temporary/LastTest.log

# Full counts, clean roots, an emulated processor, the host layer's orders, sanitizers: see tools/test_long.sh.
test-long: build
	@CMAKE_FLAGS="$(CMAKE_FLAGS)" tools/test_long.sh $(PARTS)

# The whole suite under AddressSanitizer and UndefinedBehaviorSanitizer, and under ThreadSanitizer.
test-asan: deps
	@$(CONFIGURE) -B build-asan -DLLMB_SANITIZE=address,undefined > /dev/null
	@cmake --build build-asan
	@cd build-asan && ctest --output-on-failure -j 2

test-tsan: deps
	@$(CONFIGURE) -B build-tsan -DLLMB_SANITIZE=thread > /dev/null
	@cmake --build build-tsan
	@# With fixed addresses: it cannot place its memory where a kernel scatters them widely.
	@cd build-tsan && $$(setarch $$(uname -m) -R echo setarch $$(uname -m) -R 2> /dev/null) ctest --output-on-failure -j 2

# As much of one of the two as TURN_SECONDS allow; from commit to commit another part. For CI.
TURN_SECONDS ?= 480
test-turn: deps
	@CMAKE_FLAGS="$(CMAKE_FLAGS)" tools/sanitizer_turn.sh $(TURN_SECONDS) $(TURN)

# Kernels, models and answers on 64-bit ARM, cross-compiled, under qemu; skipped where compiler or qemu cannot be had.
test-arm: build
	@CMAKE_FLAGS="$(CMAKE_FLAGS)" tools/emulated/test_arm.sh $(BUILD)/llm-batch $(PARTS) || [ $$? = 77 ]

# Runs every libFuzzer program under tests/fuzz for FUZZ_SECONDS; what it finds lands in build-fuzz/found.
FUZZ_SECONDS ?= 60
fuzz: deps
	@tools/run_fuzzers.sh build-fuzz $(FUZZ_SECONDS)

# Which lines of the parsers the corpora and the unit tests reach.
coverage: deps
	@tools/coverage.sh build-coverage

# Kills the program CRASH_RUNS times at random; every job must come out as if nothing had happened. Prints its seed, which
# repeats a run: make crash CRASH_FLAGS="--seed 7".
CRASH_RUNS ?= 10000
crash: build
	@cmake --build $(BUILD) --target crash_test
	@$(BUILD)/tools/crash_test --program $(BUILD)/llm-batch --model data/model --runs $(CRASH_RUNS) $(CRASH_FLAGS)

# On a machine with a GPU: device tests, then all GPU benches; the report lands in data/measurements/nvidia-h200.md. The bundle is built
# where it is not there yet; `make gpu-bundle` builds it anew, also on a machine without a GPU, for one that has only that.
GPU_ARCHITECTURE ?= 90a
gpu-bundle: deps
	@tools/gpu_bundle.sh build-gpu $(GPU_ARCHITECTURE)
gpu-check:
	@tools/gpu_check.py --find-gpu
	@[ -x build-gpu/bundle/gpu_tests ] || $(MAKE) gpu-bundle
	@tools/gpu_check.py build-gpu/bundle
# The device tests under compute-sanitizer; slow.
gpu-sanitize:
	@tools/gpu_check.py --find-gpu
	@[ -x build-gpu/bundle/gpu_tests ] || $(MAKE) gpu-bundle
	@tools/gpu_sanitize.py build-gpu/bundle $(GPU_SANITIZE_FLAGS)

# Ten million lines, and lines of gigabytes: memory and time beside their limits.
scale: build
	@cmake --build $(BUILD) --target scale_test
	@$(BUILD)/tools/scale_test --program $(BUILD)/llm-batch --model data/model $(SCALE_FLAGS)

# Benchmarks are programs under $(BUILD)/tools; each prints its limits, a hash of its output and how to repeat it.
bench: build
	@cmake --build $(BUILD) --target tools
	@ls $(BUILD)/tools

# The CPU benches on this machine, which should do nothing else: 30 minutes; the figures land in data/measurements/.
measure: bench
	@tools/measure.py --build $(BUILD)

# make demo and make test from nothing, without a compiler cache; their times by phase land in data/measurements/.
measure-build:
	@rm -rf build-measure
	@CCACHE_DISABLE=1 $(MAKE) --no-print-directory demo test BUILD=build-measure
	@tools/measure.py --build build-measure --only build

install: build
	@cmake --build $(BUILD) --target docs
	@cmake --install $(BUILD)

# A .deb, a tarball and a Python wheel in build-package/packages; then each of them in clean roots (as root, with mmdebstrap).
package: deps
	@CMAKE_FLAGS="$(CMAKE_FLAGS)" tools/package/make_packages.sh build-package
test-packages: package
	@tools/package/test_packages.sh build-package

clean:
	@rm -rf build build-asan build-tsan build-arm build-fuzz build-coverage build-gpu build-package build-measure build-architectures out.jsonl out.jsonl.partial out.jsonl.manifest.json out.metrics.jsonl

help:
	@sed -n '1,3s/^# //p' Makefile
	@echo "make build | test-long | test-asan | test-tsan | test-arm | fuzz | coverage | crash | scale | bench | measure | measure-build | gpu-check | gpu-sanitize | gpu-bundle | install | package | test-packages | clean"
