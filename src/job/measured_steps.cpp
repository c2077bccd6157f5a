#include "job/measured_steps.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "backend/cpu/weight_cache.h"
#include "base/durable_file.h"
#include "base/whole_file.h"

namespace llmb {

std::string measured_steps_path(const JobOptions& options) {
  const LoadOptions::Cpu& cpu = options.load.cpu;
  if (cpu.weight_cache_dir.empty()) return "";
  return weight_cache_path(cpu.weight_cache_dir, options.model.model, cpu.quantization) + ".steps.json";
}

std::optional<MeasuredSteps> read_measured_steps(const std::string& path) {
  if (path.empty()) return {};
  const Result<std::string> text = read_whole_file(path, size_t{1} << 20);
  if (!text.ok()) return {};
  try {
    const nlohmann::json j = nlohmann::json::parse(*text);
    MeasuredSteps steps;
    j.at("device").get_to(steps.device);
    j.at("pool_tokens").get_to(steps.pool_tokens);
    j.at("kv_bytes_per_token").get_to(steps.kv_bytes_per_token);
    j.at("deviations").get_to(steps.curve.deviations);
    j.at("wall_share").get_to(steps.curve.wall_share);
    for (const nlohmann::json& point : j.at("steps"))
      steps.curve.points.push_back({point.at("rows").get<int32_t>(), point.at("ms").get<double>(),
                                    point.at("context_tokens").get<double>(), point.at("pairs").get<double>()});
    return steps;
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

Status write_measured_steps(const std::string& path, const MeasuredSteps& steps, FileOps& ops) {
  nlohmann::json j = {{"device", steps.device},
                      {"pool_tokens", steps.pool_tokens},
                      {"kv_bytes_per_token", steps.kv_bytes_per_token},
                      {"deviations", steps.curve.deviations},
                      {"wall_share", steps.curve.wall_share},
                      {"steps", nlohmann::json::array()}};
  for (const StepCost::Point& point : steps.curve.points)
    j["steps"].push_back({{"rows", point.num_rows},
                          {"ms", point.ms},
                          {"context_tokens", point.num_context_tokens},
                          {"pairs", point.num_pairs}});
  AtomicFileWriter writer(path, path + "." + std::to_string(::getpid()), ops);
  LLMB_RETURN_IF_ERROR(writer.open());
  LLMB_RETURN_IF_ERROR(writer.append(j.dump() + "\n"));
  return writer.commit();
}

MeasuredSteps measured_steps(const BackendInfo& backend, const StepCost& cost) {
  return {backend.device, int64_t{backend.kv.num_blocks} * backend.kv.block_size, backend.kv.bytes_per_token(),
          cost.curve()};
}

}  // namespace llmb
