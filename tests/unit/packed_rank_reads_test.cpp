// Each tensor parallel rank reads its rows and columns of matrices of few bits, and no more: pages of the checkpoint
// are counted as they are touched, beside those that hold its part.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/block_format.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/touched_by_loading.h"

namespace llmb::test {
namespace {

constexpr int64_t kHidden = 64, kWide = 32768, kVocab = 4096, kGroup = 64;

// How ranks divide a tensor: each has some of its rows as they are stored, or a piece of each of them.
enum class Cut { kAll, kRows, kPieces };

struct Stored {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
  int64_t rows;  // as they are stored
  Cut cut;
};

Stored zeros(const std::string& name, const char* dtype, int64_t each, int64_t rows, int64_t cols, Cut cut) {
  return {name, dtype, {rows, cols}, std::string(static_cast<size_t>(each * rows * cols), '\0'), rows, cut};
}

Stored number(const std::string& name, float value) {
  return {name, "F32", {1}, bytes_of(std::vector{value}), 1, Cut::kAll};
}

using Tensors = std::vector<Stored>;
// The tensors of a matrix [rows, cols] of which ranks have rows, or columns.
using MakeMatrix = std::function<Tensors(const std::string& stem, int64_t rows, int64_t cols, bool has_rows)>;

struct Format {
  const char* name;
  std::string config;  // quantization_config
  MakeMatrix make;
};

Cut cut_of(bool has_rows) { return has_rows ? Cut::kRows : Cut::kPieces; }

// Words of eight codes along the columns, or with AWQ along the rows: columns are rows of the file.
MakeMatrix turned(bool is_awq, bool has_order) {
  return [=](const std::string& stem, int64_t rows, int64_t cols, bool has_rows) {
    const int64_t count = cols / kGroup;
    const Cut cut = cut_of(!has_rows), of_groups = has_order && !has_rows ? Cut::kAll : cut;
    Tensors out = {is_awq ? zeros(stem + ".qweight", "I32", 4, cols, rows / 8, cut)
                          : zeros(stem + ".qweight", "I32", 4, cols / 8, rows, cut),
                   zeros(stem + ".qzeros", "I32", 4, count, rows / 8, of_groups),
                   zeros(stem + ".scales", "F16", 2, count, rows, of_groups)};
    if (!has_order) return out;
    std::vector<int32_t> groups(static_cast<size_t>(cols));
    for (int64_t col = 0; col < cols; ++col) groups[col] = static_cast<int32_t>(col * 7 % count);
    out.push_back({stem + ".g_idx", "I32", {cols}, bytes_of(groups), 1, Cut::kAll});
    return out;
  };
}

Tensors nf4(const std::string& stem, int64_t rows, int64_t cols, bool has_rows) {
  const std::string name = stem + ".weight";
  const std::string state = R"({"quant_type":"nf4","blocksize":64,"nested_blocksize":256,"nested_offset":0.5})";
  Stored codes = zeros(name, "U8", 1, rows, cols / 2, cut_of(has_rows));
  Stored scales = zeros(name + ".absmax", "U8", 1, rows, cols / 64, cut_of(has_rows));
  codes.shape = {rows * cols / 2, 1}, scales.shape = {rows * cols / 64};
  Stored nested = zeros(name + ".nested_absmax", "F32", 4, 1, rows * cols / 64 / 256, Cut::kAll);
  nested.shape = {nested.shape[1]};
  return {codes,
          scales,
          nested,
          {name + ".nested_quant_map", "F32", {256}, std::string(1024, '\0'), 1, Cut::kAll},
          {name + ".quant_map", "F32", {16}, {reinterpret_cast<const char*>(kNf4Values), 64}, 1, Cut::kAll},
          {name + ".quant_state.bitsandbytes__nf4", "U8", {static_cast<int64_t>(state.size())}, state, 1, Cut::kAll}};
}

std::string compressed_config(const std::string& format, const std::string& weights) {
  return R"({"quant_method":"compressed-tensors","format":")" + format +
         R"(","config_groups":{"group_0":{"targets":["Linear"],"weights":{)" + weights + R"(,"symmetric":true}}}})";
}

std::vector<Format> formats() {
  const auto wide = [](const char* dtype, int64_t codes_in_number, int64_t each, const MakeMatrix& others) {
    return [=](const std::string& stem, int64_t rows, int64_t cols, bool has_rows) {
      Tensors out = others(stem, rows, cols, has_rows);
      const std::string name = stem + (codes_in_number > 1 ? ".weight_packed" : ".weight");
      out.insert(out.begin(), zeros(name, dtype, each, rows, cols / codes_in_number, cut_of(has_rows)));
      return out;
    };
  };
  const auto of_rows = [](const char* suffix) {
    return [=](const std::string& stem, int64_t rows, int64_t, bool) {
      return Tensors{zeros(stem + suffix, "F32", 4, rows, 1, Cut::kAll)};
    };
  };
  return {
      {"fp8 blocks", R"({"quant_method":"fp8","weight_block_size":[128,128]})",
       wide("F8_E4M3", 1, 1,
            [](const std::string& stem, int64_t rows, int64_t cols, bool) {
              return Tensors{
                  zeros(stem + ".weight_scale_inv", "F32", 4, (rows + 127) / 128, (cols + 127) / 128, Cut::kAll)};
            })},
      {"fp8 rows", compressed_config("float-quantized", R"("type":"float","num_bits":8,"strategy":"channel")"),
       wide("F8_E4M3", 1, 1, of_rows(".weight_scale"))},
      {"gptq", R"({"quant_method":"gptq","bits":4,"group_size":64,"desc_act":false})", turned(false, false)},
      {"gptq in another order", R"({"quant_method":"gptq","bits":4,"group_size":64,"desc_act":true})",
       turned(false, true)},
      {"awq", R"({"quant_method":"awq","bits":4,"group_size":64,"zero_point":true,"version":"gemm"})",
       turned(true, false)},
      {"4 bits", compressed_config("pack-quantized", R"("type":"int","num_bits":4,"strategy":"group","group_size":64)"),
       wide("I32", 8, 4,
            [](const std::string& stem, int64_t rows, int64_t cols, bool has_rows) {
              return Tensors{zeros(stem + ".weight_scale", "BF16", 2, rows, cols / kGroup, cut_of(has_rows))};
            })},
      {"8 bits", compressed_config("int-quantized", R"("type":"int","num_bits":8,"strategy":"channel")"),
       wide("I8", 1, 1,
            [](const std::string& stem, int64_t rows, int64_t, bool has_rows) {
              return Tensors{zeros(stem + ".weight_scale", "BF16", 2, rows, 1, has_rows ? Cut::kRows : Cut::kAll)};
            })},
      {"nvfp4",
       compressed_config("nvfp4-pack-quantized",
                         R"("type":"float","num_bits":4,"strategy":"tensor_group","group_size":16)"),
       wide("U8", 2, 1,
            [](const std::string& stem, int64_t rows, int64_t cols, bool has_rows) {
              return Tensors{zeros(stem + ".weight_scale", "F8_E4M3", 1, rows, cols / 16, cut_of(has_rows)),
                             number(stem + ".weight_global_scale", 1)};
            })},
      {"nf4", R"({"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"nf4"})", nf4},
      {"LLM.int8()", R"({"quant_method":"bitsandbytes","load_in_8bit":true})",
       [](const std::string& stem, int64_t rows, int64_t cols, bool has_rows) {
         return Tensors{zeros(stem + ".weight", "I8", 1, rows, cols, cut_of(has_rows)),
                        {stem + ".SCB", "F32", {rows}, std::string(static_cast<size_t>(4 * rows), '\0'), 1, Cut::kAll}};
       }},
      {"2:4", R"({"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24-bitmask"}})",
       [](const std::string& stem, int64_t rows, int64_t cols, bool has_rows) {
         Stored mask = zeros(stem + ".bitmask", "U8", 1, rows, cols / 8, cut_of(has_rows));
         mask.bytes.assign(mask.bytes.size(), '\x33');
         return Tensors{zeros(stem + ".compressed", "BF16", 2, rows, cols / 2, cut_of(has_rows)), mask};
       }},
  };
}

// All models here have one layer, with as many KV heads as query heads.
Tensors model_of(const std::function<Tensors(const std::string&, int64_t, int64_t, bool)>& matrix) {
  Tensors out = {zeros("model.embed_tokens.weight", "BF16", 2, kVocab, kHidden, Cut::kRows),
                 zeros("lm_head.weight", "BF16", 2, kVocab, kHidden, Cut::kRows)};
  const auto add = [&](const char* name, int64_t rows, int64_t cols, bool has_rows) {
    for (const Stored& t : matrix(std::string("model.layers.0.") + name, rows, cols, has_rows)) out.push_back(t);
  };
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"})
    add(name, kWide, kHidden, true);
  for (const char* name : {"self_attn.o_proj", "mlp.down_proj"}) add(name, kHidden, kWide, false);
  for (const char* name : {"model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"})
    out.push_back({std::string(name) + ".weight", "BF16", {kHidden}, std::string(2 * kHidden, '\0'), 1, Cut::kAll});
  return out;
}

// A tensor's place in its file.
struct Placed {
  int64_t begin, bytes, rows;
  Cut cut;
};

// Its tensors begin with pages, as far as they are whole pages.
std::vector<Placed> write_checkpoint(const std::string& dir, const Format& format) {
  Tensors tensors = model_of(format.make);
  std::stable_partition(tensors.begin(), tensors.end(), [](const Stored& t) { return t.bytes.size() % kPage == 0; });
  std::vector<RawTensor> raw;
  for (const Stored& t : tensors) raw.push_back({t.name, t.dtype, t.shape, t.bytes});
  const std::string file = on_pages(raw_safetensors(raw));
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  auto at = static_cast<int64_t>(8 + header);
  std::vector<Placed> placed;
  for (const Stored& t : tensors) {
    placed.push_back({at, static_cast<int64_t>(t.bytes.size()), t.rows, t.cut});
    at += static_cast<int64_t>(t.bytes.size());
  }
  write_file(dir + "/model.safetensors", file);
  write_file(dir + "/config.json",
             R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","torch_dtype":"bfloat16","hidden_size":64,
"head_dim":256,"num_attention_heads":128,"num_key_value_heads":128,"vocab_size":4096,"num_hidden_layers":1,
"intermediate_size":32768,"max_position_embeddings":128,"rms_norm_eps":1e-6,"rope_theta":10000,"hidden_act":"silu",
"tie_word_embeddings":false,"quantization_config":)" +
                 format.config + "}");
  return placed;
}

// Blocks of 32 numbers, and of 256 where columns are divided.
std::vector<Placed> write_gguf(const std::string& path) {
  GgufWriter w;
  w.text("general.architecture", "llama");
  for (const auto& [key, value] : {std::pair("context_length", 128),
                                   {"embedding_length", int{kHidden}},
                                   {"block_count", 1},
                                   {"feed_forward_length", int{kWide}},
                                   {"attention.head_count", 128},
                                   {"attention.head_count_kv", 128},
                                   {"attention.key_length", 256},
                                   {"attention.value_length", 256},
                                   {"rope.dimension_count", 256},
                                   {"vocab_size", int{kVocab}}})
    w.u32(std::string("llama.") + key, static_cast<uint32_t>(value));
  w.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  std::vector<Placed> placed;
  int64_t at = 0;
  const auto add = [&](const char* name, int64_t rows, int64_t cols, bool has_rows) {
    constexpr uint32_t kQ4_0 = 2, kQ4_K = 12;
    const int64_t bytes = has_rows ? rows * cols / 32 * 18 : rows * cols / 256 * 144;
    w.tensor(std::string(name) + ".weight", {rows, cols}, has_rows ? kQ4_0 : kQ4_K,
             std::string(static_cast<size_t>(bytes), '\0'));
    placed.push_back({at, bytes, rows, cut_of(has_rows)});
    at += (bytes + 31) / 32 * 32;
  };
  for (const char* name : {"token_embd", "output"}) add(name, kVocab, kHidden, true);
  for (const char* name : {"blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v", "blk.0.ffn_gate", "blk.0.ffn_up"})
    add(name, kWide, kHidden, true);
  for (const char* name : {"blk.0.attn_output", "blk.0.ffn_down"}) add(name, kHidden, kWide, false);
  for (const char* name : {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"}) {
    w.f32_tensor(name, {kHidden}, std::vector<float>(kHidden, 1));
    placed.push_back({at, 4 * kHidden, 1, Cut::kAll});
    at += 4 * kHidden;
  }
  const std::string file = w.bytes();
  for (Placed& p : placed) p.begin += static_cast<int64_t>(file.size()) - at;
  write_file(path, file);
  return placed;
}

// Bytes of the pages that hold a rank's part.
int64_t own_pages(const std::vector<Placed>& placed, int64_t rank, int64_t size) {
  std::vector<bool> pages;
  const auto add = [&](int64_t begin, int64_t end) {
    const auto page = static_cast<int64_t>(kPage);
    pages.resize(std::max(pages.size(), static_cast<size_t>((end + page - 1) / page)));
    for (int64_t i = begin / page; i * page < end; ++i) pages[static_cast<size_t>(i)] = true;
  };
  for (const Placed& p : placed) {
    const int64_t row = p.bytes / p.rows;
    if (p.cut == Cut::kAll) add(p.begin, p.begin + p.bytes);
    if (p.cut == Cut::kRows) add(p.begin + p.bytes * rank / size, p.begin + p.bytes * (rank + 1) / size);
    for (int64_t i = 0; p.cut == Cut::kPieces && i < p.rows; ++i)
      add(p.begin + i * row + row * rank / size, p.begin + i * row + row * (rank + 1) / size);
  }
  return static_cast<int64_t>(kPage) * std::count(pages.begin(), pages.end(), true);
}

void check_reads(const std::string& model, const std::string& file, const std::vector<Placed>& placed) {
  for (const WeightForm form : {WeightForm::kBlocks, WeightForm::kNumbers})
    for (const auto& [rank, size] : {std::pair(0, 2), {1, 2}, {2, 4}}) {
      CAPTURE(static_cast<int>(form));
      CAPTURE(rank);
      CAPTURE(size);
      const auto own = static_cast<double>(own_pages(placed, rank, size)),
                 all = static_cast<double>(own_pages(placed, 0, 1));
      const auto touched = static_cast<double>(touched_by_loading(model, file, {rank, size, 1}, form));
      CHECK(touched >= 0.99 * own);
      CHECK(touched <= 1.01 * own);
      CHECK(touched <= 1.25 * all / size);  // pieces of rows are not all whole pages here
    }
}

}  // namespace

TEST_CASE("tensor parallel ranks read their rows and columns of weights of few bits") {
  for (const Format& format : formats()) {
    CAPTURE(format.name);
    const TemporaryDirectory dir;
    const std::vector<Placed> placed = write_checkpoint(dir.path(), format);
    check_reads(dir.path(), dir.path() + "/model.safetensors", placed);
  }
}

TEST_CASE("tensor parallel ranks read their rows and columns of a GGUF file's blocks") {
  const TemporaryDirectory dir;
  const std::string path = dir.path() + "/m.gguf";
  check_reads(path, path, write_gguf(path));
}

}  // namespace llmb::test
