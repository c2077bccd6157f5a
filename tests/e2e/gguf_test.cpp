// A GGUF file given to -m: the bundled model, converted here with every bit kept, answers as its directory does.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <regex>

#include "base/float_formats.h"
#include "tests/e2e/run.h"
#include "tests/support/gguf_from_hf.h"
#include "tests/support/source_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {

namespace {

using nlohmann::json;

std::string gguf_name(std::string name) {
  const std::pair<const char*, const char*> kParts[] = {{"model.layers.", "blk."},
                                                        {"model.embed_tokens", "token_embd"},
                                                        {"model.norm", "output_norm"},
                                                        {"input_layernorm", "attn_norm"},
                                                        {"post_attention_layernorm", "ffn_norm"},
                                                        {"self_attn.o_proj", "attn_output"},
                                                        {"self_attn.", "attn_"},
                                                        {"mlp.", "ffn_"},
                                                        {"_proj", ""}};
  for (const auto& [from, to] : kParts)
    if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, std::string(from).size(), to);
  return name;
}

// A row in blocks of 32 numbers of eight bits.
std::string q8_0_row(const std::vector<float>& row) {
  std::string bytes;
  for (size_t k = 0; k < row.size(); k += 32) {
    float max = 0;
    for (size_t i = k; i < k + 32; ++i) max = std::max(max, std::fabs(row[i]));
    const uint16_t scale = f32_to_f16(max / 127);
    bytes += GgufWriter::raw(scale);
    for (size_t i = k; i < k + 32; ++i)
      bytes += GgufWriter::raw(static_cast<int8_t>(max == 0 ? 0 : std::lround(row[i] / f16_to_f32(scale))));
  }
  return bytes;
}

// bf16, or Q8_0, q and k in the order that llama.cpp rotates.
std::string converted_model(const std::string& pre = "smollm", bool is_q8_0 = false) {
  const json config = json::parse(read_file(kModel + "/config.json"));
  const json tokenizer_config = json::parse(read_file(kModel + "/tokenizer_config.json"));
  GgufWriter w;
  w.text("general.architecture", "llama");
  for (const auto& [key, field] : {std::pair("context_length", "max_position_embeddings"),
                                   {"embedding_length", "hidden_size"},
                                   {"block_count", "num_hidden_layers"},
                                   {"feed_forward_length", "intermediate_size"},
                                   {"attention.head_count", "num_attention_heads"},
                                   {"attention.head_count_kv", "num_key_value_heads"},
                                   {"rope.dimension_count", "head_dim"},
                                   {"attention.key_length", "head_dim"}})
    w.u32(std::string("llama.") + key, config[field].get<uint32_t>());
  w.f32("llama.rope.freq_base", config["rope_theta"].get<float>());
  w.f32("llama.attention.layer_norm_rms_epsilon", config["rms_norm_eps"].get<float>());
  add_byte_level_tokenizer(&w, read_hf_tokenizer(kModel), pre);
  w.u32("tokenizer.ggml.eos_token_id", 1);
  w.u32("tokenizer.ggml.eot_token_id", 0);
  w.text("tokenizer.chat_template", tokenizer_config["chat_template"].get<std::string>());
  const auto head_dim = config["head_dim"].get<int64_t>();
  for (const auto& [name, tensor] : read_tensors(kModel)) {
    const bool is_matrix = tensor.shape.size() == 2,
               is_rotated = name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos;
    std::string bytes;
    const int64_t rows = is_matrix ? tensor.shape[0] : 1, cols = tensor.shape.back();
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t head = row / head_dim, i = row % head_dim;
      const int64_t from = is_rotated ? head * head_dim + i / 2 + i % 2 * (head_dim / 2) : row;
      std::vector<float> numbers;
      for (int64_t col = 0; col < cols; ++col) {
        const auto value = static_cast<float>(tensor.values[from * cols + col]);
        if (is_matrix && is_q8_0) numbers.push_back(value);
        else if (is_matrix) bytes += GgufWriter::raw(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
        else bytes += GgufWriter::raw(value);
      }
      bytes += q8_0_row(numbers);
    }
    w.tensor(gguf_name(name), tensor.shape, !is_matrix ? 0 : is_q8_0 ? 8 : 30, bytes);
  }
  return w.bytes();
}

ProcessResult run_model(const std::string& model, std::vector<std::string> arguments) {
  std::vector<std::string> argv = {kProgram, "-m", model, "--metrics", "none"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_process(argv);
}

// The ids of OpenAI answers tell which model gave them.
std::string without_ids(const std::string& records) {
  static const std::regex id("(batch_req_|req_|chatcmpl-|cmpl-)[0-9a-f]{32}");
  return std::regex_replace(records, id, "$1");
}

}  // namespace

TEST_CASE("prompts and conversations get the same bytes from the GGUF file as from the directory") {
  const TemporaryDirectory dir;
  const std::string model = dir.file("bundled-BF16.gguf");
  write_file(model, converted_model());
  const std::vector<std::string> arguments = {source_dir() + "/examples/prompts.jsonl", "--max-tokens", "30",
                                              "--temperature", "0"};
  const ProcessResult gguf = run_model(model, arguments), directory = run_model(kModel, arguments);
  REQUIRE_MESSAGE(gguf.exit_code == directory.exit_code, gguf.err);
  CHECK(without_ids(stable_output(gguf.out)) == without_ids(stable_output(directory.out)));
  CHECK(gguf.err.find("bundled-BF16.gguf: llama") != std::string::npos);
  // The folder that holds it is a model, too.
  CHECK(run_model(dir.path(), {source_dir() + "/examples/prompts.jsonl", "--dry-run"}).exit_code == 0);
  // Its tokenizer serves other models.
  CHECK(run_model(kModel, {source_dir() + "/examples/prompts.jsonl", "--dry-run", "--tokenizer", model}).exit_code ==
        0);
}

TEST_CASE("a changed GGUF file is another model: a run does not go on with it") {
  const TemporaryDirectory dir;
  const std::string model = dir.file("m.gguf");
  std::string bytes = converted_model();
  write_file(model, bytes);
  write_file(dir.file("in.jsonl"), R"({"prompt":"Once","max_tokens":2})"
                                   "\n");
  const std::vector<std::string> arguments = {dir.file("in.jsonl"), "-o", dir.file("out.jsonl")};
  const ProcessResult first = run_model(model, arguments);
  REQUIRE_MESSAGE(first.exit_code == 0, first.err);
  write_file(dir.file("in.jsonl"), read_file(dir.file("in.jsonl")) + R"({"prompt":"Once","max_tokens":2})"
                                                                     "\n");
  CHECK(run_model(model, arguments).exit_code == 0);
  bytes[bytes.size() - 100] ^= 1;
  write_file(model, bytes);
  write_file(dir.file("in.jsonl"), read_file(dir.file("in.jsonl")) + R"({"prompt":"Once","max_tokens":2})"
                                                                     "\n");
  const ProcessResult changed = run_model(model, arguments);
  CHECK(changed.exit_code == 7);
  CHECK(changed.err.find("model/m.gguf") != std::string::npos);
}

TEST_CASE("a damaged file, and one that is none, are refused with 4") {
  const TemporaryDirectory dir;
  std::string bytes = converted_model();
  bytes.resize(bytes.size() / 2);
  write_file(dir.file("half.gguf"), bytes);
  write_file(dir.file("none.gguf"), "no model");
  for (const char* name : {"half.gguf", "none.gguf"}) {
    const ProcessResult result = run_model(dir.file(name), {source_dir() + "/examples/prompts.jsonl"});
    CHECK(result.exit_code == 4);
    CHECK(result.err.find(name) != std::string::npos);
    CHECK(result.out == "");
  }
  // Several files in one folder: which one is not guessed.
  write_file(dir.file("other.gguf"), "");
  const ProcessResult several = run_model(dir.path(), {source_dir() + "/examples/prompts.jsonl"});
  CHECK(several.exit_code == 4);
  CHECK(several.err.find("GGUF models, such as") != std::string::npos);
}

TEST_CASE("--gguf-activations int8: the same bytes from any schedule, said by the manifest, not mixed with others") {
  const TemporaryDirectory dir;
  const std::string model = dir.file("m-Q8_0.gguf"), out = dir.file("out.jsonl");
  write_file(model, converted_model("smollm", true));
  const auto answers = [&](std::vector<std::string> more) {
    more.insert(more.end(), {source_dir() + "/examples/prompts.jsonl", "--max-tokens", "20", "--order", "input"});
    const ProcessResult result = run_model(model, more);
    CHECK_MESSAGE(result.out.size() > 100, result.err);
    return without_ids(stable_output(result.out));
  };
  const std::string rounded = answers({"--gguf-activations", "int8"});
  CHECK(answers({"--gguf-activations", "int8", "--threads", "1", "--max-num-seqs", "1", "--block-size", "8"}) ==
        rounded);
  CHECK(answers({"--gguf-activations", "float32"}) == answers({}));
  write_file(dir.file("in.jsonl"), R"({"prompt":"Once","max_tokens":2})");
  REQUIRE(run_model(model, {dir.file("in.jsonl"), "-o", out, "--gguf-activations", "int8"}).exit_code == 0);
  CHECK(read_file(out + ".manifest.json").find("gguf_activations") != std::string::npos);
  write_file(dir.file("in.jsonl"), R"({"prompt":"Once","max_tokens":2})"
                                   "\n"
                                   R"({"prompt":"Then","max_tokens":2})");
  const ProcessResult other = run_model(model, {dir.file("in.jsonl"), "-o", out});
  CHECK(other.exit_code == 7);
  CHECK(other.err.find("gguf_activations") != std::string::npos);
  const ProcessResult none = run_model(kModel, {dir.file("in.jsonl"), "--gguf-activations", "int8"});
  CHECK(none.exit_code == 4);
  CHECK(none.err.find("no weights in GGUF's blocks") != std::string::npos);
}

TEST_CASE("a file that does not say how text is split runs with a warning that names the guess") {
  const TemporaryDirectory dir;
  write_file(dir.file("m.gguf"), converted_model(""));
  write_file(dir.file("in.jsonl"), R"({"prompt":"Once upon a time","max_tokens":2})");
  const ProcessResult result = run_model(dir.file("m.gguf"), {dir.file("in.jsonl")});
  CHECK(result.exit_code == 0);
  CHECK_MESSAGE(result.err.find("warning: the GGUF file (tokenizer.ggml.pre) does not say how text is split") !=
                    std::string::npos,
                result.err);
  CHECK(result.err.find("\" is taken") != std::string::npos);
}

}  // namespace llmb::test
