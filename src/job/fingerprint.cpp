#include "job/fingerprint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/content_hash.h"
#include "base/durable_file.h"
#include "base/file_ops.h"
#include "base/thread_pool.h"
#include "base/whole_file.h"
#include "cli/signals.h"
#include "io/json_writer.h"

namespace llmb {

namespace {

// A setting's value as JSON text.
template <typename Write>
std::string json_text(Write write) {
  std::string text;
  JsonWriter json(text);
  write(json);
  return text;
}

class SettingsList {
 public:
  void number(const char* name, double value) {
    add(name, json_text([&](JsonWriter& j) { j.single(static_cast<float>(value)); }));
  }
  void integer(const char* name, int64_t value) { add(name, std::to_string(value)); }
  void flag(const char* name, bool value) { add(name, value ? "true" : "false"); }
  void text(const char* name, const std::string& value) {
    add(name, json_text([&](JsonWriter& j) { j.string(value); }));
  }
  template <typename T>
  void optional(const char* name, const std::optional<T>& value) {
    add(name, value ? std::to_string(*value) : "unset");
  }
  template <typename List, typename Write>
  void list(const char* name, const List& values, Write write) {
    add(name, json_text([&](JsonWriter& j) {
          j.begin_array();
          for (const auto& value : values) write(j, value);
          j.end_array();
        }));
  }
  void add(const char* name, std::string value) { settings.emplace_back(name, std::move(value)); }

  std::vector<std::pair<std::string, std::string>> settings;
};

void add_sampling(const GenerationParams& params, SettingsList* out) {
  const SamplingParams& s = params.sampling;
  out->number("temperature", s.temperature);
  out->number("top_p", s.top_p);
  out->integer("top_k", s.top_k);
  out->number("min_p", s.min_p);
  out->number("repetition_penalty", s.repetition_penalty);
  out->number("presence_penalty", s.presence_penalty);
  out->number("frequency_penalty", s.frequency_penalty);
  out->list("logit_bias", s.logit_bias, [](JsonWriter& j, const auto& bias) {
    j.begin_array();
    j.integer(bias.first);
    j.single(bias.second);
    j.end_array();
  });
  out->optional("logprobs", s.num_logprobs);
  out->optional("max_tokens", params.stop.max_tokens);
  out->integer("min_tokens", params.stop.min_tokens);
  out->list("stop", params.stop.stop, [](JsonWriter& j, const std::string& stop) { j.string(stop); });
  out->list("stop_token_ids", params.stop.stop_token_ids, [](JsonWriter& j, TokenId token) { j.integer(token); });
  out->text("truncate", params.prompt.truncate ? truncate_side_name(*params.prompt.truncate) : "no");
  out->flag("ignore_eos", params.stop.ignore_eos);
  out->flag("include_stop_str_in_output", params.stop.include_stop_str_in_output);
  out->flag("skip_special_tokens", params.output.skip_special_tokens);
  out->flag("return_token_ids", params.output.return_token_ids);
}

bool is_stopped(const std::atomic<bool>* stop) {
  return interrupt_count() > 0 || (stop != nullptr && stop->load(std::memory_order_relaxed));
}

Result<uint64_t> hash_file(int fd, const std::string& path, const std::atomic<bool>* stop) {
  ContentHash hash;
  std::vector<char> buffer(256 << 10);  // stays in the cache of a core
  while (true) {
    if (is_stopped(stop)) return cancelled("interrupted");
    const auto count = uninterrupted([&] { return real_file_ops().read(fd, buffer.data(), buffer.size()); });
    if (count < 0) return io_error(path + ": cannot read: " + std::strerror(errno));
    if (count == 0) return hash.digest();
    hash.update({buffer.data(), static_cast<size_t>(count)});
  }
}

// Reads it, or believes what an earlier run found, where it is large and its times tell of any change.
Result<FileFingerprint> fingerprint_file(const ModelFile& file, const Fingerprint* recorded,
                                         const std::atomic<bool>* stop) {
  constexpr int64_t kSmallBytes = 16 << 20;  // some milliseconds
  struct stat st {};
  const Result<Descriptor> opened = open_regular_file(file.path, &st);
  if (!opened.ok()) return opened.status();
  FileFingerprint found = {file.name, identity_of(st), 0};
  const Status changed = data_loss(file.path + ": changed while the model was loaded; run again");
  if (found.identity != file.identity) return changed;
  const ChangeTimes times = change_times_of(opened->get());
  if (is_young(found.identity, times)) found.identity.mtime_ns = 0;
  if (recorded != nullptr && st.st_size > kSmallBytes && times != ChangeTimes::kUnknown)
    for (const FileFingerprint& known : recorded->files)
      if (found.same_identity(known)) return known;
  const Result<uint64_t> hash = hash_file(opened->get(), file.path, stop);
  if (!hash.ok()) return hash.status();
  found.content_hash = *hash;
  if (real_file_ops().fstat(opened->get(), &st) != 0 || identity_of(st) != file.identity) return changed;
  return found;
}

// Each file in turn, by whichever thread is free. A core reads and hashes some GB/s, disks and page caches give more.
std::vector<Result<FileFingerprint>> fingerprint_files(const std::vector<const ModelFile*>& files,
                                                       const Fingerprint* recorded, const std::atomic<bool>* stop) {
  std::vector<Result<FileFingerprint>> results(files.size(), FileFingerprint());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < files.size(); i = next++) results[i] = fingerprint_file(*files[i], recorded, stop);
  };
  const int num_helpers = std::clamp(usable_cpu_count() / 2, 1, 4) - 1;
  std::vector<std::future<void>> helpers;
  for (int i = 0; i < num_helpers; ++i) helpers.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& helper : helpers) helper.get();
  return results;
}

std::optional<DType> cpu_dtype(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    if (name == dtype_name(dtype)) return dtype;
  return std::nullopt;
}

}  // namespace

Status follow_recorded(const Fingerprint& recorded, const DeviceChoice& device, Options* options) {
  const auto text = [&](const char* name) {
    for (const auto& [setting, value] : recorded.settings)
      if (setting == name && value.size() >= 2) return value.substr(1, value.size() - 2);  // without quotes
    return std::string();
  };
  if (device.kind != DeviceKind::kCpu || text("device") != device.identity ||
      text("quantization") != quantization_name(options->quantization))
    return {};
  if (options->dtype == "auto" && cpu_dtype(text("dtype"))) options->dtype = text("dtype");
  const std::optional<Arithmetic> arithmetic = arithmetic_by_name(text(kArithmeticName));
  if (options->arithmetic != "auto" || !arithmetic) return {};
  options->arithmetic = arithmetic_name(*arithmetic);
  return check_cpu_arithmetic(*arithmetic);
}

Result<Fingerprint> compute_fingerprint(const Options& o, const ModelFiles& model, const ModelInventory& inventory,
                                        const DeviceChoice& device, const Fingerprint* recorded,
                                        const std::atomic<bool>* stop) {
  SettingsList list;
  list.integer(kAnswersVersionName, kAnswersVersion);
  add_sampling(model.default_params, &list);
  list.add("seed", std::to_string(o.seed));
  list.text("device", device.identity);
  const bool is_gpu = device.kind == DeviceKind::kCuda;
  std::string dtype = o.dtype;
  if (!is_gpu) {
    const auto chosen =
        choose_cpu_arithmetic(model.config, o.quantization, cpu_dtype(o.dtype), arithmetic_by_name(o.arithmetic));
    if (!chosen.ok()) return chosen.status();
    if (dtype == "auto") dtype = dtype_name(chosen->dtype);
    list.text(kArithmeticName, arithmetic_name(chosen->arithmetic));
  }
  if (dtype == "auto") dtype = dtype_name(model.config.gpu_dtype());
  list.text("dtype", dtype);
  list.text("kv_cache_dtype", o.kv_cache_dtype != "auto" ? o.kv_cache_dtype
                              : is_gpu                   ? dtype
                                                         : dtype_name(model.config.cpu_kv_dtype(o.quantization)));
  list.text("quantization", quantization_name(o.quantization));
  list.flag("deterministic", o.deterministic || !is_gpu);
  list.text("load_format", o.load_format);
  list.integer("max_model_len", model.max_model_len);
  list.flag("no_metrics", o.no_metrics);
  Fingerprint fingerprint;
  fingerprint.settings = std::move(list.settings);
  std::vector<const ModelFile*> files;
  for (const ModelFile& file : inventory)
    if (file.identity) files.push_back(&file);
  for (const Result<FileFingerprint>& file : fingerprint_files(files, recorded, stop)) {
    if (!file.ok()) return file.status();
    fingerprint.files.push_back(*file);
  }
  return fingerprint;
}

FingerprintTask::FingerprintTask(const Options& options, const ModelFiles& model, const ModelInventory& inventory,
                                 const DeviceChoice& device)
    : result_(std::async(std::launch::async, [this, &options, &model, &inventory, device] {
        return compute_fingerprint(options, model, inventory, device, nullptr, &stop_);
      })) {}

FingerprintTask::~FingerprintTask() {
  stop_.store(true);
  if (result_.valid()) result_.wait();
}

Result<Fingerprint> FingerprintTask::wait() { return result_.get(); }

}  // namespace llmb
