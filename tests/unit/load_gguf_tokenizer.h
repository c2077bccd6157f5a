// The tokenizer of a GGUF file that a test has put together.
#pragma once

#include <memory>

#include "tests/support/gguf_writer.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tokenizer_fixtures.h"

namespace llmb::test {

inline std::unique_ptr<Tokenizer> load(const GgufWriter& writer) {
  const TempDir dir;
  write_file(dir / "m.gguf", writer.bytes());
  return load_tokenizer(dir / "m.gguf");
}

}  // namespace llmb::test
