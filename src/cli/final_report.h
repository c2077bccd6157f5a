// The last words of a run: for people, and as one JSON line on stderr for scripts.
#pragma once

#include <string>
#include <vector>

#include "cli/energy_meter.h"
#include "cli/options.h"
#include "job/job_ending.h"

namespace llmb {

// {"exit_code":130,"done":812,"failed":0,"skipped":0,"left":9188,"resumable":true,"output":"out.jsonl"}
std::string final_report_json(const JobReport& report, const std::string& output, int exit_code);

// "812 done, 9,188 left, run again to continue"
std::string interrupted_message(const JobReport& report);

// Says on stderr how the job ended, with a summary where it computed, appends that to the metrics file and draws the
// report. `energy`: that the computing took.
void print_ending(const JobEnding& ending, const Options& options, const std::vector<EnergyReading>& energy,
                  int exit_code);

}  // namespace llmb
