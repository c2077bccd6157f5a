// GGUF files that are to be refused: naming what is wrong, within two seconds of processor time and 64 MiB beyond the
// file.
#pragma once

#include <doctest/doctest.h>

#include <cstdio>
#include <functional>
#include <string>

#include "model/config_loader.h"
#include "model/weight_files.h"
#include "tests/support/bounded.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

inline constexpr int kRefused = 10, kAccepted = 11, kWrongMessage = 12;

inline void check_refused(const std::string& path, size_t file_bytes, const std::function<Status()>& load,
                          const std::string& part) {
  CAPTURE(path);
  CAPTURE(part);
  const BoundedRun run = run_bounded([&] {
    const Status status = load();
    if (status.ok()) return kAccepted;
    if (status.message().find(part) != std::string::npos) return kRefused;
    std::fprintf(stderr, "message: %s\n", status.message().substr(0, 300).c_str());
    return kWrongMessage;
  });
  CHECK(run.exit_code == kRefused);
  if (memory_figures_count()) CHECK(run.peak_mebibytes <= 64 + static_cast<double>(file_bytes) / (1 << 20));
}

// As a run would: config, then all that it needs of the weights.
inline Status open_model(const std::string& path) {
  const auto config = load_model_config(path);
  if (!config.ok()) return config.status();
  return WeightFiles::open(path, *config).status();
}

inline void check_model_refused(const GgufWriter& writer, const std::string& part) {
  const TempDir dir;
  const std::string bytes = writer.bytes();
  write_file(dir / "m.gguf", bytes);
  check_refused(
      dir / "m.gguf", bytes.size(), [&] { return open_model(dir / "m.gguf"); }, part);
}

}  // namespace llmb::test
