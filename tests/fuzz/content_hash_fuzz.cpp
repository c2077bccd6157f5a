// XXH64 in pieces is XXH64 at once, wherever the bytes are cut.
#include "base/content_hash.h"

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"

LLMB_FUZZ_TARGET(content_hash) {
  if (input.empty()) return;
  const size_t step = 1 + static_cast<uint8_t>(input[0]);
  llmb::ContentHash hash;
  for (size_t at = 0; at < input.size(); at += step) {
    hash.update(input.substr(at, step));
    LLMB_CHECK(hash.digest() == llmb::content_hash(input.substr(0, at + step)));
  }
}
