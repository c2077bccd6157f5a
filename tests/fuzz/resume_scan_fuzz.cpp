// Any bytes as the output that an earlier run left: refused, or records that stand one behind the other from the start,
// each a JSON object, with nothing lost but a torn last line.
#include "io/resume_scan.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/temp_dir.h"

LLMB_FUZZ_TARGET(resume_scan) {
  static const TempDir dir;
  const std::string path = dir / "out.jsonl.partial";
  std::ofstream(path, std::ios::binary) << input;
  std::string joined;
  const auto scan = llmb::scan_records(path, [&](const llmb::RecordSummary& summary, std::string_view record) {
    LLMB_CHECK(summary.index >= 0);
    LLMB_CHECK(record.find('\n') == record.size() - 1);
    LLMB_CHECK(nlohmann::json::parse(record).contains("index"));
    joined += record;
    return llmb::Status();
  });
  LLMB_CHECK(input.starts_with(joined));
  if (!scan.ok()) return;
  LLMB_CHECK(joined.size() == static_cast<size_t>(scan->whole_bytes));
  LLMB_CHECK(static_cast<size_t>(scan->whole_bytes + scan->torn_bytes) == input.size());
  const std::string_view tail = input.substr(joined.size());
  LLMB_CHECK(tail.find('\n') == std::string_view::npos || tail.find('\n') == tail.size() - 1);
}
