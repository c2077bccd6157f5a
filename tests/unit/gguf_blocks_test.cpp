// Models whose weights are GGUF's blocks of few bits: int8 activations (--gguf-activations), and scales that no file
// may hold.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include "core/block_format.h"
#include "formats/gguf_file.h"
#include "model/weight_files.h"
#include "tests/support/matrix_parts.h"
#include "tests/support/process.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

std::string fixture(const std::string& name) { return source_dir() + "/data/fixtures/gguf/" + name; }

LoadOptions options_of(const std::string& model, const ModelConfig& config, int32_t num_threads) {
  LoadOptions o;
  o.model_dir = model;
  o.block_size = 16;
  o.max_num_seqs = 32;
  o.max_num_batched_tokens = 64;
  o.max_model_len = config.max_position_embeddings;
  o.num_threads = num_threads;
  o.kv_cache_dtype = DType::kF32;
  o.cpu.rounds_block_activations = true;
  return o;
}

// A model's answers with int8 activations; the schedule follows the seed.
std::vector<Generated> rounded_answers(const std::string& model, const std::vector<nlohmann::json>& lines,
                                       int32_t num_threads, uint64_t seed) {
  const Result<ModelConfig> config = load_model_config(model);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  const auto backend = make_cpu_backend();
  const Status status = backend->load(*config, options_of(model, *config, num_threads));
  REQUIRE_MESSAGE(status.ok(), status.message());
  std::vector<GenerateRequest> requests;
  for (const auto& line : lines) {
    GenerateRequest& r = requests.emplace_back();
    r.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
    r.num_tokens = 4;
    r.sampling.num_logprobs = 5;
  }
  return generate_at_random(*backend, requests, seed == 1 ? 64 : 7, seed == 1 ? 32 : 3, seed);
}

TEST_CASE("int8 activations give the same bytes on any schedule, and log probabilities near those of fp32") {
  for (const char* name : {"qwen2-q4_0", "llama-k", "llama-few", "gpt_oss"}) {
    CAPTURE(std::string(name));
    const std::string model = fixture(std::string(name) + ".gguf");
    const auto lines = read_json_lines(fixture(std::string(name) + ".golden.jsonl"));
    const auto answers = rounded_answers(model, lines, 1, 1);
    CHECK((rounded_answers(model, lines, 3, 2) == answers));
    const auto plain = golden_answers(model, lines);
    double worst = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      REQUIRE(answers[i].logprobs.size() == 4);
      worst = std::max(worst, std::fabs(double{answers[i].logprobs[0]} - plain[i].logprobs[0]));
    }
    MESSAGE(name << ": largest difference of a first token's log probability: " << worst);
    CHECK(worst > 0);
    CHECK(worst < 0.5);
  }
}

TEST_CASE("int8 activations are refused where no weight is such a block, and beside weights that are rounded anew") {
  const auto message = [](const std::string& model, const auto& change) {
    const Result<ModelConfig> config = load_model_config(model);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    LoadOptions o = options_of(model, *config, 1);
    change(o);
    return make_cpu_backend()->load(*config, o).message();
  };
  const auto nothing = [](LoadOptions&) {};
  const char* const kNone = "no weights in GGUF's blocks";
  CHECK(message(source_dir() + "/data/model", nothing).find(kNone) != std::string::npos);
  CHECK(message(fixture("llama-f16.gguf"), nothing).find(kNone) != std::string::npos);
  const auto dummy = [](LoadOptions& o) { o.load_format = LoadFormat::kDummy; };
  CHECK(message(fixture("llama-k.gguf"), dummy).find(kNone) != std::string::npos);
  const auto quantised = [](LoadOptions& o) { o.cpu.quantization = Quantization::kInt4; };
  CHECK(message(fixture("llama-k.gguf"), quantised).find("not with quantization int4") != std::string::npos);
}

TEST_CASE("parts of matrices are the same rows and columns as of the whole, in blocks and as numbers") {
  int num_checked = 0;
  for (const std::string name : {"llama-k", "llama-few", "qwen2-q4_0", "llama-bias-q8_0", "gpt_oss", "llama-f16"})
    for (const WeightForm form : {WeightForm::kBlocks, WeightForm::kNumbers}) {
      CAPTURE(name);
      const ModelConfig c = load_model_config(fixture(name + ".gguf")).value();
      const WeightFiles files = WeightFiles::open(fixture(name + ".gguf"), c).value();
      ThreadPool pool(2);
      const auto source = files.make_source(pool, WeightAccess::kValues, form);
      const int64_t hidden = c.hidden_size;
      num_checked += check_parts(*source, "model.embed_tokens.weight", std::array{int64_t{c.vocab_size}, hidden});
      num_checked += check_parts(*source, "model.layers.0.self_attn.q_proj.weight", std::array{c.q_size(), hidden});
      num_checked += check_parts(*source, "model.layers.0.self_attn.o_proj.weight", std::array{hidden, c.q_size()});
    }
  CHECK(num_checked >= 30);
}

TEST_CASE("a scale that is infinite or NaN is refused when the weights load, with tensor, row and block") {
  const std::string name = "llama-k.gguf", good = read_file(fixture(name));
  const Result<ModelConfig> config = load_model_config(fixture(name));
  const Result<GgufFile> model = GgufFile::open(fixture(name));
  REQUIRE(model.ok());
  const TempDir dir;
  std::set<BlockFormat> formats;
  for (const GgufTensor& tensor : model->tensors()) {
    const BlockFormat format = find_block_format(tensor.type->name);
    if (format == BlockFormat::kNone || !formats.insert(format).second) continue;
    const BlockSize& block = block_size(format);
    const size_t in_file = static_cast<size_t>(tensor.data.data() - model->files()[0].data());
    const auto row_bytes = tensor.shape[1] / block.size * block.bytes;
    for (const uint16_t bits : {0x7c00, 0xfc00, 0x7e01}) {
      std::string bytes = good;
      const size_t scale = format == BlockFormat::kQ6_K ? 208 : 2;
      std::memcpy(&bytes[in_file + 3 * row_bytes + scale], &bits, 2);
      write_file(dir / name, bytes);
      LoadOptions o = options_of(dir / name, *config, 2);
      for (const bool rounds : {false, true}) {
        o.cpu.rounds_block_activations = rounds;
        const std::string message = make_cpu_backend()->load(*config, o).message();
        const std::string expected = "\"" + std::string(tensor.name) + "\": block 0 of row 3 (" + block.name + ")";
        CHECK_MESSAGE(message.find(expected) != std::string::npos, message);
      }
    }
  }
  CHECK(formats.size() == 3);
}

}  // namespace
}  // namespace llmb::test
