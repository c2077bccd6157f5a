// Any bytes as a manifest: refused, or what it says is written and read back as the same.
#include "job/run_manifest.h"

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"

LLMB_FUZZ_TARGET(run_manifest) {
  const auto manifest = llmb::parse_manifest(input, "out.jsonl.manifest.json");
  if (!manifest.ok()) {
    LLMB_CHECK(!manifest.status().message().empty());
    return;
  }
  const std::string text = llmb::format_manifest(*manifest);
  const auto again = llmb::parse_manifest(text, "again");
  LLMB_CHECK_MSG(again.ok(), again.status().message());
  LLMB_CHECK(llmb::format_manifest(*again) == text);
  LLMB_CHECK(again->state == manifest->state);
  LLMB_CHECK(llmb::fingerprint_differences(manifest->fingerprint, again->fingerprint).empty());
}
