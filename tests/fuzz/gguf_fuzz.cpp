// Any bytes as a GGUF file: refused, or tensors that lie apart inside the file and can be read, a config that the
// loader takes or refuses, weights that can be read where they are complete, and a tokenizer that does as every
// tokenizer does.
#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "chat/chat_template.h"
#include "formats/gguf_file.h"
#include "model/config_loader.h"
#include "model/gguf_dequantise.h"
#include "model/gguf_model.h"
#include "model/model_weights.h"
#include "model/weight_files.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/fuzz_tokenizers.h"
#include "tests/support/temp_dir.h"

namespace {

void check_tensors(const llmb::GgufFile& file, std::string_view input) {
  std::vector<std::pair<size_t, size_t>> ranges;
  for (const llmb::GgufTensor& tensor : file.tensors()) {
    const auto* const begin = reinterpret_cast<const uint8_t*>(input.data());
    LLMB_CHECK(tensor.data.data() >= begin && tensor.data.size() <= input.size());
    const auto at = static_cast<size_t>(tensor.data.data() - begin);
    LLMB_CHECK(at <= input.size() - tensor.data.size());
    ranges.emplace_back(at, at + tensor.data.size());
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
    LLMB_CHECK(static_cast<uint64_t>(rows * (tensor.cols() / tensor.type->block_size)) * tensor.type->block_bytes ==
               tensor.data.size());
    LLMB_CHECK(file.tensor(tensor.name) == &tensor);
    if (!llmb::can_dequantise(*tensor.type)) continue;
    std::vector<float> values(static_cast<size_t>(tensor.cols()));
    llmb::dequantise_row(*tensor.type, tensor.data.data(), tensor.cols(), values.data());
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) LLMB_CHECK(ranges[i - 1].second <= ranges[i].first);
}

// Reads every byte of the weights and keeps none.
class WeightReading final : public llmb::WeightMaker {
 public:
  std::unique_ptr<llmb::LinearWeight> make_linear(std::span<const llmb::TensorView> weights,
                                                  std::span<const llmb::TensorView> biases, llmb::WeightRole) override {
    for (const auto views : {weights, biases})
      for (const llmb::TensorView& view : views) read(view);
    return nullptr;
  }
  std::unique_ptr<llmb::ExpertsWeight> make_experts(std::vector<std::unique_ptr<llmb::LinearWeight>>,
                                                    std::vector<std::unique_ptr<llmb::LinearWeight>>) override {
    return nullptr;
  }
  std::unique_ptr<llmb::DeviceBuffer> make_vector(const llmb::TensorView& values) override {
    read(values);
    return nullptr;
  }

 private:
  void read(const llmb::TensorView& view) {
    const auto* const bytes = static_cast<const uint8_t*>(view.data);
    sum_ = std::accumulate(bytes, bytes + view.rows * view.row_bytes(), sum_);
  }
  uint64_t sum_ = 0;
};

void check_weights(const std::string& path, const llmb::ModelConfig& config) {
  const auto files = llmb::WeightFiles::open(path, config);
  if (!files.ok()) {
    LLMB_CHECK(!files.status().message().empty());
    return;
  }
  llmb::ThreadPool pool(1);
  for (const llmb::WeightForm form : {llmb::WeightForm::kNumbers, llmb::WeightForm::kBlocks}) {
    const auto source = files->make_source(pool, llmb::WeightAccess::kValues, form);
    WeightReading maker;
    const llmb::Status status = llmb::load_model_weights(config, *source, maker).status();
    const auto says = [&](const char* part) { return status.message().find(part) != std::string::npos; };
    LLMB_CHECK(status.ok() || says("scale that is not a finite number") || says("a number that is not below 0"));
  }
}

}  // namespace

LLMB_FUZZ_TARGET(gguf) {
  const auto file = llmb::GgufFile::parse({reinterpret_cast<const uint8_t*>(input.data()), input.size()});
  if (!file.ok()) {
    LLMB_CHECK(!file.status().message().empty());
    return;
  }
  check_tensors(*file, input);
  static const TempDir dir;
  const std::string path = dir / "m.gguf";
  write_or_remove(path, input);
  if (const auto config = llmb::load_model_config(path); config.ok()) check_weights(path, *config);
  else LLMB_CHECK(!config.status().message().empty() && llmb::is_valid_utf8(config.status().message()));
  if (const auto generation = llmb::load_generation_config(path); generation.ok())
    for (const llmb::TokenId id : generation->eos_token_ids) LLMB_CHECK(id >= 0);
  if (const auto chat = llmb::ChatTemplate::load(path); chat.ok()) {
    llmb::ChatMessages messages;
    messages.messages_json = R"([{"role":"user","content":"hi"}])";
    if (const auto text = (*chat)->render(messages); !text.ok()) LLMB_CHECK(!text.status().message().empty());
  }
  check_tokenizer_directory(path);
}
