#include "inspect/model_inspector.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "chat/chat_template.h"
#include "core/kv_layout.h"
#include "formats/gguf_file.h"
#include "formats/safetensors.h"
#include "inspect/config_lines.h"
#include "model/config_loader.h"
#include "model/gguf_model.h"
#include "model/lora_adapter.h"
#include "model/model_weights.h"
#include "model/quantization_config.h"
#include "model/weight_files.h"
#include "tokenizer/tokenizer.h"

namespace llmb {
namespace {

struct TensorLine {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

class Inspector {
 public:
  Inspector(std::string path, std::vector<uint64_t> memory, bool list_tensors, std::vector<std::string> adapters)
      : path_(std::move(path)),
        memory_(std::move(memory)),
        list_tensors_(list_tensors),
        adapters_(std::move(adapters)) {}

  bool run() {
    const Result<ModelConfig> config = load_model_config(path_);
    if (config.ok()) print_config(path_, *config);
    else refuse("model", config.status());
    std::optional<Result<WeightFiles>> files;
    if (config.ok()) files.emplace(open_weights(*config));
    stays_packed_ = files && files->ok() && (*files)->stays_packed();
    if (config.ok()) {
      gpu_dtype_ = config->gpu_dtype();
      const auto on_gpu = stays_packed_on_gpu(path_, *config, gpu_dtype_, Quantization::kNone);
      if (on_gpu.ok()) on_gpu_ = *on_gpu;
      stays_sparse_on_gpu_ = on_gpu_.method == StoredMethod::kSparse24;
    }
    if (files && files->ok()) print_mtp(*config);
    print_tensors();
    if (files && !files->ok()) refuse("weights", files->status());
    print_tokenizer(config.ok() ? config->vocab_size : 0);
    print_generation(config.ok() ? &*config : nullptr);
    print_template();
    if (config.ok()) print_kv(*config);
    for (const std::string& dir : adapters_)
      if (config.ok()) print_adapter(dir, *config);
    for (const std::string& line : refused_) std::printf("REFUSED       %s\n", line.c_str());
    if (refused_.empty()) std::printf("runs          yes\n");
    return refused_.empty();
  }

 private:
  void refuse(const char* part, const Status& status) {
    refused_.push_back(escape_control(std::string(part) + ": " + status.message()));
  }

  // A model that gives vectors or scores alone need not have a head.
  Result<WeightFiles> open_weights(ModelConfig config) const {
    Result<WeightFiles> files = WeightFiles::open(path_, config);
    if (files.ok() || tasks_of_texts(path_, config).empty()) return files;
    config.tie_word_embeddings = true, config.tied_unless_stored = false;
    Result<WeightFiles> without_head = WeightFiles::open(path_, config);
    if (!without_head.ok()) return files;
    std::printf("note          has no head: it gives vectors or scores, no answers\n");
    return without_head;
  }

  void print_mtp(ModelConfig config) const {
    if (!config.mtp.is_known) return;
    config.mtp.is_used = true;
    if (WeightFiles::open(path_, config).ok())
      std::printf("drafts        layer %d predicts further tokens (--speculative mtp)\n", config.num_hidden_layers);
  }

  // From the headers, also of a model that is refused.
  std::vector<TensorLine> read_tensors() {
    std::vector<TensorLine> lines;
    if (is_gguf_path(path_)) {
      const auto file = GgufFile::open(path_);
      if (!file.ok()) return lines;  // said with the config
      for (const GgufTensor& t : file->tensors())
        lines.push_back({std::string(t.name), t.type->name, t.shape, static_cast<int64_t>(t.data.size())});
      return lines;
    }
    const auto checkpoint = Checkpoint::open(path_);
    if (!checkpoint.ok()) {
      if (!refused_.empty()) refuse("weights", checkpoint.status());  // else it is said when they are opened
      return lines;
    }
    for (const std::string& name : checkpoint->names()) {
      const auto stored = *checkpoint->find(name);
      lines.push_back({name, std::string(stored.dtype), {stored.shape.begin(), stored.shape.end()}, stored.bytes});
    }
    return lines;
  }

  void print_tensors() {
    const std::vector<TensorLine> lines = read_tensors();
    if (lines.empty()) return;
    std::map<std::string, std::pair<int64_t, int64_t>> by_dtype;  // count, bytes
    int64_t total = 0;
    for (const TensorLine& line : lines) {
      by_dtype[line.dtype].first++;
      by_dtype[line.dtype].second += line.bytes;
      total += line.bytes;
    }
    std::printf("tensors       %zu, %.1f MiB", lines.size(), static_cast<double>(total) / 1048576);
    for (const auto& [dtype, count] : by_dtype)
      std::printf("%s %s %lld (%.1f MiB)", dtype == by_dtype.begin()->first ? ":" : ",", dtype.c_str(),
                  static_cast<long long>(count.first), static_cast<double>(count.second) / 1048576);
    std::printf("\n");
    stored_bytes_ = total;
    std::map<std::string, std::string> dtypes;
    for (const TensorLine& line : lines) dtypes[line.name] = line.dtype;
    all_stay_on_gpu_ = on_gpu_.method != StoredMethod::kNumbers;
    for (const TensorLine& line : lines) {
      bool on_gpu = false;
      const std::string text = becomes(line, dtypes, &on_gpu);
      all_stay_on_gpu_ &= text.empty() || on_gpu || stays_sparse_on_gpu_;
      if (list_tensors_)
        std::printf("  %-60s %-8s %-16s %s\n", escape_control(line.name).c_str(), line.dtype.c_str(),
                    shape_string(line.shape).c_str(), text.c_str());
    }
  }

  // Whether a GPU keeps the integers of a matrix: their groups are of multiples of 32 columns, which may lie anywhere,
  // and their scales have its dtype. Those of MXFP4 have no scales of that kind.
  bool stays_on_gpu(const TensorLine& codes, const std::string& scale_dtype) const {
    const StoredMethod method = on_gpu_.method;
    if (method == StoredMethod::kNumbers || method == StoredMethod::kMxfp4 || codes.shape.size() != 2) return false;
    const int64_t per_word = 32 / on_gpu_.bits;
    const int64_t cols = method == StoredMethod::kGptq  ? codes.shape[0] * per_word
                         : method == StoredMethod::kAwq ? codes.shape[0]
                         : codes.dtype == "I8"          ? codes.shape[1]
                                                        : codes.shape[1] * per_word;
    const bool is_its_dtype = scale_dtype == (gpu_dtype_ == DType::kF16 ? "F16" : "BF16");
    return is_its_dtype && cols % 32 == 0 && on_gpu_.group_size % 32 == 0;
  }

  // Tensors of few bits: what becomes of them when they are loaded, and whether a GPU keeps them.
  std::string becomes(const TensorLine& line, const std::map<std::string, std::string>& dtypes, bool* on_gpu) const {
    if (is_gguf_path(path_)) {
      if (find_block_format(line.dtype) == BlockFormat::kNone) return "";
      return line.shape.size() < 2 ? "becomes float32" : "stays on a CPU, becomes bfloat16 on a GPU";
    }
    const auto end_of = [&](const std::string& suffix, const std::string& scale) {
      if (!line.name.ends_with(suffix)) return std::string();
      const auto found = dtypes.find(line.name.substr(0, line.name.size() - suffix.size()) + scale);
      if (found == dtypes.end()) return std::string();
      const std::string dtype = found->second == "F8_E4M3" ? "BF16" : found->second;  // of NVFP4's scales
      if (!stays_packed_ || dtype == "F32") return "becomes " + dtype;
      *on_gpu = stays_on_gpu(line, dtype);
      if (*on_gpu)
        return dtype == "BF16" ? "stays on a GPU, and on a CPU that multiplies in float32, else becomes BF16"
                               : std::string("stays on a CPU and on a GPU");
      return dtype == "BF16" ? "stays on a CPU that multiplies in float32, else becomes BF16"
                             : "stays on a CPU, becomes " + dtype + " on a GPU";
    };
    std::string out = end_of(".qweight", ".scales");
    if (out.empty()) out = end_of(".weight_packed", ".weight_scale");
    if (out.empty() && line.dtype == "I8") out = end_of(".weight", ".weight_scale");
    *on_gpu |= line.dtype == "U8" && line.name.ends_with("_proj_blocks");
    if (line.dtype == "U8" && line.name.ends_with("_proj_blocks"))
      out = "stays on a GPU, and on a CPU that multiplies in float32, else becomes BF16";
    if (line.name.ends_with(".compressed")) {
      // Blocks are of 32 numbers, half of which are here; an LM head is numbers on a GPU.
      const bool has_blocks = line.shape.back() % 16 == 0 && line.dtype != "F32";
      const bool is_on_gpu = stays_sparse_on_gpu_ && !line.name.ends_with("lm_head.compressed");
      out = (has_blocks ? std::string(is_on_gpu ? "stays on a GPU, and " : "stays ") +
                              "on a CPU that multiplies in float32, else becomes dense "
                        : std::string("becomes dense ")) +
            line.dtype;
    }
    const bool is_other = line.dtype == "F8_E4M3" || line.dtype == "I8" || line.dtype == "U8";
    if (out.empty() && is_other && line.name.ends_with(".weight"))
      out = stays_packed_ ? "stays on a CPU that multiplies in float32, else becomes the model's dtype"
                          : "becomes the model's dtype";
    return out;
  }

  // "<|im_end|> 151645, …": what ends an answer.
  std::string describe_ends(std::vector<TokenId> ids) const {
    if (tokenizer_ && tokenizer_->eos_token_id() &&
        std::count(ids.begin(), ids.end(), *tokenizer_->eos_token_id()) == 0)
      ids.push_back(*tokenizer_->eos_token_id());
    std::string ends;
    for (const TokenId id : ids) {
      const std::string piece = tokenizer_ ? escape_control(tokenizer_->token_piece(id)) + " " : "";
      ends += (ends.empty() ? "" : ", ") + piece + std::to_string(id);
    }
    return ends.empty() ? "max-tokens only" : ends;
  }

  void print_generation(const ModelConfig* config) {
    const auto generation = load_generation_config(path_);
    if (!generation.ok()) return refuse("generation_config.json", generation.status());
    std::string out;
    const auto add = [&](const char* name, const auto& value) {
      if (value) out += std::string(out.empty() ? "" : ", ") + name + " " + (CLI::detail::to_string(*value));
    };
    if (generation->do_sample == false) out = "greedy";
    add("temperature", generation->temperature);
    add("top_p", generation->top_p);
    add("top_k", generation->top_k);
    add("min_p", generation->min_p);
    add("repetition_penalty", generation->repetition_penalty);
    add("max_new_tokens", generation->max_new_tokens);
    const std::vector<TokenId> ids = merge_eos_token_ids(config != nullptr ? *config : ModelConfig(), *generation);
    std::printf("sampling      %s; ends at %s\n", out.empty() ? "no defaults" : out.c_str(),
                describe_ends(ids).c_str());
  }

  void print_tokenizer(int32_t vocab_size) {
    auto tokenizer = Tokenizer::load(path_);
    if (!tokenizer.ok()) return refuse("tokenizer", tokenizer.status());
    tokenizer_ = std::move(*tokenizer);
    const Tokenizer& t = *tokenizer_;
    std::printf("tokenizer     %s, %d tokens, bos \"%s\", eos \"%s\"\n", t.kind().c_str(), t.vocab_size(),
                escape_control(t.bos_token()).c_str(), escape_control(t.eos_token()).c_str());
    if (vocab_size > 0 && t.vocab_size() > vocab_size)
      std::printf(
          "note          the tokenizer has %d tokens, the model %d: a prompt with one of the others is an error "
          "record\n",
          t.vocab_size(), vocab_size);
  }

  void print_template() {
    const auto chat = ChatTemplate::load(path_);
    if (!chat.ok() && chat.status().code() == StatusCode::kNotFound) {
      std::printf("template      none: lines with messages are error records\n");
      return;
    }
    if (!chat.ok()) return refuse("chat template", chat.status());
    const ChatTemplateSummary summary = (*chat)->summary();
    static const std::set<std::string> kUsual = {"messages",
                                                 "add_generation_prompt",
                                                 "bos_token",
                                                 "eos_token",
                                                 "raise_exception",
                                                 "namespace",
                                                 "strftime_now",
                                                 "range",
                                                 "dict",
                                                 "tools",
                                                 "documents",
                                                 "pad_token",
                                                 "unk_token"};
    std::string own;
    for (const std::string& name : summary.variables)
      if (!kUsual.contains(name)) own += (own.empty() ? "" : ", ") + name;
    const bool has_tools =
        summary.has_tool_template || std::count(summary.variables.begin(), summary.variables.end(), "tools") > 0;
    std::printf("template      tools: %s; text parts: %s; chat_template_kwargs: %s\n", has_tools ? "yes" : "no",
                summary.reads_text_parts ? "read" : "joined", own.empty() ? "none" : own.c_str());
    for (const std::string& name : summary.unknown_names)
      std::printf(
          "note          the template uses \"%s\", which there is not: a line that gets there is an error record\n",
          name.c_str());
  }

  void print_kv(const ModelConfig& c) const {
    const int64_t weights = stored_weight_bytes(c);
    const bool stays_blocks = stays_packed_, is_gguf = is_gguf_path(path_);
    // Blocks of GGUF and sparse numbers as they are, integers with the scales of their groups repeated.
    const int64_t packed_bytes = is_gguf || stays_sparse_on_gpu_ ? stored_bytes_ : stored_bytes_ * 6 / 5;
    if (all_stay_on_gpu_)
      std::printf("note          %s stay as they are on a GPU, and on a CPU that multiplies in float32\n",
                  stays_sparse_on_gpu_ ? "2:4 sparse weights" : "weights of few bits");
    else if (weights > stored_bytes_ + stored_bytes_ / 4 && stored_bytes_ > 0)
      std::printf(
          "note          weights of few bits %sbecome %s when they are loaded: %.1f times the file's size\n",
          stays_blocks ? "stay as they are on a CPU; on a GPU they " : "",
          dtype_name(stays_blocks ? c.gpu_dtype() : c.dtype),
          static_cast<double>(stays_blocks ? weights / dtype_bytes(c.dtype) * dtype_bytes(c.gpu_dtype()) : weights) /
              static_cast<double>(stored_bytes_));
    if (stays_blocks && is_gguf)
      std::printf(
          "note          on a CPU, --gguf-activations int8 rounds what meets these weights: faster, other answers\n");
    std::vector<DType> dtypes = {DType::kF32};
    if (c.gpu_dtype() != DType::kF32) dtypes.push_back(c.gpu_dtype());
    for (const DType dtype : dtypes) {
      const KvLayout kv = make_kv_layout(c, 16, dtype, group_layers(c, 0));
      const int64_t numbers = dtype == DType::kF32 ? weights : weights / dtype_bytes(c.dtype) * dtype_bytes(dtype);
      const bool is_held_packed = dtype == DType::kF32 ? stays_blocks : all_stay_on_gpu_;
      const int64_t held = is_held_packed ? packed_bytes : numbers;
      std::printf("KV cache      %s: %lld bytes a token, weights %.1f MiB\n", dtype_name(dtype),
                  static_cast<long long>(kv.bytes_per_token()), static_cast<double>(held) / 1048576);
      for (const uint64_t memory : memory_) {
        const int64_t left = static_cast<int64_t>(std::min<uint64_t>(memory, uint64_t{1} << 60)) - held;
        const int64_t tokens = left <= 0 ? 0 : left / kv.bytes_per_block() * kv.block_size;
        std::printf("  in %.1f GiB  %lld tokens, %.2f sequences of %d\n", static_cast<double>(memory) / (1 << 30),
                    static_cast<long long>(tokens), static_cast<double>(tokens) / c.max_position_embeddings,
                    c.max_position_embeddings);
      }
    }
  }

  void print_adapter(const std::string& dir, const ModelConfig& config) {
    const Result<LoraAdapter> adapter = LoraAdapter::open(dir, config);
    const Status status = adapter.ok() ? adapter->check_values() : adapter.status();
    if (!status.ok()) return refuse("adapter", status);
    std::printf("adapter       %s: LoRA of rank %lld at most, %lld modules, %lld parameters\n",
                escape_control(dir).c_str(), static_cast<long long>(adapter->max_rank()),
                static_cast<long long>(adapter->num_modules()), static_cast<long long>(adapter->num_parameters()));
  }

  const std::string path_;
  const std::vector<uint64_t> memory_;
  const bool list_tensors_;
  const std::vector<std::string> adapters_;
  int64_t stored_bytes_ = 0;
  bool stays_packed_ = false;         // on a CPU, of the matrices of few bits
  StoredQuantization on_gpu_;         // of those that a GPU may keep
  bool stays_sparse_on_gpu_ = false;  // of 2:4 sparse matrices
  DType gpu_dtype_ = DType::kBF16;
  bool all_stay_on_gpu_ = false;
  std::unique_ptr<Tokenizer> tokenizer_;  // null where it is refused
  std::vector<std::string> refused_;
};

}  // namespace

bool inspect_model(ModelInspection inspection) {
  return Inspector(std::move(inspection.path), std::move(inspection.memory), inspection.list_tensors,
                   std::move(inspection.adapters))
      .run();
}

}  // namespace llmb
