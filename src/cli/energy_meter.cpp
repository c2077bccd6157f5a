#include "cli/energy_meter.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace llmb {

namespace {

// nullopt: it cannot be read, or holds no number.
std::optional<int64_t> read_number(const std::string& file) {
  std::ifstream in(file);
  int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

}  // namespace

// By the driver's library, where it is: millijoules since the driver was loaded.
class EnergyMeter::Gpu {
 public:
  explicit Gpu(int index) : source_("NVML GPU " + std::to_string(index)) {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      reason_ = "the driver's library libnvidia-ml.so.1 is not there";
      return;
    }
    const auto init = function<int()>("nvmlInit_v2");
    const auto device_at = function<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
    energy_ = function<int(void*, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
    if (init == nullptr || device_at == nullptr || energy_ == nullptr || init() != 0 ||
        device_at(static_cast<unsigned>(index), &device_) != 0) {
      reason_ = "NVML does not know the device";
      return;
    }
    const auto first = read();
    if (first) first_mj_ = *first;
    else reason_ = "the device has no energy counter";
  }
  ~Gpu() {
    if (library_ == nullptr) return;
    if (const auto shutdown = function<int()>("nvmlShutdown")) shutdown();
    dlclose(library_);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  EnergyReading reading() const {
    if (!reason_.empty()) return {source_, std::nullopt, reason_};
    const auto now = read();
    if (!now) return {source_, std::nullopt, "the device's energy counter could not be read again"};
    return {source_, static_cast<double>(*now - first_mj_) / 1e3, ""};
  }

 private:
  template <typename Signature>
  Signature* function(const char* name) const {
    return reinterpret_cast<Signature*>(dlsym(library_, name));
  }
  std::optional<unsigned long long> read() const {
    unsigned long long millijoules = 0;
    return energy_(device_, &millijoules) == 0 ? std::optional(millijoules) : std::nullopt;
  }

  const std::string source_;
  std::string reason_;
  void* library_ = nullptr;
  void* device_ = nullptr;
  int (*energy_)(void*, unsigned long long*) = nullptr;
  unsigned long long first_mj_ = 0;
};

EnergyMeter::EnergyMeter(std::optional<int> gpu, const std::string& powercap_dir) {
  find_packages(powercap_dir);
  if (gpu) gpu_ = std::make_unique<Gpu>(*gpu);
}

EnergyMeter::~EnergyMeter() = default;

// A package is a zone such as intel-rapl:0 (also on AMD); its parts, such as intel-rapl:0:0, are within.
void EnergyMeter::find_packages(const std::string& powercap_dir) {
  std::error_code error;
  bool has_package = false;
  for (const auto& entry : std::filesystem::directory_iterator(powercap_dir, error)) {
    const std::string dir = entry.path().string();
    std::string name;
    if (!(std::ifstream(dir + "/name") >> name) || !name.starts_with("package")) continue;
    has_package = true;
    const auto now = read_number(dir + "/energy_uj"), range = read_number(dir + "/max_energy_range_uj");
    if (now && range) packages_.push_back({name, dir + "/energy_uj", *range, *now});
  }
  std::sort(packages_.begin(), packages_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  if (error) no_packages_ = "this machine shows no RAPL counters (" + powercap_dir + ")";
  else if (!has_package) no_packages_ = powercap_dir + " has no processor package";
  else no_packages_ = "only root may read the counters in " + powercap_dir;
}

void EnergyMeter::sample() {
  for (Package& package : packages_) {
    const auto now = read_number(package.file);
    if (!now) {
      package.reason = package.file + " could not be read again";
      continue;
    }
    const int64_t used = *now >= package.last_uj ? *now - package.last_uj : *now + package.range_uj - package.last_uj;
    package.joules += static_cast<double>(used) / 1e6;
    package.last_uj = *now;
  }
}

std::vector<EnergyReading> EnergyMeter::readings() const {
  std::vector<EnergyReading> readings;
  for (const Package& package : packages_) {
    const bool is_good = package.reason.empty();
    readings.push_back({"RAPL " + package.name, is_good ? std::optional(package.joules) : std::nullopt, package.reason});
  }
  if (packages_.empty()) readings.push_back({"RAPL", std::nullopt, no_packages_});
  if (gpu_) readings.push_back(gpu_->reading());
  return readings;
}

}  // namespace llmb
