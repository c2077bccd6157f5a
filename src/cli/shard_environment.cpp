#include "cli/shard_environment.h"

#include <charconv>
#include <optional>
#include <string_view>

namespace llmb {

namespace {

std::optional<int64_t> parse(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

Result<int64_t> read(const Environment& environment, const std::string& name) {
  const char* const text = environment(name.c_str());
  const auto value = text ? parse(text) : std::nullopt;
  if (value) return *value;
  return invalid_argument("--shard auto: " + name + (text ? "='" + std::string(text) + "' is no number" : " is not set"));
}

// SLURM_ARRAY_TASK_STEP and _MAX tell an array with gaps, whose tasks have no numbers from 0 to N - 1.
Status check_array(const Environment& environment, int64_t first, int64_t count) {
  if (environment("SLURM_ARRAY_TASK_MAX") == nullptr) return {};
  LLMB_ASSIGN_OR_RETURN(const int64_t last, read(environment, "SLURM_ARRAY_TASK_MAX"));
  if (last - first + 1 == count) return {};
  return invalid_argument("--shard auto: SLURM_ARRAY_TASK_MIN=" + std::to_string(first) +
                          " and SLURM_ARRAY_TASK_MAX=" + std::to_string(last) + " do not fit SLURM_ARRAY_TASK_COUNT=" +
                          std::to_string(count) + ": the array has gaps; say --shard I/N yourself");
}

// nullopt: the source is silent.
Result<std::optional<Shard>> read_source(const Environment& environment, const ShardSource& source) {
  if (environment(source.index.c_str()) == nullptr) return std::optional<Shard>();
  LLMB_ASSIGN_OR_RETURN(int64_t index, read(environment, source.index));
  if (environment(source.count.c_str()) == nullptr)
    return invalid_argument("--shard auto: " + source.index + " is set (" + source.name + "), but " + source.count +
                            " is not; set it to the number of tasks, or say --shard I/N");
  LLMB_ASSIGN_OR_RETURN(const int64_t count, read(environment, source.count));
  if (!source.first.empty() && environment(source.first.c_str()) != nullptr) {
    LLMB_ASSIGN_OR_RETURN(const int64_t first, read(environment, source.first));
    LLMB_RETURN_IF_ERROR(check_array(environment, first, count));
    index -= first;
  }
  if (index < 0 || index >= count || count > kMaxShards)
    return invalid_argument("--shard auto: " + source.index + "=" + environment(source.index.c_str()) + " is no task of " +
                            source.count + "=" + std::to_string(count));
  return std::optional<Shard>({index, count});
}

// Slurm sets the variables of a step also for what mpirun starts in it, and leaves those of the batch script to it.
bool is_silent(const Environment& environment, const ShardSource& source, bool has_rank) {
  return source.index == "SLURM_PROCID" && (has_rank || environment("SLURM_STEP_ID") == nullptr);
}

}  // namespace

const std::vector<ShardSource>& shard_sources() {
  static const std::vector<ShardSource> kSources = {
      {"Slurm array", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"},
      {"Kubernetes Indexed Job", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"},
      {"AWS Batch array", "AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE"},
      {"SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"},
      {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"MPICH, Intel MPI", "PMI_RANK", "PMI_SIZE"},
      {"Slurm step", "SLURM_PROCID", "SLURM_NTASKS"}};
  return kSources;
}

Result<Shard> shard_of_environment(const Environment& environment) {
  std::optional<Shard> found;
  const ShardSource* found_in = nullptr;
  bool has_rank = false;
  for (const ShardSource& source : shard_sources()) {
    if (is_silent(environment, source, has_rank)) continue;
    LLMB_ASSIGN_OR_RETURN(const std::optional<Shard> shard, read_source(environment, source));
    if (!shard) continue;
    has_rank |= source.index == "OMPI_COMM_WORLD_RANK" || source.index == "PMI_RANK";
    if (found && found->count > 1 && shard->count > 1 && *found != *shard)
      return invalid_argument("--shard auto: " + found_in->index + " (" + found_in->name + ") says " +
                              shard_text(*found) + " and " + source.index + " (" + source.name + ") says " +
                              shard_text(*shard) + "; say --shard I/N yourself");
    if (found && shard->count <= found->count) continue;
    found = shard;
    found_in = &source;
  }
  if (found) return *found;
  std::string names;
  for (const ShardSource& source : shard_sources()) names += (names.empty() ? "" : ", ") + source.index;
  return invalid_argument("--shard auto: none of these variables is set: " + names + "; say --shard I/N");
}

}  // namespace llmb
