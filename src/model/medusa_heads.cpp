#include "model/medusa_heads.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/whole_file.h"
#include "model/config_fields.h"
#include "model/weight_reader.h"

namespace llmb {

namespace {

constexpr const char* kFileName = "medusa_lm_head.safetensors";
constexpr int64_t kMaxMedusaHeads = 16, kMaxMedusaBlocks = 16;

Result<Checkpoint> open_checkpoint(const std::string& dir) {
  for (const char* name : {kFileName, "model.safetensors"})
    if (file_exists(dir + "/" + name)) return Checkpoint::open_file(dir, name);
  if (file_exists(dir + "/medusa_lm_head.pt"))
    return unsupported(dir +
                       "/medusa_lm_head.pt is pickled: convert it there with python3 -c 'import torch, "
                       "safetensors.torch as s; s.save_file(torch.load(\"medusa_lm_head.pt\", \"cpu\"), \"" +
                       std::string(kFileName) + "\")'");
  return not_found(dir + ": has no " + kFileName);
}

}  // namespace

Result<MedusaFiles> MedusaFiles::open(const std::string& dir, const ModelConfig& model) {
  LLMB_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(dir));
  MedusaFiles files(dir, model, std::move(checkpoint));
  LLMB_RETURN_IF_ERROR(files.read_config());
  LLMB_RETURN_IF_ERROR(files.check_shapes().with_context(dir));
  return files;
}

Status MedusaFiles::read_config() {
  const std::string path = dir_ + "/config.json";
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxTextFileBytes));
  const Result<nlohmann::json> json = parse_config_object(text);
  if (!json.ok()) return json.status().with_context(path);
  ConfigFields fields(*json);
  num_heads_ = static_cast<int32_t>(fields.integer("medusa_num_heads", std::nullopt, 1, kMaxMedusaHeads));
  num_blocks_ = static_cast<int32_t>(fields.integer("medusa_num_layers", 1, 0, kMaxMedusaBlocks));
  constexpr std::string_view kPrefix = "medusa_head.";
  const std::vector<std::string> names = checkpoint_.names();
  if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(kPrefix); }))
    prefix_ = kPrefix;
  return fields.status().with_context(path);
}

std::string MedusaFiles::name(int32_t head, int32_t part) const {
  return prefix_ + std::to_string(head) + "." + std::to_string(part);
}

Status MedusaFiles::check_shapes() const {
  const std::optional<StoredTensor> first = checkpoint_.find(name(0, num_blocks_) + ".weight");
  const std::vector<int64_t> wanted = {model_.vocab_size, model_.hidden_size};
  if (first && first->shape.size() == 2 && first->shape[1] != wanted[1])
    return invalid_argument("its heads take hidden states of " + std::to_string(first->shape[1]) +
                            ", the model's have " + std::to_string(wanted[1]));
  if (first && first->shape.size() == 2 && first->shape[0] != wanted[0])
    return invalid_argument("its heads' vocabulary has " + std::to_string(first->shape[0]) + " tokens, the model's " +
                            std::to_string(wanted[0]));
  const int64_t hidden = model_.hidden_size;
  for (int32_t head = 0; head < num_heads_; ++head) {
    for (int32_t block = 0; block < num_blocks_; ++block) {
      const std::string linear = name(head, block) + ".linear";
      LLMB_RETURN_IF_ERROR(checkpoint_.tensor(linear + ".weight", std::vector<int64_t>{hidden, hidden}).status());
      LLMB_RETURN_IF_ERROR(checkpoint_.tensor(linear + ".bias", std::vector<int64_t>{hidden}).status());
    }
    LLMB_RETURN_IF_ERROR(checkpoint_.tensor(name(head, num_blocks_) + ".weight", wanted).status());
  }
  return {};
}

Result<std::vector<MedusaHead>> MedusaFiles::load(WeightMaker& maker, const Range& vocab) const {
  const auto tensor = [&](const std::string& name, std::initializer_list<int64_t> shape) {
    return *checkpoint_.tensor(name, std::span(shape));  // it was there in this shape
  };
  const int64_t hidden = model_.hidden_size;
  std::vector<MedusaHead> heads(num_heads_);
  for (int32_t i = 0; i < num_heads_; ++i) {
    for (int32_t block = 0; block < num_blocks_; ++block) {
      const std::string linear = name(i, block) + ".linear";
      const TensorView weight = tensor(linear + ".weight", {hidden, hidden}), bias = tensor(linear + ".bias", {hidden});
      heads[i].blocks.push_back(maker.make_linear({&weight, 1}, {&bias, 1}, WeightRole::kProjection));
    }
    const TensorView all_rows = tensor(name(i, num_blocks_) + ".weight", {model_.vocab_size, hidden});
    const TensorView lm_head = slice_rows(all_rows, vocab.begin, vocab.count());
    heads[i].lm_head = maker.make_linear({&lm_head, 1}, {}, WeightRole::kVocabulary);
  }
  for (const MappedFile& file : checkpoint_.files()) LLMB_RETURN_IF_ERROR(file.still_readable());
  return heads;
}

MedusaHeads::MedusaHeads(const ModelConfig& model, std::vector<MedusaHead> heads, Ops& ops, int64_t max_rows)
    : heads_(std::move(heads)), ops_(ops) {
  const int64_t hidden = model.hidden_size;
  for (auto* buffer : {&hidden_, &gathered_, &x_, &linear_, &delta_})
    *buffer = ops.allocate(max_rows, hidden, ops.activation_dtype());
  for (auto* buffer : {&zeros_, &sum_}) *buffer = ops.allocate(max_rows, hidden, DType::kF32);
}

void MedusaHeads::forward(int64_t rows_per_head, int64_t num_samples, Rows logits, int64_t max_logit_rows) {
  LLMB_CHECK(num_samples <= rows_per_head * static_cast<int64_t>(heads_.size()));
  ops_.gather_sample_rows(hidden_->rows(), rows_per_head, gathered_->rows());
  for (int64_t begin = 0; begin < num_samples; begin += rows_per_head) {
    const MedusaHead& head = heads_[begin / rows_per_head];
    run_head(head, rows_per_head);
    for (int64_t first = 0; first < rows_per_head; first += max_logit_rows) {
      const int64_t rows = std::min(max_logit_rows, rows_per_head - first);
      ops_.linear(*head.lm_head, x_->rows().from(first), rows, logits);
      ops_.sample(logits, begin + first, rows);
    }
  }
}

// gathered_ -> x_
void MedusaHeads::run_head(const MedusaHead& head, int64_t rows) {
  const Rows sum = sum_->rows(), x = x_->rows();
  ops_.gather_sample_rows(zeros_->rows(), rows, sum);
  ops_.add(sum, gathered_->rows(), 1, rows, x);
  const ActivationSpec silu{.kind = Activation::kSilu, .gated = false};
  for (const auto& block : head.blocks) {
    ops_.linear_activate(*block, silu, x, rows, linear_->rows(), delta_->rows());
    ops_.add(sum, delta_->rows(), 1, rows, x);
  }
}

}  // namespace llmb
