// Checkpoints of GPTQ, AWQ, compressed-tensors and bitsandbytes (tools/golden/make_golden_quantized.py), and of 2:4
// sparse numbers (make_golden_sparse.py): every weight
// against the format's own code, whole models against transformers on the dequantised weights, and what is refused.
#include "model/packed_weights.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <set>

#include "base/float_formats.h"
#include "core/block_format.h"
#include "model/weight_files.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/matrix_parts.h"
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
      source->release();
      for (const WeightForm form : {WeightForm::kNumbers, WeightForm::kBlocks})
        CHECK(check_parts(*files->make_source(pool, WeightAccess::kValues, form), tensor, right.shape));
    }
  }
  CHECK(formats().size() == 14);
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
  for (const char* part : {"weight_packed", "weight_scale", "weight_global_scale"}) {
    has(refusal("nvfp4", part, cut_short), "shape");
    has(refusal("nvfp4", part, rename), part == std::string("weight_packed") ? "weight\"" : "missing");
  }
  has(refusal("nvfp4", "weight_scale", first_is(uint8_t{0xff})), "not finite");
  for (const float bad : {0.0f, -1.0f, 1e-40f, std::nanf(""), INFINITY})
    has(refusal("nvfp4", "weight_global_scale", first_is(bad)), "by which no scale can be divided");
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
  for (const char* part : {"compressed", "bitmask"}) has(refusal("sparse24", part, cut_short), "shape");
  has(refusal("sparse24", "bitmask", rename), "missing");
  has(refusal("sparse24", "compressed", rename), "weight\"");
  has(refusal("sparse24", "shape", first_is(int64_t{31})), "does not say [32, 64]");
  has(refusal("sparse24", "bitmask", [](RawTensor* t) { t->dtype = "I8"; }), "expected U8");
  has(refusal("sparse24", "compressed",
              [](RawTensor* t) { t->dtype = "F8_E4M3", t->bytes.resize(t->bytes.size() / 2); }),
      "F8_E4M3");
}

TEST_CASE("2:4 weights of which not two of four are kept are refused, wherever that is") {
  const ModelConfig config = load_model_config(kDir + "sparse24").value();
  const std::vector<RawTensor> tensors = read_raw(kDir + "sparse24");
  for (const auto& [byte, bits] :
       {std::pair<size_t, int>{0, 0x37}, {7, 0x1c}, {8 * 31 + 7, 0xc0}, {8 * 15 + 3, 0xff}}) {
    const TempDir dir;
    std::vector<RawTensor> changed = tensors;
    for (RawTensor& tensor : changed)
      if (tensor.name.ends_with("layers.1.mlp.down_proj.bitmask")) tensor.bytes[byte] = static_cast<char>(bits);
    fs::copy(kDir + "sparse24/config.json", dir / "config.json");
    write_file(dir / "model.safetensors", raw_safetensors(changed));
    const auto files = WeightFiles::open(dir.path(), config);
    REQUIRE(files.ok());
    ThreadPool pool(1);
    for (const WeightForm form : {WeightForm::kNumbers, WeightForm::kBlocks}) {
      const auto view = files->make_source(pool, WeightAccess::kValues, form)
                            ->tensor("model.layers.1.mlp.down_proj.weight", std::array{int64_t{32}, int64_t{64}});
      REQUIRE(!view.ok());
      const bool is_first = std::popcount(static_cast<unsigned>(bits & 15)) != 2;
      const std::string where = std::to_string(std::popcount(static_cast<unsigned>(is_first ? bits & 15 : bits >> 4))) +
                                " of 4 numbers in row " + std::to_string(byte / 8) + " from column " +
                                std::to_string(byte % 8 * 8 + (is_first ? 0 : 4)) + " on, expected 2";
      CHECK_MESSAGE(view.status().message().find(where) != std::string::npos, view.status().message());
      CHECK(view.status().message().find("layers.1.mlp.down_proj.bitmask") != std::string::npos);
    }
  }
}

// A checkpoint of one matrix "m" [rows, cols] of random codes.
class OneMatrix {
 public:
  static constexpr int64_t kRows = 24, kCols = 256;

  OneMatrix(const std::string& config, std::vector<RawTensor> tensors) {
    std::mt19937 rng(5);
    for (RawTensor& t : tensors) {
      int64_t bytes = t.dtype == "I32" ? 4 : t.dtype == "F16" || t.dtype == "BF16" ? 2 : 1;
      for (const int64_t n : t.shape) bytes *= n;
      if (!t.bytes.empty()) continue;
      for (int64_t i = 0; i < bytes; ++i) t.bytes.push_back(static_cast<char>(rng()));
      for (char& byte : t.bytes)
        if (t.dtype == "F8_E4M3" && (byte & 0x7f) == 0x7f) byte ^= 1;  // no NaN
      if (t.dtype != "F16" && t.dtype != "BF16") continue;
      for (int64_t i = 0; i < bytes; i += 2) {  // finite, of both signs and any size, subnormal ones too
        const float scale = std::ldexp(static_cast<float>(rng() % 2001) - 1000, -static_cast<int>(rng() % 36));
        const uint16_t half = t.dtype == "F16" ? f32_to_f16(scale) : f32_to_bf16(scale);
        std::memcpy(t.bytes.data() + i, &half, 2);
      }
    }
    write_file(dir_ / "config.json", R"({"model_type":"llama","quantization_config":)" + config + "}");
    write_file(dir_ / "model.safetensors", raw_safetensors(tensors));
    checkpoint_.emplace(Checkpoint::open(dir_.path()).value());
    stored_ = load_stored_quantization(dir_.path()).value();
  }
  std::unique_ptr<PackedSource> source(WeightForm form, WeightAccess access = WeightAccess::kValues) {
    return std::make_unique<PackedSource>(*checkpoint_, config_, stored_, pool_, access, form);
  }

 private:
  const TempDir dir_;
  const ModelConfig config_;
  StoredQuantization stored_;
  ThreadPool pool_{1};
  std::optional<Checkpoint> checkpoint_;
};

// The format that the matrix stays in; that its blocks mean what the matrix is as numbers, bit for bit.
BlockFormat stays_in(OneMatrix& m) {
  const std::array shape{OneMatrix::kRows, OneMatrix::kCols};
  const auto numbers = m.source(WeightForm::kNumbers), blocks = m.source(WeightForm::kBlocks);
  const TensorView expected = numbers->tensor("m.weight", shape).value();
  const TensorView actual = blocks->tensor("m.weight", shape).value();
  const TensorView shapes = m.source(WeightForm::kBlocks, WeightAccess::kShapes)->tensor("m.weight", shape).value();
  CHECK(expected.blocks == BlockFormat::kNone);
  CHECK(actual.dtype == expected.dtype);
  CHECK(shapes.blocks == actual.blocks);
  CHECK(shapes.data == nullptr);
  CHECK(shapes.row_bytes() == actual.row_bytes());
  for (const WeightForm form : {WeightForm::kNumbers, WeightForm::kBlocks, WeightForm::kIntegersF16})
    CHECK(check_parts(*m.source(form), "m.weight", shape));
  if (actual.blocks == BlockFormat::kNone) return BlockFormat::kNone;
  std::vector<float> decoded(static_cast<size_t>(OneMatrix::kCols));
  for (int64_t i = 0; i < OneMatrix::kRows * OneMatrix::kCols; ++i) {
    if (i % OneMatrix::kCols == 0) decode_row(actual, i / OneMatrix::kCols, decoded.data());
    uint16_t half;
    std::memcpy(&half, static_cast<const uint8_t*>(expected.data) + 2 * i, 2);
    const float number = expected.dtype == DType::kBF16 ? bf16_to_f32(half) : f16_to_f32(half);
    REQUIRE(std::bit_cast<uint32_t>(decoded[i % OneMatrix::kCols]) == std::bit_cast<uint32_t>(number));
  }
  return actual.blocks;
}

TEST_CASE("integers of four and eight bits stay in blocks, which mean the same numbers") {
  constexpr int64_t kRows = OneMatrix::kRows, kCols = OneMatrix::kCols;
  const auto gptq = [](int bits, int64_t group, bool order, const std::string& index) {
    const int64_t words = 32 / bits, count = group > 0 ? kCols / group : 1;
    std::vector<RawTensor> parts = {{"m.qweight", "I32", {kCols / words, kRows}, ""},
                                    {"m.qzeros", "I32", {count, kRows / words}, ""},
                                    {"m.scales", "F16", {count, kRows}, ""}};
    if (!index.empty()) parts.push_back({"m.g_idx", "I32", {kCols}, index});
    return OneMatrix(R"({"quant_method":"gptq","bits":)" + std::to_string(bits) + R"(,"group_size":)" +
                         std::to_string(group) + R"(,"desc_act":)" + (order ? "true" : "false") + "}",
                     parts);
  };
  const auto indices = [](const auto& group_of) {
    std::string bytes;
    for (int32_t col = 0; col < kCols; ++col) {
      const int32_t group = group_of(col);
      bytes.append(reinterpret_cast<const char*>(&group), 4);
    }
    return bytes;
  };
  for (const int64_t group : {32, 64, 128, -1}) {
    CAPTURE(group);
    OneMatrix four = gptq(4, group, false, ""), eight = gptq(8, group, false, "");
    CHECK(stays_in(four) == BlockFormat::kInt4F16);
    CHECK(stays_in(eight) == BlockFormat::kInt8F16);
  }
  OneMatrix narrow = gptq(4, 16, false, "");
  CHECK(stays_in(narrow) == BlockFormat::kIndexedInt4F16);
  // An order that leaves neighbours together is none.
  OneMatrix swapped = gptq(4, 64, true, indices([](int32_t col) { return 3 - col / 64; }));
  CHECK(stays_in(swapped) == BlockFormat::kInt4F16);
  OneMatrix scattered = gptq(4, 64, true, indices([](int32_t col) { return col * 7 % 4; }));
  CHECK(stays_in(scattered) == BlockFormat::kIndexedInt4F16);
  OneMatrix wide = gptq(8, 64, true, indices([](int32_t col) { return col * 7 % 4; }));
  CHECK(stays_in(wide) == BlockFormat::kIndexedInt8F16);

  OneMatrix awq(R"({"quant_method":"awq","bits":4,"group_size":64,"version":"gemm","zero_point":true})",
                {{"m.qweight", "I32", {kCols, kRows / 8}, ""},
                 {"m.qzeros", "I32", {kCols / 64, kRows / 8}, ""},
                 {"m.scales", "F16", {kCols / 64, kRows}, ""}});
  CHECK(stays_in(awq) == BlockFormat::kInt4F16);

  const auto compressed = [](const char* format, int bits, const std::string& strategy,
                             const std::vector<RawTensor>& parts) {
    return OneMatrix(std::string(R"({"quant_method":"compressed-tensors","format":")") + format +
                         R"(","config_groups":{"group_0":{"targets":["Linear"],"weights":{"type":"int","num_bits":)" +
                         std::to_string(bits) + "," + strategy + R"(,"symmetric":true}}}})",
                     parts);
  };
  OneMatrix w4 = compressed(
      "pack-quantized", 4, R"("strategy":"group","group_size":32)",
      {{"m.weight_packed", "I32", {kRows, kCols / 8}, ""}, {"m.weight_scale", "BF16", {kRows, kCols / 32}, ""}});
  CHECK(stays_in(w4) == BlockFormat::kInt4BF16);
  OneMatrix w4_zeros = compressed("pack-quantized", 4, R"("strategy":"group","group_size":128)",
                                  {{"m.weight_packed", "I32", {kRows, kCols / 8}, ""},
                                   {"m.weight_scale", "F16", {kRows, kCols / 128}, ""},
                                   {"m.weight_zero_point", "I32", {kRows / 8, kCols / 128}, ""}});
  CHECK(stays_in(w4_zeros) == BlockFormat::kInt4F16);
  OneMatrix w8 = compressed("int-quantized", 8, R"("strategy":"channel")",
                            {{"m.weight", "I8", {kRows, kCols}, ""}, {"m.weight_scale", "BF16", {kRows, 1}, ""}});
  CHECK(stays_in(w8) == BlockFormat::kInt8BF16);

  const float of_all = 1234.5f;
  OneMatrix nvfp4(R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","config_groups":{"group_0":
                     {"targets":["Linear"],"weights":{"type":"float","num_bits":4,"strategy":"tensor_group",
                      "group_size":16,"symmetric":true}}}})",
                  {{"m.weight_packed", "U8", {kRows, kCols / 2}, ""},
                   {"m.weight_scale", "F8_E4M3", {kRows, kCols / 16}, ""},
                   {"m.weight_global_scale", "F32", {1}, std::string(reinterpret_cast<const char*>(&of_all), 4)}});
  CHECK(stays_in(nvfp4) == BlockFormat::kNVFP4);
}

TEST_CASE("2:4 weights stay in blocks, which mean the same numbers; odd rows become numbers") {
  std::string mask;
  for (int64_t i = 0; i < OneMatrix::kRows * OneMatrix::kCols / 8; ++i)
    mask.push_back("\x35\xca\x69\x93\xac\x56"[i % 6]);
  for (const char* dtype : {"BF16", "F16"}) {
    OneMatrix m(R"({"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24-bitmask"}})",
                {{"m.compressed", dtype, {OneMatrix::kRows, OneMatrix::kCols / 2}, ""},
                 {"m.bitmask", "U8", {OneMatrix::kRows, OneMatrix::kCols / 8}, mask}});
    CHECK(stays_in(m) == (dtype[0] == 'B' ? BlockFormat::kSparse24BF16 : BlockFormat::kSparse24F16));
  }
  OneMatrix odd(
      R"({"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24-bitmask"}})",
      {{"m.compressed", "BF16", {2, 6}, ""}, {"m.bitmask", "U8", {2, 2}, std::string("\x39\x05\xc6\xfa", 4)}});
  const auto source = odd.source(WeightForm::kBlocks);
  const TensorView view = source->tensor("m.weight", std::array{int64_t{2}, int64_t{12}}).value();
  CHECK(view.blocks == BlockFormat::kNone);
  const auto* const halves = static_cast<const uint16_t*>(view.data);
  for (const int kept : {0, 3, 4, 5, 8, 10, 13, 14, 18, 19, 21, 23}) CHECK(halves[kept] != 0);
  for (const int zero : {1, 2, 6, 7, 9, 11, 12, 15, 16, 17, 20, 22}) CHECK(halves[zero] == 0);
}

TEST_CASE("matrices of golden models come in blocks where they are asked for; their answers are tested above") {
  for (const char* name : {"gptq-4", "gptq-4-order", "gptq-8-v2", "awq", "w4a16", "w4a16-zeros", "w8a16", "w8a8",
                           "nvfp4", "sparse24", "sparse24-f16"}) {
    CAPTURE(name);
    const ModelConfig config = load_model_config(kDir + name).value();
    const auto files = WeightFiles::open(kDir + name, config);
    REQUIRE(files.ok());
    CHECK(files->stays_packed());
    ThreadPool pool(1);
    const auto source = files->make_source(pool, WeightAccess::kValues, WeightForm::kBlocks);
    const auto view = source->tensor("model.layers.0.mlp.down_proj.weight", std::array{int64_t{32}, int64_t{64}});
    REQUIRE(view.ok());
    CHECK(view->blocks != BlockFormat::kNone);
  }
}

}  // namespace
}  // namespace llmb::test
