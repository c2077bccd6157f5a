#include "job/tuned_settings.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "backend/cpu/processor.h"
#include "backend/cpu/weight_cache.h"
#include "job/rank_team.h"
#include "base/durable_file.h"
#include "base/thread_pool.h"
#include "base/whole_file.h"

namespace llmb {

namespace {

bool is_usable(const TunedSettings& s) {
  return s.max_num_seqs >= 1 && s.max_num_seqs <= 65536 && s.max_num_batched_tokens >= 1 &&
         s.max_num_batched_tokens <= 1 << 20 && s.block_size >= 8 && s.block_size <= 128 &&
         (s.block_size & (s.block_size - 1)) == 0 && s.num_threads >= 0 && s.num_threads <= 1024;
}

}  // namespace

TunedSettings settings_of(const JobOptions& o) {
  return {o.scheduler.max_num_seqs, o.scheduler.max_num_batched_tokens, o.load.block_size, o.load.num_threads};
}

void set_settings(const TunedSettings& settings, JobOptions* o) {
  o->scheduler.max_num_seqs = settings.max_num_seqs;
  o->scheduler.max_num_batched_tokens = settings.max_num_batched_tokens;
  o->load.block_size = settings.block_size;
  o->load.num_threads = settings.num_threads;
}

std::string tuned_settings_path(const JobOptions& options) {
  const LoadOptions::Cpu& cpu = options.load.cpu;
  if (cpu.weight_cache_dir.empty()) return "";
  return weight_cache_path(cpu.weight_cache_dir, options.model.model, cpu.quantization) + ".tuned.json";
}

std::string machine_name(const DeviceChoice& device) {
  return device.identity + ", " + std::to_string(usable_cpu_count()) + " cores, " + processor_name();
}

std::optional<TunedSettings> read_tuned_settings(const std::string& path, const std::string& machine) {
  if (path.empty()) return {};
  const Result<std::string> text = read_whole_file(path, size_t{1} << 20);
  if (!text.ok()) return {};
  try {
    const nlohmann::json j = nlohmann::json::parse(*text);
    if (j.at("machine").get<std::string>() != machine) return {};
    const TunedSettings settings = {j.at("max_num_seqs").get<int32_t>(), j.at("max_num_batched_tokens").get<int32_t>(),
                                    j.at("block_size").get<int32_t>(), j.at("threads").get<int32_t>()};
    return is_usable(settings) ? std::optional(settings) : std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

Status write_tuned_settings(const std::string& path, const std::string& machine, const TunedSettings& settings,
                            FileOps& ops) {
  const nlohmann::json j = {{"machine", machine},
                            {"max_num_seqs", settings.max_num_seqs},
                            {"max_num_batched_tokens", settings.max_num_batched_tokens},
                            {"block_size", settings.block_size},
                            {"threads", settings.num_threads}};
  AtomicFileWriter writer(path, path + "." + std::to_string(::getpid()), ops);
  LLMB_RETURN_IF_ERROR(writer.open());
  LLMB_RETURN_IF_ERROR(writer.append(j.dump() + "\n"));
  return writer.commit();
}

void use_tuned_settings(const DeviceChoice& device, JobOptions* options) {
  if (rank_grid(*options).num_ranks() > 1) return;  // found with one process
  const std::optional<TunedSettings> kept = read_tuned_settings(tuned_settings_path(*options), machine_name(device));
  if (!kept) return;
  const AskedSettings& asked = options->asked;
  TunedSettings settings = settings_of(*options);
  if (!asked.max_num_seqs) settings.max_num_seqs = kept->max_num_seqs;
  if (!asked.max_num_batched_tokens) settings.max_num_batched_tokens = kept->max_num_batched_tokens;
  if (!asked.block_size) settings.block_size = kept->block_size;
  if (!asked.num_threads) settings.num_threads = kept->num_threads;
  options->is_tuned = !(asked.max_num_seqs && asked.max_num_batched_tokens && asked.block_size && asked.num_threads);
  set_settings(settings, options);
}

}  // namespace llmb
