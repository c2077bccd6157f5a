// How a run ended, as one JSON line on stderr for scripts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace llmb {

struct FinalReport {
  std::string output;
  int64_t done = 0;             // records in the output, of this run and of earlier ones
  int64_t failed = 0;           // of them, error records
  int64_t skipped = 0;          // of them, answered by earlier runs
  std::optional<int64_t> left;  // lines without a record; nullopt: not known
  bool resumable = false;       // running the same command again continues
};

// {"exit_code":130,"done":812,"failed":0,"skipped":0,"left":9188,"resumable":true,"output":"out.jsonl"}
std::string final_report_json(const FinalReport& report, int exit_code);

// "812 done, 9,188 left, run again to continue"
std::string interrupted_message(const FinalReport& report);

}  // namespace llmb
