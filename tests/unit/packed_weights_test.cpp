// Checkpoints of GPTQ, AWQ, compressed-tensors and bitsandbytes (tools/golden/make_golden_quantized.py): every weight
// against the format's own code, whole models against transformers on the dequantised weights, and what is refused.
#include "model/packed_weights.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <set>

#include "model/weight_files.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

namespace fs = std::filesystem;

const std::string kDir = source_dir() + "/data/fixtures/quantized/";

std::vector<std::string> formats() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(kDir)) names.insert(entry.path().filename().string());
  return {names.begin(), names.end()};
}

std::vector<RawTensor> read_raw(const std::string& dir) {
  std::vector<RawTensor> tensors;
  const auto checkpoint = Checkpoint::open(dir);
  REQUIRE(checkpoint.ok());
  for (const std::string& name : checkpoint->names()) {
    const StoredTensor t = *checkpoint->find(name);
    tensors.push_back({name,
                       std::string(t.dtype),
                       {t.shape.begin(), t.shape.end()},
                       std::string(reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes))});
  }
  return tensors;
}

TEST_CASE("every weight is what the format's own code dequantises it to, to the bit") {
  for (const std::string& name : formats()) {
    CAPTURE(name);
    const auto config = load_model_config(kDir + name);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    const auto files = WeightFiles::open(kDir + name, *config);
    REQUIRE_MESSAGE(files.ok(), files.status().message());
    const auto expected = Checkpoint::open_file(kDir + name, "expected.safetensors");
    REQUIRE(expected.ok());
    ThreadPool pool(2);
    const auto source = files->make_source(pool);
    CHECK(expected->num_tensors() == 2);
    for (const std::string& tensor : expected->names()) {
      CAPTURE(tensor);
      const StoredTensor right = *expected->find(tensor);
      const auto view = source->tensor(tensor, right.shape);
      REQUIRE_MESSAGE(view.ok(), view.status().message());
      CHECK(view->dtype == (right.dtype == "BF16" ? DType::kBF16 : DType::kF16));
      CHECK(std::memcmp(view->data, right.data, static_cast<size_t>(right.bytes)) == 0);
    }
  }
  CHECK(formats().size() == 11);
}

TEST_CASE("models answer as transformers does with the dequantised weights") {
  for (const std::string& name : formats()) {
    CAPTURE(name);
    const auto lines = read_json_lines(kDir + name + "/golden.jsonl");
    const auto actual = golden_answers(kDir + name, lines);
    for (size_t i = 0; i < lines.size(); ++i) {
      CHECK(actual[i].tokens == lines[i].at("token_ids").get<std::vector<TokenId>>());
      CHECK(compare(actual[i].logprobs, lines[i].at("logprobs").get<std::vector<double>>(), 0, 3e-5) == "");
    }
  }
}

// The message that the format gives once `change` was applied to the tensor whose name ends so.
std::string refusal(const std::string& format, const std::string& suffix,
                    const std::function<void(RawTensor*)>& change) {
  const TempDir dir;
  fs::copy(kDir + format + "/config.json", dir / "config.json");
  std::vector<RawTensor> tensors = read_raw(kDir + format);
  int num_changed = 0;
  for (RawTensor& tensor : tensors)
    if (tensor.name.ends_with("layers.1.mlp.down_proj." + suffix)) change(&tensor), ++num_changed;
  REQUIRE(num_changed == 1);
  write_file(dir / "model.safetensors", raw_safetensors(tensors));
  const auto config = load_model_config(dir.path());
  REQUIRE(config.ok());
  const auto files = WeightFiles::open(dir.path(), *config);
  CHECK(!files.ok());
  return files.ok() ? "" : files.status().message();
}

template <typename T>
std::function<void(RawTensor*)> first_is(T value) {
  return [value](RawTensor* t) { std::memcpy(t->bytes.data(), &value, sizeof value); };
}

void rename(RawTensor* t) { t->name += "_gone"; }

void cut_short(RawTensor* t) {
  t->bytes.resize(t->bytes.size() / static_cast<size_t>(t->shape[0]) * static_cast<size_t>(t->shape[0] - 1));
  --t->shape[0];
}

TEST_CASE("hostile checkpoints are refused before any weight is read, by the tensor's name and what is wrong") {
  const auto has = [](const std::string& text, const std::string& part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
    CHECK_MESSAGE(text.find("layers.1.mlp.down_proj") != std::string::npos, text);
  };
  const uint16_t nan_f16 = 0x7e00, infinity_bf16 = 0x7f80;
  const uint32_t nan_f32 = 0x7fc00000;
  has(refusal("gptq-4", "scales", first_is(nan_f16)), "not finite");
  has(refusal("awq", "scales", first_is(nan_f16)), "not finite");
  has(refusal("w4a16", "weight_scale", first_is(infinity_bf16)), "not finite");
  has(refusal("w8a8", "weight_scale", first_is(infinity_bf16)), "not finite");
  has(refusal("fp4", "weight.absmax", first_is(nan_f32)), "not finite");
  has(refusal("nf4", "weight.nested_absmax", first_is(nan_f32)), "not finite");
  has(refusal("nf4", "weight.quant_map", first_is(nan_f32)), "not finite");
  has(refusal("llm-int8", "SCB", first_is(nan_f32)), "not finite");
  has(refusal("gptq-4-order", "g_idx", first_is(int32_t{4})), "puts column 0 into group 4 of 4");
  has(refusal("gptq-4-order", "g_idx", first_is(int32_t{-1})), "group -1 of 4");
  has(refusal("gptq-4-order", "g_idx", rename), "g_idx\" is missing");
  for (const char* format : {"gptq-4", "gptq-8-v2", "awq"}) {
    for (const char* part : {"qweight", "qzeros", "scales"}) has(refusal(format, part, cut_short), "shape");
    for (const char* part : {"qzeros", "scales"}) has(refusal(format, part, rename), "missing");
  }
  for (const char* part : {"weight_packed", "weight_scale"}) has(refusal("w4a16", part, cut_short), "shape");
  has(refusal("w4a16", "weight_scale", rename), "missing");
  has(refusal("w4a16-zeros", "weight_zero_point", cut_short), "shape");
  has(refusal("w8a8", "weight", cut_short), "shape");
  has(refusal("nf4", "weight", cut_short), "shape");
  has(refusal("nf4", "weight.absmax", cut_short), "shape");
  has(refusal("nf4", "weight.quant_state.bitsandbytes__nf4", rename), "quant_state");
  has(refusal("nf4", "weight.quant_state.bitsandbytes__nf4", first_is('x')), "quant_state");
  has(refusal("nf4", "weight.quant_state.bitsandbytes__nf4",
              [](RawTensor* t) {
                t->bytes = R"({"blocksize":0})";
                t->shape = {static_cast<int64_t>(t->bytes.size())};
              }),
      "blocksize");
  has(refusal("llm-int8", "SCB", cut_short), "shape");
}

}  // namespace
}  // namespace llmb::test
