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
#include "core/rank_part.h"
#include "io/json_writer.h"
#include "model/classifier.h"
#include "model/quantization_config.h"

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
  if (s.n > 1) out->integer("n", s.n);
  if (s.best_of) out->integer("best_of", *s.best_of);
  if (params.stop.repetition_tokens > 0) out->integer("stop_repetition", params.stop.repetition_tokens);
  constexpr const char* kTasks[] = {"generate", "score", "embed", "classify"};
  if (params.task != Task::kGenerate) out->text("task", kTasks[static_cast<int>(params.task)]);
  if (params.task == Task::kEmbed) out->flag("normalize", params.embed.normalizes);
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

// Under the name of the option that asks for it.
void add_form(const AnswerForm* form, SettingsList* out) {
  if (form == nullptr) return;
  const char* const name = form->field.c_str();
  if (form->choices.empty()) out->text(name, form->text);
  else out->list(name, form->choices, [](JsonWriter& j, const std::string& choice) { j.string(choice); });
}

// Only where there are some: settings of other models are those of versions that did not take answers apart.
void add_formats(const AnswerFormats& formats, SettingsList* out) {
  if (formats.calls != ToolCallFormat::kNone) out->text("tool_call_parser", std::string(name_of(formats.calls)));
  if (formats.reasoning != ReasoningFormat::kNone)
    out->text("reasoning_parser", std::string(name_of(formats.reasoning)));
}

// Only what differs from the last token's state alone, as it was before there were others.
void add_pooling(const std::optional<Pooling>& pooling, SettingsList* out) {
  if (!pooling) return;
  if (pooling->judges_pairs)
    out->list("judge_tokens", pooling->layers[0].rows, [](JsonWriter& j, int32_t token) { j.integer(token); });
  if (!pooling->labels.empty()) return;  // the rest is all in config.json
  if (pooling->kind != PoolingKind::kLast) out->text("pooling", pooling_name(pooling->kind));
  if (!pooling->layers.empty()) out->integer("pooling_layers", static_cast<int64_t>(pooling->layers.size()));
}

// Only those that are set: without any a job's settings are those of a version that did not have them.
void add_data(const DataOptions& data, SettingsList* out) {
  if (data.format) out->text("input_format", input_format_name(*data.format));
  if (!data.prompt_template.empty()) out->text("template", data.prompt_template);
  if (!data.prompt_field.empty()) out->text("prompt_field", data.prompt_field);
  if (data.system) out->text("system", *data.system);
  if (data.keeps_all) out->text("keep", "all");
  else if (!data.kept_fields.empty())
    out->list("keep", data.kept_fields, [](JsonWriter& j, const std::string& name) { j.string(name); });
}

Result<uint64_t> hash_file(int fd, const std::string& path, const KeepGoing& keep_going) {
  ContentHash hash;
  std::vector<char> buffer(256 << 10);  // stays in the cache of a core
  while (true) {
    if (!keep_going()) return cancelled("interrupted");
    const auto count = uninterrupted([&] { return real_file_ops().read(fd, buffer.data(), buffer.size()); });
    if (count < 0) return io_error(path + ": cannot read: " + std::strerror(errno));
    if (count == 0) return hash.digest();
    hash.update({buffer.data(), static_cast<size_t>(count)});
  }
}

// Reads it, or believes what an earlier run found, where it is large and its times tell of any change.
Result<FileFingerprint> fingerprint_file(const ModelFile& file, const Fingerprint* recorded,
                                         const KeepGoing& keep_going) {
  constexpr int64_t kSmallBytes = 16 << 20;  // some milliseconds
  struct stat st {};
  LLMB_ASSIGN_OR_RETURN(const Descriptor opened, open_regular_file(file.path, &st));
  FileFingerprint found = {file.name, identity_of(st), 0};
  const Status changed = data_loss(file.path + ": changed while the model was loaded; run again");
  if (found.identity != file.identity) return changed;
  const ChangeTimes times = change_times_of(opened.get());
  if (is_young(found.identity, times)) found.identity.mtime_ns = 0;
  if (recorded != nullptr && st.st_size > kSmallBytes && times != ChangeTimes::kUnknown)
    for (const FileFingerprint& known : recorded->files)
      if (found.same_identity(known)) return known;
  LLMB_ASSIGN_OR_RETURN(found.content_hash, hash_file(opened.get(), file.path, keep_going));
  if (real_file_ops().fstat(opened.get(), &st) != 0 || identity_of(st) != file.identity) return changed;
  return found;
}

// Each file in turn, by whichever thread is free. A core reads and hashes some GB/s, disks and page caches give more.
std::vector<Result<FileFingerprint>> fingerprint_files(const std::vector<const ModelFile*>& files,
                                                       const Fingerprint* recorded, const KeepGoing& keep_going) {
  std::vector<Result<FileFingerprint>> results(files.size(), FileFingerprint());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < files.size(); i = next++)
      results[i] = fingerprint_file(*files[i], recorded, keep_going);
  };
  const int num_helpers = std::clamp(usable_cpu_count() / 2, 1, 4) - 1;
  std::vector<std::future<void>> helpers;
  for (int i = 0; i < num_helpers; ++i) helpers.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& helper : helpers) helper.get();
  return results;
}

// nullopt: the CPU computes in no such dtype.
std::optional<DType> cpu_dtype(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    if (name == dtype_name(dtype)) return dtype;
  return std::nullopt;
}

// With the values that "auto" stands for here.
Status add_arithmetic(const LoadOptions& load, const std::string& model_dir, int32_t tensor_size, const JobModel& model,
                      SettingsList* out) {
  const ModelConfig& config = model.files.config;
  const Quantization quantization = load.cpu.quantization;
  const bool is_gpu = model.device.kind == DeviceKind::kCuda;
  std::optional<DType> dtype = load.dtype;
  if (!is_gpu) {
    const auto asked = dtype ? cpu_dtype(dtype_name(*dtype)) : std::nullopt;
    LLMB_ASSIGN_OR_RETURN(const auto chosen, choose_cpu_arithmetic(config, quantization, asked, load.cpu.arithmetic));
    if (!dtype) dtype = chosen.dtype;
    out->text(kArithmeticName, arithmetic_name(chosen.arithmetic));
  }
  if (!dtype) dtype = config.gpu_dtype();
  out->text("dtype", dtype_name(*dtype));
  const DType kv_dtype = is_gpu ? *dtype : config.cpu_kv_dtype(quantization);
  out->text("kv_cache_dtype", dtype_name(load.kv_cache_dtype.value_or(kv_dtype)));
  out->text("quantization", quantization_name(quantization));
  if (load.cpu.rounds_block_activations) out->text("gguf_activations", "int8");
  if (is_gpu) {  // sums round otherwise than those of the numbers that codes mean
    LLMB_ASSIGN_OR_RETURN(const auto stored, stays_packed_on_gpu(model_dir, config, *dtype, quantization));
    if (stored.method == StoredMethod::kMxfp4) out->flag("multiplies_mxfp4", true);
    else if (stored.method == StoredMethod::kSparse24) out->flag("multiplies_sparse24", true);
    else if (stored.method != StoredMethod::kNumbers)
      out->flag(stored.bits == 8 ? "multiplies_int8_groups" : "multiplies_int4", true);
  }
  out->flag("deterministic", load.cuda.deterministic || !is_gpu);
  // Ranks' sums round otherwise than one rank's.
  if (tensor_size > 1) out->integer("tensor_parallel_size", tensor_size);
  if (tensor_size > 1) out->integer("tensor_parts", kTensorPartsVersion);
  return {};
}

int64_t answers_version(const JobModel& model) {
  if (model.device.kind == DeviceKind::kCuda) return kGpuAnswersVersion;
  const ModelFiles& files = model.files;
  const bool is_whole = files.config.is_encoder || (files.pooling && files.pooling->needs_whole_text());
  return files.default_params.task == Task::kGenerate || is_whole ? kAnswersVersion : kPromptAnswersVersion;
}

}  // namespace

Status follow_recorded(const Fingerprint& recorded, const DeviceChoice& device, LoadOptions* load) {
  const auto text = [&](const char* name) {
    for (const auto& [setting, value] : recorded.settings)
      if (setting == name && value.size() >= 2) return value.substr(1, value.size() - 2);  // without quotes
    return std::string();
  };
  if (device.kind != DeviceKind::kCpu || text("device") != device.identity ||
      text("quantization") != quantization_name(load->cpu.quantization))
    return {};
  const std::optional<Arithmetic> arithmetic = arithmetic_by_name(text(kArithmeticName));
  // Another one is asked for, which may not go with the recorded dtype: the fingerprints tell the difference.
  if (arithmetic && load->cpu.arithmetic && load->cpu.arithmetic != arithmetic) return {};
  if (!load->dtype) load->dtype = cpu_dtype(text("dtype"));
  if (load->cpu.arithmetic || !arithmetic) return {};
  load->cpu.arithmetic = arithmetic;
  return check_cpu_arithmetic(*arithmetic);
}

Result<Fingerprint> compute_fingerprint(const JobOptions& o, const JobModel& model, const Fingerprint* recorded,
                                        const KeepGoing& keep_going) {
  SettingsList list;
  list.integer(kAnswersVersionName, answers_version(model));
  add_sampling(model.files.default_params, &list);
  list.add("seed", std::to_string(o.seed));
  list.text("device", model.device.identity);
  LLMB_RETURN_IF_ERROR(add_arithmetic(o.load, o.model.model, o.tensor_parallel_size, model, &list));
  list.text("load_format", o.model.load_format == LoadFormat::kDummy ? "dummy" : "auto");
  list.integer("max_model_len", model.files.max_model_len);
  list.flag("no_metrics", o.output.no_metrics);
  if (o.shard) {
    list.add(kShardName, shard_text(*o.shard));
    list.text(kShardByName, shard_by_name(o.shard->by));
  }
  add_data(o.data, &list);
  if (!o.model.default_adapter.empty()) list.text("default_adapter", o.model.default_adapter);
  if (!o.model.adapters.empty() && !o.model.served_names.empty())
    list.list("served_model_name", o.model.served_names,
              [](JsonWriter& j, const std::string& name) { j.string(name); });
  add_pooling(model.files.pooling, &list);
  if (!model.files.text_prompt.empty()) list.text("text_prompt", model.files.text_prompt);
  if (!model.files.named_prompts.empty()) {
    std::vector<std::string> prompts;
    for (const auto& [name, text] : model.files.named_prompts) prompts.push_back(name + "=" + text);
    list.list("named_prompts", prompts, [](JsonWriter& j, const std::string& prompt) { j.string(prompt); });
  }
  if (model.files.default_params.task == Task::kClassify) {
    LLMB_ASSIGN_OR_RETURN(const std::string activation, score_activation(o.model.model));
    if (!activation.empty()) list.text("scores", activation);
  }
  if (const auto& dimensions = model.files.default_params.embed.dimensions) list.integer("dimensions", *dimensions);
  if (o.output.format == OutputFormat::kNpy) list.text(kOutputFormatName, "npy");
  add_form(model.files.default_params.form.get(), &list);
  add_formats(model.files.formats, &list);
  Fingerprint fingerprint;
  fingerprint.settings = std::move(list.settings);
  std::vector<const ModelFile*> files;
  for (const ModelFile& file : model.inventory)
    if (file.identity) files.push_back(&file);
  for (const Result<FileFingerprint>& file : fingerprint_files(files, recorded, keep_going)) {
    LLMB_RETURN_IF_ERROR(file.status());
    fingerprint.files.push_back(*file);
  }
  return fingerprint;
}

FingerprintTask::FingerprintTask(const JobOptions& options, const JobModel& model, KeepGoing keep_going)
    : result_(std::async(std::launch::async, [this, &options, &model, keep_going = std::move(keep_going)] {
        return compute_fingerprint(options, model, nullptr, [&] { return !stop_.load() && keep_going(); });
      })) {}

FingerprintTask::~FingerprintTask() {
  stop_.store(true);
  if (result_.valid()) result_.wait();
}

Result<Fingerprint> FingerprintTask::wait() { return result_.get(); }

}  // namespace llmb
