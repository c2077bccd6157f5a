// Names and values of everything that answers depend on: what a run records in its manifest, and what a later run must
// agree with to continue it. Settings that only change the schedule (batch sizes, threads, order …) are not part of it.
#pragma once

#include "base/status.h"
#include "cli/model_files.h"
#include "cli/options.h"
#include "io/run_manifest.h"

namespace llmb {

// `device`: DeviceChoice::identity. Reads every file of the model whose size, time or inode are not as in `recorded` (may
// be null).
Result<Fingerprint> compute_fingerprint(const Options& options, const ModelFiles& model, const std::string& device,
                                        const Fingerprint* recorded);

}  // namespace llmb
