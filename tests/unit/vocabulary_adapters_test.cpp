// Adapters of embeddings and LM heads on the CPU, beside the golden ones of lora_adapter_test: which rows of a product
// they are added to, and what PEFT saves with them.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "backend/cpu/cpu_adapters.h"
#include "tests/support/adapted_models.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

namespace fs = std::filesystem;

const std::string kVocabulary = fixtures() + "adapters/llama-gqa/vocabulary/", kModel = fixtures() + "models/llama-gqa";

// Why an adapter whose weights' file is changed so is refused; "": it is not.
template <typename Change>
std::string refusal(const Change& change, const std::string& model_dir = kModel) {
  const TempDir dir;
  fs::copy_file(kVocabulary + "adapter_config.json", dir.path() + "/adapter_config.json");
  std::ifstream in(kVocabulary + "adapter_model.safetensors", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  change(bytes);
  std::ofstream(dir.path() + "/adapter_model.safetensors", std::ios::binary) << bytes;
  AdapterLibrary library({{"a", dir.path()}}, load_model_config(kModel).value(), model_dir);
  library.check_values();
  return library.prepare(0).message();
}

void rename(std::string& bytes, const std::string& from, const std::string& to) {
  REQUIRE(from.size() == to.size());
  REQUIRE(bytes.find(from) != bytes.npos);
  bytes.replace(bytes.find(from), from.size(), to);
}

TEST_CASE("tables of the vocabulary that PEFT saves with an adapter must be the model's own") {
  CHECK(refusal([](std::string&) {}) == "");
  const std::string other = refusal([](std::string& bytes) {
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    bytes[8 + header + 5] ^= 1;  // a number of lm_head.base_layer.weight, the first tensor
  });
  CHECK(other.find("lm_head.weight is another than the model's") != other.npos);
  const std::string unknown = refusal([](std::string&) {}, "/no/such/model");
  CHECK(unknown.find("cannot be compared") != unknown.npos);
}

TEST_CASE("trained tables, and matrices of the wrong kind for a module, are refused by name") {
  const std::string trained =
      refusal([](std::string& bytes) { rename(bytes, "lm_head.base_layer.weight", "lm_head.original__.weight"); });
  CHECK(trained.find("lm_head.original__.weight") != trained.npos);
  const std::string half = refusal([](std::string& bytes) { rename(bytes, "lora_embedding_A", "lora_embedding_X"); });
  CHECK(half.find("lora_embedding") != half.npos);
  const std::string moved =
      refusal([](std::string& bytes) { rename(bytes, "embed_tokens.base_layer", "embed_tokenz.base_layer"); });
  CHECK(moved.find("embed_tokenz") != moved.npos);
}

TEST_CASE("an LM head's product in parts gets each row's adapter") {
  const ModelConfig config = load_model_config(kModel).value();
  const auto library = std::make_shared<AdapterLibrary>(
      std::vector<AdapterFolder>{{"a", kVocabulary}, {"b", kVocabulary}}, config, kModel);
  CpuAdapters adapters(library, config.num_hidden_layers, 0, int64_t{1} << 30);
  StepPlan plan;
  for (const int32_t adapter : {1, -1, 0, 1}) {
    StepEntry entry;
    entry.adapter = adapter;
    plan.entries.push_back(entry);
    plan.query_start.push_back(static_cast<int32_t>(plan.tokens.size()));
    plan.tokens.push_back(3);
    SampleRow row;
    row.token_row = plan.query_start.back();
    plan.sample_rows.push_back(row);
  }
  plan.query_start.push_back(static_cast<int32_t>(plan.tokens.size()));
  adapters.begin_step(plan);
  ThreadPool pool(1);
  std::vector<float> x(4 * config.hidden_size);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8;
  const auto added = [&](int64_t first, int64_t rows) {
    std::vector<float> out(static_cast<size_t>(rows * config.vocab_size));
    const AdaptedProduct product{config.num_hidden_layers - 1, Projection::kLmHead, RowKind::kSamples, first};
    const auto* const work =
        adapters.shrink(product, x.data() + first * config.hidden_size, config.hidden_size, rows, pool);
    REQUIRE(work != nullptr);
    cpu::lora_expand(*work, 0, rows, 0, config.vocab_size, out.data(), config.vocab_size);
    return out;
  };
  const std::vector<float> whole = added(0, 4);
  std::vector<float> parts = added(0, 1);
  for (const auto& [first, rows] : {std::pair{1, 2}, {3, 1}}) {
    const std::vector<float> part = added(first, rows);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  CHECK(parts == whole);
  const auto row_is_zero = [&](int64_t row) {
    return std::all_of(whole.begin() + row * config.vocab_size, whole.begin() + (row + 1) * config.vocab_size,
                       [](float value) { return value == 0; });
  };
  CHECK(row_is_zero(1));
  for (const int64_t row : {0, 2, 3}) CHECK_FALSE(row_is_zero(row));
}

}  // namespace
}  // namespace llmb::test
