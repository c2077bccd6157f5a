#include "job/fingerprint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/content_hash.h"
#include "base/directory.h"
#include "base/durable_file.h"
#include "base/file_ops.h"
#include "base/thread_pool.h"
#include "cli/signals.h"
#include "io/json_writer.h"
#include "model/gguf_model.h"

namespace llmb {

namespace {

namespace fs = std::filesystem;

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

// nullopt: there is no such file.
Result<std::optional<FileFingerprint>> fingerprint_file(const std::string& name, const std::string& path,
                                                        const Fingerprint* recorded, const std::atomic<bool>* stop) {
  FileOps& ops = real_file_ops();
  struct stat st {};
  if (ops.stat(path.c_str(), &st) != 0 && errno == ENOENT) return std::optional<FileFingerprint>();
  const int fd = open_retrying(ops, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0 || ops.fstat(fd, &st) != 0) {
    const Status status = io_error(path + ": cannot open: " + std::strerror(errno));
    if (fd >= 0) ops.close(fd);
    return status;
  }
  FileFingerprint file;
  file.name = name;
  file.size = st.st_size;
  file.mtime_ns = mtime_ns(st);
  file.inode = st.st_ino;
  if (is_young(file.mtime_ns)) file.mtime_ns = 0;
  if (recorded != nullptr)
    for (const FileFingerprint& known : recorded->files)
      if (file.same_identity(known)) {
        ops.close(fd);
        file.content_hash = known.content_hash;
        return std::optional(file);
      }
  const Result<uint64_t> hash =
      S_ISREG(st.st_mode) ? hash_file(fd, path, stop) : Result<uint64_t>(io_error(path + ": not a file"));
  ops.close(fd);
  if (!hash.ok()) return hash.status();
  file.content_hash = *hash;
  return std::optional(file);
}

// Names of the files in a directory that end so, in order.
Result<std::vector<std::string>> files_ending_in(const std::string& dir, const std::string& extension) {
  Result<std::vector<std::string>> names = directory_names(dir);
  if (names.ok()) std::erase_if(*names, [&](const std::string& name) { return !name.ends_with(extension); });
  return names;
}

using NamedPaths = std::vector<std::pair<std::string, std::string>>;

// (name in the fingerprint, path), in a fixed order.
Result<NamedPaths> model_file_names(const Options& o) {
  NamedPaths names;
  const auto add = [&](const std::string& role, const std::string& dir, const std::string& name) {
    names.emplace_back(role + "/" + name, dir + "/" + name);
  };
  const auto add_gguf = [&](const std::string& role, const std::string& path) {
    for (const std::string& part : gguf_parts(path))
      names.emplace_back(role + "/" + fs::path(part).filename().string(), part);
  };
  const bool is_gguf = is_gguf_path(o.model_dir);
  if (is_gguf) add_gguf("model", o.model_dir);
  else
    for (const char* name : {"config.json", "generation_config.json"}) add("model", o.model_dir, name);
  if (!is_gguf && o.load_format != "dummy") {
    add("model", o.model_dir, "model.safetensors.index.json");
    const Result<std::vector<std::string>> shards = files_ending_in(o.model_dir, ".safetensors");
    if (!shards.ok()) return shards.status();
    for (const std::string& shard : *shards) add("model", o.model_dir, shard);
  }
  if (!o.chat_template_file.empty()) names.emplace_back("chat-template", o.chat_template_file);
  if (is_gguf_path(o.tokenizer_dir)) {
    if (o.tokenizer_dir != o.model_dir) add_gguf("tokenizer", o.tokenizer_dir);
    return names;
  }
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
        "merges.txt", "encoder.json", "vocab.bpe", "tokenizer.model", "tiktoken.model"})
    add("tokenizer", o.tokenizer_dir, name);
  const Result<std::vector<std::string>> ranks = files_ending_in(o.tokenizer_dir, ".tiktoken");
  if (!ranks.ok()) return ranks.status();
  for (const std::string& name : *ranks) add("tokenizer", o.tokenizer_dir, name);
  if (!o.chat_template_file.empty()) return names;
  for (const char* name : {"chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja"})
    add("tokenizer", o.tokenizer_dir, name);
  return names;
}

using FileResult = Result<std::optional<FileFingerprint>>;

// Each file in turn, by whichever thread is free. A core reads and hashes some GB/s, disks and page caches give more.
std::vector<FileResult> fingerprint_files(const NamedPaths& names, const Fingerprint* recorded,
                                          const std::atomic<bool>* stop) {
  std::vector<FileResult> results(names.size(), std::optional<FileFingerprint>());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < names.size(); i = next++)
      results[i] = fingerprint_file(names[i].first, names[i].second, recorded, stop);
  };
  const int num_helpers = std::clamp(usable_cpu_count() / 2, 1, 4) - 1;
  std::vector<std::future<void>> helpers;
  for (int i = 0; i < num_helpers; ++i) helpers.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& helper : helpers) helper.get();
  return results;
}

}  // namespace

Result<Fingerprint> compute_fingerprint(const Options& o, const ModelFiles& model, const std::string& device,
                                        const Fingerprint* recorded, const std::atomic<bool>* stop) {
  SettingsList list;
  add_sampling(model.default_params, &list);
  list.add("seed", std::to_string(o.seed));
  list.text("device", device);
  const bool is_gpu = device.starts_with("cuda");
  const DType own_dtype = is_gpu ? model.config.gpu_dtype() : cpu_activation_dtype(model.config, o.quantization);
  const std::string dtype = o.dtype != "auto" ? o.dtype : dtype_name(own_dtype);
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
  const Result<NamedPaths> names = model_file_names(o);
  if (!names.ok()) return names.status();
  for (const FileResult& file : fingerprint_files(*names, recorded, stop)) {
    if (!file.ok()) return file.status();
    if (file->has_value()) fingerprint.files.push_back(**file);
  }
  return fingerprint;
}

FingerprintTask::FingerprintTask(const Options& options, const ModelFiles& model, const std::string& device)
    : result_(std::async(std::launch::async, [this, &options, &model, device] {
        return compute_fingerprint(options, model, device, nullptr, &stop_);
      })) {}

FingerprintTask::~FingerprintTask() {
  stop_.store(true);
  if (result_.valid()) result_.wait();
}

Result<Fingerprint> FingerprintTask::wait() { return result_.get(); }

}  // namespace llmb
