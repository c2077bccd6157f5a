// Settings that were found to be the fastest for a model on a machine, kept in a file beside its packed weights. They
// change no byte of an answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend/make_backend.h"
#include "base/file_ops.h"
#include "base/status.h"
#include "job/job_options.h"

namespace llmb {

struct TunedSettings {
  int32_t max_num_seqs = 0, max_num_batched_tokens = 0, block_size = 0, num_threads = 0;
};

TunedSettings settings_of(const JobOptions& options);
void set_settings(const TunedSettings& settings, JobOptions* options);

// Where they lie; "": nowhere, without `weight_cache_dir`. REQUIRES: find_model_dirs().
std::string tuned_settings_path(const JobOptions& options);
// Names the machine that they hold for: the device, and the processor with its cores.
std::string machine_name(const DeviceChoice& device);

// nullopt: there are none that can be read, or another machine's.
std::optional<TunedSettings> read_tuned_settings(const std::string& path, const std::string& machine);
Status write_tuned_settings(const std::string& path, const std::string& machine, const TunedSettings& settings,
                            FileOps& ops);

// Puts those that were kept in the place of all that were not asked for.
void use_tuned_settings(const DeviceChoice& device, JobOptions* options);

}  // namespace llmb
