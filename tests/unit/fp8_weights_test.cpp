// Stored fp8 weights: every value, every kind of scale, whole models, and what is refused.
#include "model/fp8_weights.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "backend/cpu/cpu_backend.h"
#include "base/float_formats.h"
#include "base/rng.h"
#include "model/config_loader.h"
#include "model/weight_files.h"
#include "tests/support/oracle.h"
#include "tests/support/plan_builder.h"
#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/source_dir.h"
#include "tests/support/matrix_parts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

// By the definition, in doubles.
double e4m3(int bits) {
  const int sign = bits & 0x80 ? -1 : 1, exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 0) return sign * std::pow(2.0, -6) * mantissa / 8;
  return sign * std::pow(2.0, exponent - 7) * (1 + mantissa / 8.0);
}

std::string random_fp8(int64_t count, uint64_t seed) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const auto word = philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {static_cast<uint32_t>(seed), 7})[0];
    const auto byte = static_cast<uint8_t>(word);
    bytes += static_cast<char>((byte & 0x7f) == 0x7f ? 0 : byte);  // no NaN
  }
  return bytes;
}

struct Fp8Case {
  int64_t rows, cols;
  std::vector<int64_t> scale_shape;
  std::vector<float> scales;
  ModelConfig config;
  std::string scale_name = "w_scale", scale_dtype = "F32";
};

Result<std::vector<float>> dequantised(const Fp8Case& c, const std::string& weight_bytes) {
  std::string scale_bytes = bytes_of(c.scales);
  if (c.scale_dtype != "F32") {
    std::vector<uint16_t> halves;
    for (const float s : c.scales) halves.push_back(c.scale_dtype == "F16" ? f32_to_f16(s) : f32_to_bf16(s));
    scale_bytes = bytes_of(halves);
  }
  const TempDir dir;
  std::vector<RawTensor> tensors = {{"w", "F8_E4M3", {c.rows, c.cols}, weight_bytes}};
  if (!c.scale_shape.empty() || !c.scales.empty())
    tensors.push_back({c.scale_name, c.scale_dtype, c.scale_shape, scale_bytes});
  write_file(dir / "model.safetensors", raw_safetensors(tensors));
  const auto checkpoint = Checkpoint::open(dir.path());
  REQUIRE_MESSAGE(checkpoint.ok(), checkpoint.status().message());
  ThreadPool pool(2);
  Fp8Source source(*checkpoint, c.config, pool);
  const auto view = source.tensor("w", std::array{c.rows, c.cols});
  if (!view.ok()) return view.status();
  CHECK(view->dtype == c.config.dtype);
  CHECK(view->rows == c.rows);
  CHECK(view->cols == c.cols);
  std::vector<float> out(c.rows * c.cols);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto* halves = static_cast<const uint16_t*>(view->data);
    out[i] = c.config.dtype == DType::kF32    ? static_cast<const float*>(view->data)[i]
             : c.config.dtype == DType::kBF16 ? bf16_to_f32(halves[i])
                                              : f16_to_f32(halves[i]);
  }
  for (const WeightForm form : {WeightForm::kNumbers, WeightForm::kBlocks}) {
    Fp8Source parts(*checkpoint, c.config, pool, WeightAccess::kValues, form);
    CHECK(check_parts(parts, "w", std::array{c.rows, c.cols}));
  }
  return out;
}

ModelConfig f32_config(int32_t block_rows = 0, int32_t block_cols = 0) {
  ModelConfig config;
  config.dtype = DType::kF32;
  config.fp8_block_rows = block_rows;
  config.fp8_block_cols = block_cols;
  return config;
}

void check_case(const Fp8Case& c, int64_t block_rows, int64_t block_cols) {
  const std::string bytes = random_fp8(c.rows * c.cols, c.rows * 1000 + c.cols);
  const auto values = dequantised(c, bytes);
  REQUIRE_MESSAGE(values.ok(), values.status().message());
  const int64_t blocks_in_row = (c.cols + block_cols - 1) / block_cols;
  for (int64_t row = 0; row < c.rows; ++row)
    for (int64_t col = 0; col < c.cols; ++col) {
      const float scale = c.scales.at(row / block_rows * blocks_in_row + col / block_cols);
      const auto exact = static_cast<float>(e4m3(static_cast<uint8_t>(bytes[row * c.cols + col])) * double{scale});
      if ((*values)[row * c.cols + col] != exact) FAIL_CHECK("row " << row << ", column " << col);
    }
}

std::vector<float> some_scales(int64_t count) {
  std::vector<float> scales(count);
  for (int64_t i = 0; i < count; ++i) scales[i] = 0.001f * static_cast<float>(i % 97 + 1);
  return scales;
}

TEST_CASE("every E4M3 value") {
  for (int bits = 0; bits < 256; ++bits) {
    CAPTURE(bits);
    const float value = fp8_e4m3_to_f32(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) CHECK(std::isnan(value));
    else CHECK(value == e4m3(bits));
    CHECK(std::signbit(value) == (bits >= 128));
  }
  CHECK(fp8_e4m3_to_f32(0x7e) == 448);
  CHECK(fp8_e4m3_to_f32(0x01) == std::ldexp(1.0f, -9));
}

TEST_CASE("16-bit floats: rounding to nearest, ties to even, at every border") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {  // what is exact stays
    const auto half = static_cast<uint16_t>(bits);
    if (!std::isnan(f16_to_f32(half)) && f32_to_f16(f16_to_f32(half)) != half)
      CHECK(f32_to_f16(f16_to_f32(half)) == half);
    if (!std::isnan(bf16_to_f32(half)) && f32_to_bf16(bf16_to_f32(half)) != half)
      CHECK(f32_to_bf16(bf16_to_f32(half)) == half);
  }
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {  // halfway to the next, and just off it
    const double low = f16_to_f32(static_cast<uint16_t>(bits)),
                 high = bits == 0x7bff ? 65536 : f16_to_f32(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    const bool good = f32_to_f16(middle) == even && f32_to_f16(std::nextafter(middle, 0.0f)) == bits &&
                      f32_to_f16(std::nextafter(middle, 1e9f)) == bits + 1;
    if (!good) CHECK(bits == UINT32_MAX);
  }
  CHECK(f32_to_f16(1e6f) == 0x7c00);
  CHECK(f32_to_f16(-INFINITY) == 0xfc00);
  CHECK(std::isnan(f16_to_f32(f32_to_f16(NAN))));
  CHECK(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
  CHECK(f32_to_bf16(1.00390625f) == 0x3f80);  // 1 + 2^-8: halfway, down to even
  CHECK(f32_to_bf16(1.01171875f) == 0x3f82);  // 1 + 3 * 2^-8: halfway, up to even
}

TEST_CASE("one scale, one a row, and blocks with borders inside and beyond the matrix") {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}, {1, 1}})
    check_case({5, 7, shape, {0.37f}, f32_config()}, 5, 7);
  check_case({5, 7, {5}, some_scales(5), f32_config()}, 1, 7);
  check_case({5, 7, {5, 1}, some_scales(5), f32_config(), "w_scale_inv"}, 1, 7);
  check_case({1, 7, {1}, {2.0f}, f32_config()}, 1, 7);
  for (const auto& shape :
       {std::pair<int64_t, int64_t>{128, 128}, {127, 129}, {129, 127}, {1, 1}, {256, 300}, {200, 128}}) {
    const int64_t rows = shape.first, cols = shape.second;
    CAPTURE(rows);
    CAPTURE(cols);
    const int64_t grid_rows = (rows + 127) / 128, grid_cols = (cols + 127) / 128;
    check_case(
        {rows, cols, {grid_rows, grid_cols}, some_scales(grid_rows * grid_cols), f32_config(128, 128), "w_scale_inv"},
        128, 128);
  }
  check_case({6, 10, {3, 3}, some_scales(9), f32_config(2, 4)}, 2, 4);
  // A model with blocks may have tensors with one scale, or one a row.
  check_case({300, 300, {1}, {0.5f}, f32_config(128, 128)}, 300, 300);
  check_case({300, 300, {300, 1}, some_scales(300), f32_config(128, 128)}, 1, 300);
}

TEST_CASE("scales in 16 bits, results rounded to the model's dtype") {
  for (const char* dtype : {"F16", "BF16"}) {
    Fp8Case c = {2, 3, {2, 1}, {0.5f, 0.25f}, f32_config()};
    c.scale_dtype = dtype;
    check_case(c, 1, 3);
  }
  const std::string bytes = random_fp8(64, 3);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Fp8Case c = {8, 8, {1}, {0.0123f}, f32_config()};
    c.config.dtype = dtype;
    const auto values = dequantised(c, bytes);
    REQUIRE(values.ok());
    for (int i = 0; i < 64; ++i) {
      const auto exact = static_cast<float>(e4m3(static_cast<uint8_t>(bytes[i])) * double{0.0123f});
      CHECK((*values)[i] == (dtype == DType::kBF16 ? bf16_to_f32(f32_to_bf16(exact)) : f16_to_f32(f32_to_f16(exact))));
    }
  }
}

TEST_CASE("scales that do not fit are refused, naming the tensor") {
  const std::string bytes = random_fp8(12, 1);
  const auto message = [&](Fp8Case c) {
    const auto values = dequantised(c, bytes);
    REQUIRE(!values.ok());
    return values.status().message();
  };
  CHECK(message({3, 4, {}, {}, f32_config()}).find("w_scale") != std::string::npos);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{4}, {2}, {1, 4}, {3, 4}, {2, 2}, {0}}) {
    int64_t count = 1;
    for (const int64_t d : shape) count *= d;
    CHECK(message({3, 4, shape, std::vector<float>(count, 1.0f), f32_config()}).find("w_scale") != std::string::npos);
  }
  CHECK(message({3, 4, {1, 1, 3}, {1, 1, 1}, f32_config()}).find("shape [1, 1, 3]") != std::string::npos);
  CHECK(message({3, 4, {2, 1}, {1, 1}, f32_config(2, 2)}).find("blocks of 2 x 2") != std::string::npos);
  CHECK(message({3, 4, {1}, {NAN}, f32_config()}).find("not finite") != std::string::npos);
  CHECK(message({3, 4, {1}, {INFINITY}, f32_config()}).find("not finite") != std::string::npos);
  Fp8Case c = {3, 4, {}, {1}, f32_config()};
  c.scale_dtype = "I16";
  CHECK(message(c).find("I16") != std::string::npos);
}

// A model whose matrices are fp8 with scales of one kind, and the same with those values in fp32.
void write_fp8_pair(const std::string& fp8_dir, const std::string& plain_dir, const std::string& kind) {
  const ModelConfig config = tiny_config();
  TestTensors tensors = random_tensors(config, 5);
  std::vector<RawTensor> raw;
  for (auto& [name, tensor] : tensors) {
    const bool is_fp8 = name.find("_proj.weight") != std::string::npos;
    if (!is_fp8) {
      raw.push_back(
          {name, "F32", tensor.shape, bytes_of(std::vector<float>(tensor.values.begin(), tensor.values.end()))});
      continue;
    }
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    const int64_t block_rows = kind == "tensor"    ? rows
                               : kind == "channel" ? 1
                                                   : 8,
                  block_cols = kind == "block" ? 8 : cols;
    const int64_t grid_rows = (rows + block_rows - 1) / block_rows, grid_cols = (cols + block_cols - 1) / block_cols;
    const std::string bytes = random_fp8(rows * cols, std::hash<std::string>()(name));
    std::vector<float> scales = some_scales(grid_rows * grid_cols);
    for (int64_t i = 0; i < rows * cols; ++i)
      tensor.values[i] = static_cast<float>(e4m3(static_cast<uint8_t>(bytes[i])) *
                                            double{scales[i / cols / block_rows * grid_cols + i % cols / block_cols]});
    raw.push_back({name, "F8_E4M3", tensor.shape, bytes});
    const std::vector<int64_t> shape =
        kind == "tensor" ? std::vector<int64_t>{} : std::vector<int64_t>{grid_rows, grid_cols};
    raw.push_back({name + (kind == "block" ? "_scale_inv" : "_scale"), "F32", shape, bytes_of(scales)});
  }
  write_model(plain_dir, config, tensors);
  auto json = nlohmann::json::parse(read_file(plain_dir + "/config.json"));
  if (kind == "channel")
    json["quantization_config"] = nlohmann::json::parse(
        R"({"quant_method":"compressed-tensors","format":"float-quantized","ignore":["lm_head"],"config_groups":{"group_0":{
            "targets":["Linear"],"weights":{"num_bits":8,"type":"float","strategy":"channel","symmetric":true,"dynamic":false},
            "input_activations":{"num_bits":8,"type":"float","strategy":"token","dynamic":true}}}})");
  else json["quantization_config"] = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"fmt", "e4m3"}};
  if (kind == "block") json["quantization_config"]["weight_block_size"] = {8, 8};
  write_file(fp8_dir + "/config.json", json.dump());
  write_file(fp8_dir + "/model.safetensors", raw_safetensors(raw));
}

std::vector<Generated> answers(const std::string& dir) {
  const auto config = load_model_config(dir);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  const auto backend = make_cpu_backend();
  LoadOptions options;
  options.model_dir = dir;
  options.max_model_len = config->max_position_embeddings;
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 64;
  options.num_threads = 2;
  options.kv_cache_dtype = DType::kF32;
  const Status status = backend->load(*config, options);
  REQUIRE_MESSAGE(status.ok(), status.message());
  std::vector<GenerateRequest> requests(3);
  for (int i = 0; i < 3; ++i) {
    requests[i].prompt = {1 + i, 5, 9, 2};
    requests[i].num_tokens = 8;
    requests[i].sampling.num_logprobs = 5;
  }
  return generate_at_random(*backend, requests, 64, 32, 1);
}

TEST_CASE("a model with fp8 weights answers like the same weights dequantised, to the bit") {
  for (const char* kind : {"tensor", "channel", "block"}) {
    CAPTURE(kind);
    const TempDir fp8, plain;
    write_fp8_pair(fp8.path(), plain.path(), kind);
    const auto expected = answers(plain.path()), actual = answers(fp8.path());
    for (size_t i = 0; i < expected.size(); ++i) {
      CHECK(actual[i].tokens == expected[i].tokens);
      CHECK(actual[i].logprobs == expected[i].logprobs);
      for (const float logprob : actual[i].logprobs) CHECK(std::isfinite(logprob));
    }
  }
}

TEST_CASE("quantization_config: what is read, and what is refused by its name") {
  const auto parse = [](const std::string& quantization) {
    auto json = nlohmann::json::parse(read_file(source_dir() + "/data/fixtures/models/llama-gqa/config.json"));
    json["quantization_config"] = nlohmann::json::parse(quantization);
    return parse_model_config(json.dump());
  };
  const auto group = [](const std::string& weights, const std::string& format = "float-quantized") {
    return R"({"quant_method":"compressed-tensors","format":")" + format + R"(","config_groups":{"g":{"weights":)" +
           weights + "}}}";
  };
  const std::string fp8 = R"({"type":"float","num_bits":8,"strategy":"channel")";
  const auto blocks =
      parse(R"({"quant_method":"fp8","weight_block_size":[128,64],"modules_to_not_convert":["lm_head"]})");
  REQUIRE_MESSAGE(blocks.ok(), blocks.status().message());
  CHECK(blocks->fp8_block_rows == 128);
  CHECK(blocks->fp8_block_cols == 64);
  for (const std::string& good :
       {std::string(R"({"quant_method":"fp8"})"), std::string(R"({"quant_method":"fp8","weight_block_size":null})"),
        group(fp8 + "}"), group(fp8 + R"(,"symmetric":true})"),
        std::string(R"({"quant_method":"gptq","bits":8,"group_size":-1,"desc_act":true})"),
        std::string(R"({"quant_method":"awq","bits":4,"group_size":64})"),
        std::string(R"({"quant_method":"bitsandbytes","load_in_4bit":true})"),
        group(R"({"type":"int","num_bits":8,"strategy":"channel"})", "int-quantized"),
        group(R"({"type":"int","num_bits":4,"strategy":"group","group_size":32})", "pack-quantized")}) {
    const auto config = parse(good);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    CHECK(config->fp8_block_rows == 0);
  }
  CHECK(
      parse(group(R"({"type":"float","num_bits":8,"strategy":"block","block_structure":[128,128]})"))->fp8_block_cols ==
      128);

  const std::vector<std::pair<std::string, std::string>> bad = {
      {R"({"quant_method":"hqq"})", "quant_method \"hqq\""},
      {R"({"quant_method":"gptq"})", "bits"},
      {R"({"quant_method":"gptq","bits":3})", "gptq with 3 bits"},
      {R"({"quant_method":"gptq","bits":4,"group_size":0})", "group_size"},
      {R"({"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"})", "marlin"},
      {R"({"quant_method":"awq","bits":8})", "awq with 8 bits"},
      {R"({"quant_method":"awq","bits":4,"version":"gemv"})", "gemv"},
      {R"({"quant_method":"awq","bits":4,"zero_point":false})", "zero points"},
      {group(R"({"type":"int","num_bits":3})", "pack-quantized"), "pack-quantized with 3 bits"},
      {group(R"({"type":"int","num_bits":4})", "int-quantized"), "int-quantized with 4 bits"},
      {group(R"({"type":"int","num_bits":4,"strategy":"token"})", "pack-quantized"), "token"},
      {group(R"({"type":"int","num_bits":4,"strategy":"group","group_size":0})", "pack-quantized"), "group_size"},
      {R"({"bits":4})", "quant_method"},
      {R"({"quant_method":"fp8","fmt":"e5m2"})", "e5m2"},
      {R"({"quant_method":"fp8","weight_block_size":[128]})", "weight_block_size"},
      {R"({"quant_method":"fp8","weight_block_size":[0,128]})", "weight_block_size"},
      {R"({"quant_method":"fp8","weight_block_size":[1.5,128]})", "weight_block_size"},
      {group(fp8 + "}", "pack-quantized"), "pack-quantized"},
      {group(R"({"type":"int","num_bits":8})"), "type int with 8 bits"},
      {group(R"({"type":"float","num_bits":4})"), "type float with 4 bits"},
      {group(R"({"type":"float","num_bits":8,"strategy":"group"})"), "group"},
      {group(fp8 + R"(,"symmetric":false})"), "symmetric"},
      {R"({"quant_method":"compressed-tensors","format":"float-quantized"})", "config_groups"},
      {R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"g":{"format":"nvfp4-pack-quantized","weights":{}}}})",
       "nvfp4-pack-quantized"},
      {R"("fp8")", "not an object"},
  };
  for (const auto& c : bad) {
    const std::string &quantization = c.first, &part = c.second;
    CAPTURE(quantization);
    const auto config = parse(quantization);
    REQUIRE(!config.ok());
    CHECK_MESSAGE(config.status().message().find(part) != std::string::npos, config.status().message());
  }
}

}  // namespace
}  // namespace llmb::test
