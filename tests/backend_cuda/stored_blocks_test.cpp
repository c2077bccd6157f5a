// Checkpoints whose integers of four bits, or e4m3, the device keeps: which do, and that answers are those of the weights that
// they mean, whatever the schedule.
#include "backend/cuda/stored_blocks.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/float_formats.h"
#include "formats/safetensors.h"
#include "model/config_loader.h"
#include "tests/support/golden.h"
#include "tests/support/kv_bytes.h"
#include "tests/support/plan_builder.h"
#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/source_dir.h"
#include "tests/support/stored_model.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

// Blocks of random codes with scales of 1.
struct Matrix {
  Matrix(int64_t rows, int64_t cols, BlockFormat format, uint8_t zero)
      : bytes(static_cast<size_t>(rows * cols / 32 * block_size(format).bytes)) {
    std::mt19937 rng(1);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
    const uint16_t one = has_bf16_numbers(format) ? 0x3f80 : 0x3c00;
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(block_size(format).bytes)) {
      std::memcpy(bytes.data() + at, &one, 2);
      bytes[at + 2] = zero;
    }
    view = {bytes.data(), has_bf16_numbers(format) ? DType::kBF16 : DType::kF16, rows, cols, format};
  }
  std::vector<uint8_t> bytes;
  TensorView view;
};

TEST_CASE("integers stay integers where their scales have the activations' dtype") {
  const Matrix symmetric(6, 64, BlockFormat::kInt4F16, 8), shifted(2, 64, BlockFormat::kInt4F16, 7);
  const Matrix bf16(4, 64, BlockFormat::kInt4BF16, 8), eight(4, 64, BlockFormat::kInt8F16, 8);
  const Matrix far(4, 64, BlockFormat::kInt4F16, 200);
  const std::vector<float> floats(64 * 4, 1.0f);
  const TensorView plain{floats.data(), DType::kF32, 4, 64};
  const auto form = [](std::initializer_list<TensorView> parts, DType dtype) {
    return form_of_blocks({parts.begin(), parts.size()}, dtype);
  };
  CHECK(form({symmetric.view}, DType::kF16) == CudaForm::kInt4);
  CHECK(form({symmetric.view, symmetric.view}, DType::kF16) == CudaForm::kInt4);
  CHECK(form({symmetric.view, shifted.view}, DType::kF16) == CudaForm::kInt4Zeros);
  CHECK(form({bf16.view}, DType::kBF16) == CudaForm::kInt4);
  CHECK(form({bf16.view}, DType::kF16) == CudaForm::kNumbers);
  CHECK(form({symmetric.view}, DType::kF32) == CudaForm::kNumbers);
  CHECK(form({symmetric.view, bf16.view}, DType::kF16) == CudaForm::kNumbers);
  CHECK(form({symmetric.view, plain}, DType::kF16) == CudaForm::kNumbers);
  CHECK(form({far.view}, DType::kF16) == CudaForm::kNumbers);  // a zero that has no place beside codes
  const Matrix eight_far(4, 64, BlockFormat::kInt8F16, 200), eight_middle(4, 64, BlockFormat::kInt8F16, 128);
  CHECK(form({eight.view}, DType::kF16) == CudaForm::kBytesZeros);
  CHECK(form({eight_middle.view, eight_far.view}, DType::kF16) == CudaForm::kBytesZeros);
  CHECK(form({eight_middle.view}, DType::kF16) == CudaForm::kBytes);
  CHECK(form({eight_middle.view}, DType::kBF16) == CudaForm::kNumbers);
  CHECK(form({eight.view, symmetric.view}, DType::kF16) == CudaForm::kNumbers);
}

TEST_CASE("columns of indexed blocks go group by group, in turn, where every group is of whole runs of 32") {
  constexpr int64_t kRows = 3, kCols = 128, kGroups = 3;
  const int64_t row_bytes = kCols / 2 + kGroups * kGroupScaleBytes;
  std::vector<uint8_t> bytes(static_cast<size_t>(kRows * row_bytes), 0x77);
  std::vector<uint16_t> of, others;
  for (int64_t col = 0; col < kCols; ++col) of.push_back(static_cast<uint16_t>(col % 4 == 1 ? 2 : col % 4 == 3 ? 0 : 1));
  const auto view_of = [&](const std::vector<uint16_t>& groups) {
    return TensorView{bytes.data(), DType::kF16, kRows, kCols, BlockFormat::kIndexedInt4F16, {groups.data(), kGroups}};
  };
  const auto zeros = [&](uint8_t zero) {
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t g = 0; g < kGroups; ++g) bytes[(row + 1) * row_bytes - kGroups + g] = zero;
  };
  const auto form = [&](std::initializer_list<TensorView> parts, DType dtype = DType::kF16) {
    return form_of_blocks({parts.begin(), parts.size()}, dtype);
  };
  std::vector<int32_t> expected;
  for (const int group : {0, 1, 2})
    for (int32_t col = 0; col < kCols; ++col)
      if (of[col] == group) expected.push_back(col);
  for (const int32_t group : {0, 1, 1, 2}) expected.push_back(group);
  CHECK(column_order(view_of(of)) == expected);
  zeros(8);
  CHECK(form({view_of(of)}) == CudaForm::kInt4);
  CHECK(form({view_of(of)}, DType::kBF16) == CudaForm::kNumbers);
  bytes.back() = 9;
  CHECK(form({view_of(of), view_of(of)}) == CudaForm::kInt4Zeros);
  bytes.back() = 200;
  CHECK(form({view_of(of)}) == CudaForm::kNumbers);
  zeros(8);
  others = of;
  std::swap(others[0], others[1]);
  CHECK(form({view_of(others)}) == CudaForm::kInt4);
  CHECK(form({view_of(of), view_of(others)}) == CudaForm::kNumbers);
  others[0] = others[1];  // 31 of one group, 65 of another
  CHECK(column_order(view_of(others)).empty());
  CHECK(form({view_of(others)}) == CudaForm::kNumbers);
}

TEST_CASE("MXFP4 stays as it is beside 16 bits, where no scale is above 2") {
  std::vector<uint8_t> bytes(4 * 2 * 17, 0x5a);
  for (size_t at = 0; at < bytes.size(); at += 17) bytes[at] = static_cast<uint8_t>(at % 2 == 0 ? 0 : 128);
  const TensorView view{bytes.data(), DType::kBF16, 4, 64, BlockFormat::kMXFP4};
  const std::vector<TensorView> parts = {view, view};
  CHECK(form_of_blocks(parts, DType::kBF16) == CudaForm::kMxfp4);
  CHECK(form_of_blocks(parts, DType::kF16) == CudaForm::kMxfp4);
  CHECK(form_of_blocks(parts, DType::kF32) == CudaForm::kNumbers);
  const std::vector<float> floats(64 * 4, 1.0f);
  const std::vector<TensorView> mixed = {view, {floats.data(), DType::kF32, 4, 64}};
  CHECK(form_of_blocks(mixed, DType::kBF16) == CudaForm::kNumbers);
  bytes[3 * 17] = 129;
  CHECK(form_of_blocks(parts, DType::kBF16) == CudaForm::kNumbers);
}

TEST_CASE("e4m3 stays as it is where a row has one scale, and all of it are numbers") {
  Matrix rows(3, 96, BlockFormat::kFp8BF16, 8), differs(3, 96, BlockFormat::kFp8F16, 8);
  Matrix nan(3, 96, BlockFormat::kFp8BF16, 8), integers(3, 96, BlockFormat::kInt8BF16, 8);
  const auto fill = [](Matrix* matrix) {
    for (size_t at = 0; at < matrix->bytes.size(); at += 36) {
      const float scale = static_cast<float>(at / 36 / 3 + 1);
      std::memcpy(matrix->bytes.data() + at, &scale, 4);
      for (size_t i = 4; i < 36; ++i) matrix->bytes[at + i] &= 0xbf;
    }
  };
  for (Matrix* matrix : {&rows, &differs, &nan}) fill(matrix);
  differs.bytes[4 * 36] ^= 1;  // a bit of a scale
  nan.bytes.back() = 0xff;
  CHECK(has_fp8_rows(rows.view));
  CHECK(!has_fp8_rows(differs.view));
  CHECK(!has_fp8_rows(nan.view));
  CHECK(!has_fp8_rows(integers.view));
}

TEST_CASE("numbers of blocks are those that decode_row() gives") {
  for (const BlockFormat format : {BlockFormat::kInt4F16, BlockFormat::kInt8BF16}) {
    const Matrix matrix(3, 64, format, 5);
    std::vector<uint8_t> memory;
    const TensorView numbers = as_numbers(matrix.view, &memory);
    CHECK(numbers.blocks == BlockFormat::kNone);
    for (int64_t row = 0; row < 3; ++row) {
      std::vector<float> expected(64);
      decode_row(matrix.view, row, expected.data());
      for (int64_t k = 0; k < 64; ++k) {
        uint16_t bits;
        std::memcpy(&bits, static_cast<const uint8_t*>(numbers.data) + (row * 64 + k) * 2, 2);
        CHECK((format == BlockFormat::kInt4F16 ? f16_to_f32(bits) : bf16_to_f32(bits)) == expected[k]);
      }
    }
  }
}

// A golden model with groups of 32 instead of 16: every second scale and zero.
std::string wide_groups(const std::string& name, const TempDir& dir) {
  const std::string from = source_dir() + "/data/fixtures/quantized/" + name;
  std::string config = read_file(from + "/config.json");
  const std::string narrow = "\"group_size\": 16";
  const size_t at = config.find(narrow);
  REQUIRE(at != std::string::npos);
  write_file(dir / "config.json", config.replace(at, narrow.size(), "\"group_size\": 32"));
  const auto checkpoint = Checkpoint::open(from);
  REQUIRE(checkpoint.ok());
  std::vector<RawTensor> tensors;
  for (const std::string& tensor : checkpoint->names()) {
    const StoredTensor t = *checkpoint->find(tensor);
    RawTensor& raw = tensors.emplace_back(
        RawTensor{tensor,
                  std::string(t.dtype),
                  {t.shape.begin(), t.shape.end()},
                  std::string(reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes))});
    if (tensor.ends_with(".scales") || tensor.ends_with(".qzeros")) {
      raw.shape[0] /= 2;
      raw.bytes.resize(raw.bytes.size() / 2);
    }
    if (tensor.ends_with(".g_idx"))
      for (int32_t col = 0; col < raw.shape[0]; ++col) {
        const int32_t group = col / 32;
        std::memcpy(raw.bytes.data() + 4 * col, &group, 4);
      }
  }
  write_file(dir / "model.safetensors", raw_safetensors(tensors));
  return dir.path();
}

// A golden model whose projections are numbers of e4m3 by a power of two for each row, the largest 448: as such codes
// with scales, or in bfloat16, which holds them.
std::string with_fp8_numbers(const TempDir& dir, bool as_codes) {
  const std::string from = source_dir() + "/data/fixtures/models/llama-bf16";
  std::string config = read_file(from + "/config.json");
  if (as_codes)
    config.insert(config.find('{') + 1, R"("quantization_config": {"quant_method": "fp8", "fmt": "e4m3"},)");
  write_file(dir / "config.json", config);
  const auto checkpoint = Checkpoint::open(from);
  REQUIRE(checkpoint.ok());
  std::vector<RawTensor> tensors;
  const auto bytes_of = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  for (const std::string& name : checkpoint->names()) {
    const StoredTensor t = *checkpoint->find(name);
    const auto* const halves = reinterpret_cast<const uint16_t*>(t.data);
    RawTensor raw{name,
                  std::string(t.dtype),
                  {t.shape.begin(), t.shape.end()},
                  std::string(reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes))};
    if (name.find("_proj") == std::string::npos) {
      tensors.push_back(raw);
      continue;
    }
    const int64_t rows = t.shape[0], cols = t.shape[1];
    std::vector<uint8_t> codes;
    std::vector<uint16_t> numbers;
    std::vector<float> scales;
    for (int64_t row = 0; row < rows; ++row) {
      float max = 0;
      for (int64_t i = 0; i < cols; ++i) max = std::max(max, std::fabs(bf16_to_f32(halves[row * cols + i])));
      const float scale = std::exp2(std::ceil(std::log2(max / 448)));
      for (int64_t i = 0; i < cols; ++i) {
        const float x = i == row % cols ? 448 : bf16_to_f32(halves[row * cols + i]) / scale;
        codes.push_back(round_to_fp8(x));
        numbers.push_back(f32_to_bf16(fp8_e4m3_to_f32(codes.back()) * scale));
      }
      scales.push_back(scale);
    }
    raw.dtype = as_codes ? "F8_E4M3" : "BF16";
    raw.bytes = as_codes ? bytes_of(codes) : bytes_of(numbers);
    tensors.push_back(raw);
    if (as_codes) tensors.push_back({name + "_scale", "F32", {rows, 1}, bytes_of(scales)});
  }
  write_file(dir / "model.safetensors", raw_safetensors(tensors));
  return dir.path();
}

TEST_CASE("a checkpoint of e4m3 has the answers of the numbers that it means, rounded to e4m3 again") {
  std::vector<Generated> answers[2];
  for (const bool as_codes : {false, true}) {
    const TempDir dir;
    LoadOptions options = stored_model_options(with_fp8_numbers(dir, as_codes), DType::kBF16);
    const auto config = load_model_config(options.model_dir);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    options.cpu.quantization = Quantization::kFp8;
    const std::vector<GenerateRequest> requests = short_requests(config->vocab_size);
    answers[as_codes ? 1 : 0] = generate_one_by_one(*loaded(make_cuda_backend(0), *config, options), requests, 64);
  }
  const bool same = answers[0] == answers[1];
  CHECK(same);
}

// The golden model with experts in MXFP4, one of whose blocks has codes of 0 and this scale.
std::string with_scale(const TempDir& dir, uint8_t scale) {
  const std::string from = source_dir() + "/data/fixtures/models/gpt_oss-mxfp4";
  write_file(dir / "config.json", read_file(from + "/config.json"));
  std::string file = read_file(from + "/model.safetensors");
  const auto checkpoint = Checkpoint::open(from);
  REQUIRE(checkpoint.ok());
  const std::string experts = "model.layers.1.mlp.experts.down_proj_";
  const auto* const begin = checkpoint->files()[0].data();
  const auto at = [&](const std::string& name) { return checkpoint->find(experts + name)->data - begin; };
  std::memset(file.data() + at("blocks"), 0, 16);
  file[static_cast<size_t>(at("scales"))] = static_cast<char>(scale);
  write_file(dir / "model.safetensors", file);
  return dir.path();
}

TEST_CASE("MXFP4 experts: the golden tokens, the bytes that their numbers give, and the same whatever the schedule") {
  LoadOptions options = stored_model_options(source_dir() + "/data/fixtures/models/gpt_oss-mxfp4", DType::kBF16);
  const auto config = load_model_config(options.model_dir);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  std::vector<GenerateRequest> requests;
  std::vector<std::vector<TokenId>> expected;
  for (const auto& line : read_json_lines(options.model_dir + "/golden.jsonl")) {
    GenerateRequest& r = requests.emplace_back();
    r.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
    expected.push_back(line.at("token_ids").get<std::vector<TokenId>>());
    r.num_tokens = static_cast<int32_t>(expected.back().size());
    r.sampling.num_logprobs = 0;
  }
  const auto packed = loaded(make_cuda_backend(0), *config, options);
  const auto answers = generate_one_by_one(*packed, requests, 64);
  for (size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    CHECK(answers[i].tokens == expected[i]);
  }
  for (const uint64_t seed : {1, 2}) {
    const bool same = generate_at_random(*packed, requests, seed == 1 ? 64 : 7, 8, seed) == answers;
    CHECK(same);
  }
  const auto answer = [&](uint8_t scale, int64_t* weight_bytes) {
    const TempDir dir;
    options.model_dir = with_scale(dir, scale);
    const auto backend = loaded(make_cuda_backend(0), *config, options);
    *weight_bytes = backend->info().weight_bytes;
    return generate_one_by_one(*backend, requests, 64);
  };
  int64_t packed_bytes = 0, mixed_bytes = 0;
  const bool same = answer(120, &packed_bytes) == answer(200, &mixed_bytes);  // one layer's down is numbers
  CHECK(same);
  CHECK(packed_bytes == packed->info().weight_bytes);
  CHECK(packed_bytes != mixed_bytes);  // not less: units of so small matrices are mostly empty
}

TEST_CASE("MXFP4 experts: a scale that is no number is refused by name, on either device") {
  const TempDir dir;
  LoadOptions options = stored_model_options(with_scale(dir, 255), DType::kF32);
  const auto config = load_model_config(options.model_dir);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    options.dtype = options.kv_cache_dtype = dtype;
    const Status status = (dtype == DType::kF32 ? make_cpu_backend() : make_cuda_backend(0))->load(*config, options);
    CHECK(status.message().find("model.layers.1.mlp.experts.down_proj_scales\": a scale in row 0 of matrix 0 is not a "
                                "number (255)") != std::string::npos);
  }
}

TEST_CASE("checkpoints of GPTQ and AWQ: near the CPU's answers, and the same bytes whatever the schedule") {
  for (const char* name : {"gptq-4", "awq"}) {
    CAPTURE(name);
    const TempDir dir;
    LoadOptions options = stored_model_options(wide_groups(name, dir), DType::kF32);
    const auto config = load_model_config(options.model_dir);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    const std::vector<GenerateRequest> requests = short_requests(config->vocab_size);
    const auto expected = generate_one_by_one(*loaded(make_cpu_backend(), *config, options), requests, 64);
    options.dtype = options.kv_cache_dtype = DType::kF16;
    const auto gpu = loaded(make_cuda_backend(0), *config, options);
    const auto actual = generate_one_by_one(*gpu, requests, 64);
    for (size_t i = 0; i < requests.size(); ++i) {
      CAPTURE(i);
      CHECK(actual[i].tokens[0] == expected[i].tokens[0]);
      CHECK(std::fabs(actual[i].logprobs[0] - expected[i].logprobs[0]) <= 0.02);
    }
    for (const uint64_t seed : {1, 2}) {
      const bool same = generate_at_random(*gpu, requests, seed == 1 ? 64 : 7, 8, seed) == actual;
      CHECK(same);
    }
  }
}

}  // namespace
}  // namespace llmb::test
