#include "tests/support/source_dir.h"

#include <cstdlib>

namespace llmb::test {

std::string source_dir() {
  const char* const dir = std::getenv("LLMB_SOURCE_DIR");
  return dir != nullptr ? dir : LLMB_SOURCE_DIR;
}

std::string binary_dir() { return LLMB_BINARY_DIR; }

}  // namespace llmb::test
