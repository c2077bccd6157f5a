// Joules that the machine says a run took: of processor packages by RAPL's counters, of an NVIDIA GPU by NVML's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace llmb {

// One counter, or why there is none.
struct EnergyReading {
  std::string source;            // "RAPL package-0", "NVML GPU 0"
  std::optional<double> joules;  // since the meter began
  std::string reason;            // of absence
};

// Not thread-safe. Counters of packages wrap around, at full load after some minutes: call sample() once a minute at
// least.
class EnergyMeter {
 public:
  // Begins to count. gpu: its number, or none.
  explicit EnergyMeter(std::optional<int> gpu, const std::string& powercap_dir = "/sys/class/powercap");
  ~EnergyMeter();
  EnergyMeter(const EnergyMeter&) = delete;
  EnergyMeter& operator=(const EnergyMeter&) = delete;

  void sample();
  // At least one.
  std::vector<EnergyReading> readings() const;

 private:
  struct Package {
    std::string name, file;
    int64_t range_uj = 0, last_uj = 0;  // the counter's largest value
    double joules = 0;
    std::string reason;  // it cannot be read any more
  };
  class Gpu;

  void find_packages(const std::string& powercap_dir);

  std::vector<Package> packages_;
  std::string no_packages_;  // why there are none
  std::unique_ptr<Gpu> gpu_;
};

}  // namespace llmb
