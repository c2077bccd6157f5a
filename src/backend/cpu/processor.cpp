#include "backend/cpu/processor.h"

#include <fstream>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/arithmetic.h"
#include "kernels/cpu/caches.h"
#include "kernels/cpu/cpu_target.h"
#include "kernels/cpu/machine_limits.h"

namespace llmb {

namespace {

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// The value of the first line of /proc/cpuinfo with this name.
std::string cpuinfo(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name))
      if (const size_t at = line.find(": "); at != std::string::npos) return line.substr(at + 2);
  return "";
}

std::string kib(int64_t bytes) { return std::to_string(bytes >> 10) + " KiB"; }

std::string describe_caches() {
  const cpu::CacheSizes sizes = cpu::cache_sizes();
  const int64_t last = cpu::last_level_cache_bytes();
  return "first level " + kib(sizes.first_level) + " and second " + kib(sizes.second_level) + " for each core" +
         (last > 0 ? ", last " + kib(last) + " in all" : "");
}

std::string describe_target() {
  const std::string all = join(cpu::target_names());
  return cpu::simd_target_name() +
         (cpu::is_target_forced() ? ", as --cpu-target asks, of " : ", the best of ") + all;
}

// Beyond the target.
std::string describe_extensions() {
  const cpu::Extensions& has = cpu::extensions();
  const std::string target = cpu::simd_target_name();
  std::vector<std::string> names;
  if (target == "AVX3" && has.vnni) names.emplace_back("VNNI");
  if (target == "AVX3" && has.bf16_dots) names.emplace_back("BF16");
  if (target == "AVX3" && cpu::has_amx()) names.emplace_back("AMX");
  if (target == "NEON" && has.dotprod) names.emplace_back("dotprod");
  if (target == "NEON" && has.i8mm) names.emplace_back("i8mm");
  if (target == "NEON" && has.bf16_mmla) names.emplace_back("BF16");
  return names.empty() ? "none" : join(names);
}

std::string describe_arithmetic() {
  std::vector<std::string> able;
  for (const Arithmetic a : kAllArithmetic)
    if (cpu::can_compute(a)) able.emplace_back(arithmetic_name(a));
  const Arithmetic over_bf16 = cpu::fastest_arithmetic(true), over_others = cpu::fastest_arithmetic(false);
  return std::string(arithmetic_name(over_others)) +
         (over_bf16 == over_others ? "" : std::string(", over bf16 weights ") + arithmetic_name(over_bf16)) +
         ", the fastest of " + join(able);
}

}  // namespace

std::string processor_name() {
  if (std::string name = cpuinfo("model name"); !name.empty()) return name;
  const std::string part = cpuinfo("CPU part");  // Arm
  return part.empty() ? "" : "Arm, implementer " + cpuinfo("CPU implementer") + ", part " + part;
}

Status force_cpu_target(const std::string& name) {
  if (cpu::force_target(name)) return {};
  return invalid_argument("no such target here: " + name + "; this processor has " + join(cpu::target_names()));
}

std::string describe_processor() {
  const std::string name = processor_name();
  return "processor   " + (name.empty() ? "unknown" : name) + "; usable cores: " + std::to_string(usable_cpu_count()) +
         "\ncaches      " + describe_caches() + "\ntarget      " + describe_target() + "\nextensions  " +
         describe_extensions() + "\narithmetic  " + describe_arithmetic();
}

}  // namespace llmb
