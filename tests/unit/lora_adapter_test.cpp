// LoRA adapters on the CPU: PEFT's answers (tools/golden/make_golden_adapters.py), whatever runs beside them; what is
// damaged, another model's or no plain LoRA is refused, and why.
#include "model/lora_adapter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/adapter_library.h"
#include "model/adapter_pool.h"
#include "model/config_loader.h"
#include "model/lora_places.h"
#include "tests/support/adapted_models.h"
#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

TEST_CASE("tokens and logits equal PEFT's for ranks 1 to 256, adapters mixed in steps with each other and with none") {
  const auto names = adapted_models();
  REQUIRE(names.size() >= 6);
  for (const std::string& name : names) {
    CAPTURE(name);
    const AdaptedModel model = adapted_model(name);
    const auto backend = load_adapted(name, model, int64_t{1} << 30);
    const auto answers = generate_at_random(*backend, model.requests, 40, 7, 1);
    for (size_t i = 0; i < answers.size(); ++i) {
      if (model.lines[i].is_null()) continue;
      CAPTURE(model.library->name(model.requests[i].adapter));
      CHECK(answers[i].tokens == model.lines[i].at("token_ids").get<std::vector<TokenId>>());
      CHECK(largest_difference(answers[i], model.lines[i]) <= 1e-5);
      CHECK(answers[i + 1].top_logprobs[0] != answers[i].top_logprobs[0]);  // without it
    }
  }
}

TEST_CASE("the bits of a row do not depend on what runs beside it, nor on how many adapters memory holds") {
  for (const std::string& name : adapted_models()) {
    CAPTURE(name);
    const AdaptedModel model = adapted_model(name);
    const auto expected = generate_one_by_one(*load_adapted(name, model, int64_t{1} << 30), model.requests, 64);
    const auto none_kept = load_adapted(name, model, 0);
    CHECK((expected == generate_at_random(*none_kept, model.requests, 23, 6, 2)));
    std::vector<GenerateRequest> plain = model.requests;
    for (GenerateRequest& request : plain) request.adapter = -1;
    const auto backend = load_adapted(name, model, 0);
    const auto without = generate_one_by_one(*backend, plain, 64);
    for (size_t i = 1; i < plain.size(); i += 2) CHECK((expected[i] == without[i]));
  }
}

// A copy of an adapter that a test damages.
class Copy {
 public:
  explicit Copy(const std::string& adapter = "llama-gqa/rank-8") {
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
      fs::copy_file(fixtures() + "adapters/" + adapter + "/" + file, path(file));
  }
  std::string path(const std::string& file) const { return dir_.path() + "/" + file; }
  void change_config(const std::function<void(Json&)>& change) const {
    Json json = Json::parse(std::ifstream(path("adapter_config.json")));
    change(json);
    std::ofstream(path("adapter_config.json")) << json;
  }
  // The weights' file as text: names in its header may be replaced by others of the same length.
  void change_weights(const std::function<void(std::string&)>& change) const {
    std::ifstream in(path("adapter_model.safetensors"), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    change(bytes);
    std::ofstream(path("adapter_model.safetensors"), std::ios::binary) << bytes;
  }
  // Why it is refused for this model; "": it is not.
  std::string refusal(const std::string& model = "llama-gqa") const {
    const ModelConfig config = load_model_config(fixtures() + "models/" + model).value();
    const Result<LoraAdapter> adapter = LoraAdapter::open(dir_.path(), config);
    const Status status = adapter.ok() ? adapter->check_values() : adapter.status();
    return status.message();
  }

 private:
  TempDir dir_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void replace(std::string& text, const std::string& from, const std::string& to) {
  REQUIRE(from.size() == to.size());
  REQUIRE(has(text, from));
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at)) text.replace(at, from.size(), to);
}

TEST_CASE("FAULTS 36: fields of adapter_config.json that ask for another computation are refused by name") {
  CHECK(Copy().refusal() == "");
  const std::pair<Json, const char*> cases[] = {
      {{{"peft_type", "LOHA"}}, "peft_type LOHA"},
      {{{"use_dora", true}}, "use_dora"},
      {{{"bias", "all"}}, "bias is \"all\""},
      {{{"modules_to_save", {"lm_head"}}}, "modules_to_save"},
      {{{"lora_bias", true}}, "lora_bias"},
      {{{"layer_replication", {{0, 2}}}}, "layer_replication"},
      {{{"init_lora_weights", "pissa_niter_4"}}, "pissa"},
      {{{"rank_pattern", {{".*q_proj", 4}}}}, "regular expression"},
      {{{"rank_pattern", {{"q_proj", 257}}}}, "rank_pattern"},
      {{{"alpha_pattern", {{"q_proj", "x"}}}}, "alpha_pattern"},
      {{{"r", 0}}, "\"r\" is 0"},
      {{{"r", 257}}, "\"r\" is 257"},
      {{{"lora_alpha", "high"}}, "lora_alpha"},
  };
  for (const auto& [fields, message] : cases) {
    const Copy copy;
    copy.change_config([&fields = fields](Json& json) { json.update(fields); });
    const std::string refusal = copy.refusal();
    CAPTURE(refusal);
    CHECK(has(refusal, message));
  }
}

TEST_CASE("FAULTS 36: wrong bases, ranks, tensors and values are refused with the tensor's name") {
  const Copy rank;
  rank.change_config([](Json& json) { json["r"] = 4; });
  CHECK(has(rank.refusal(), "lora_A.weight"));
  CHECK(has(Copy().refusal("llama-headdim"), "lora_A.weight"));  // another base's shapes
  CHECK(has(Copy().refusal("gpt2"), "model.layers.0"));          // another base's modules
  const auto with = [](const std::function<void(std::string&)>& change) {
    const Copy copy;
    copy.change_weights(change);
    return copy.refusal();
  };
  CHECK(has(with([](std::string& s) { replace(s, "layers.1.mlp.up_proj", "layers.7.mlp.up_proj"); }),
            "has 2 layers"));
  CHECK(has(with([](std::string& s) { replace(s, "layers.0.mlp.up_proj", "layers.0.mlp.up_pro!"); }),
            "up_pro!"));
  CHECK(has(with([](std::string& s) { replace(s, "up_proj.lora_B.weight", "up_proj.lora_C.weight"); }), "lora"));
  CHECK(has(with([](std::string& s) { replace(s, "up_proj.lora_B.weight", "up_proj.lora_magnit.e"); }), "lora"));
  CHECK(has(with([](std::string& s) { replace(s, "base_model.model.model.layers", "../../../../etc/passwd.layers"); }),
            "base_model.model."));
  CHECK(has(with([](std::string& s) { s[s.size() - 1] = '\x7f', s[s.size() - 2] = '\xff'; }), "not finite"));
  CHECK(has(with([](std::string& s) { s.resize(s.size() - 100); }), "adapter_model.safetensors"));
  CHECK(has(with([](std::string& s) { s.resize(3); }), "adapter_model.safetensors"));
  const auto place = [](const char* model, const std::string& module) {
    const ModelConfig config = load_model_config(fixtures() + "models/" + model).value();
    return LoraPlaces(config, *find_architecture(config.model_type)).find(module).status().message();
  };
  for (const char* module : {"0.linear_attn.conv1d", "0.linear_attn.in_proj_qkvz", "0.self_attn.q_proj", "1.linear_attn.out_proj"})
    CHECK(has(place("qwen3_5-text", "model.layers." + std::string(module)), "only projections of attention, of recurrent"));
  CHECK(place("qwen3_5-text", "model.language_model.layers.0.linear_attn.in_proj_z") == "");
  CHECK(has(place("qwen3_next", "model.layers.0.mlp.experts.5.up_proj"), "of experts, and routers, are computed"));
  CHECK(has(place("qwen3_next", "model.layers.0.linear_attn.in_proj_z"), "only projections"));
  const Copy missing;
  fs::remove(missing.path("adapter_model.safetensors"));
  CHECK(has(missing.refusal(), "has no adapter_model.safetensors"));
  std::ofstream(missing.path("adapter_model.bin")) << "PK";
  CHECK(has(missing.refusal(), "pickled"));
  fs::remove(missing.path("adapter_config.json"));
  CHECK(has(missing.refusal(), "adapter_config.json"));
}

TEST_CASE("modules of a part that sees are left out, as no text reaches it; an adapter of these alone is refused") {
  const auto write = [](const std::string& dir, const std::vector<std::string>& modules) {
    std::vector<RawTensor> tensors;
    for (const std::string& module : modules)
      for (const auto& [suffix, rows, cols] : {std::tuple(".lora_A.weight", 2, 32), {".lora_B.weight", 64, 2}})
        tensors.push_back({"base_model.model." + module + suffix, "BF16", {rows, cols},
                           std::string(static_cast<size_t>(2 * rows * cols), '\x01')});
    write_file(dir + "/adapter_config.json", R"({"peft_type":"LORA","r":2})");
    write_file(dir + "/adapter_model.safetensors", raw_safetensors(tensors));
  };
  const ModelConfig config = load_model_config(fixtures() + "models/qwen3_5").value();
  const std::string q = "model.language_model.layers.1.self_attn.q_proj", visual = "model.visual.blocks.0.attn.qkv";
  const TempDir dir;
  write(dir.path(), {q, visual});
  const auto adapter = LoraAdapter::open(dir.path(), config);
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  CHECK(adapter->num_modules() == 1);
  CHECK(adapter->num_left_out() == 2);
  CHECK(adapter->num_parameters() == 2 * (32 + 64));
  CHECK(adapter->modules(1, Projection::kQkv).size() == 1);
  CHECK(adapter->modules(1, Projection::kMixedGate).size() == 1);
  write(dir.path(), {visual});
  CHECK(has(LoraAdapter::open(dir.path(), config).status().message(), "which no text reaches"));
}

TEST_CASE("a library finds adapters by name, checks each once, and keeps what is wrong with one") {
  const TempDir dir;
  for (const char* name : {"b", "a"}) {
    fs::create_directory(dir.path() + "/" + name);
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
      fs::copy_file(fixtures() + "adapters/llama-gqa/rank-1/" + file, dir.path() + "/" + name + "/" + file);
  }
  fs::create_directory(dir.path() + "/no-adapter");
  AdapterLibrary library(adapters_below(dir.path()).value(), load_model_config(fixtures() + "models/llama-gqa").value());
  REQUIRE(library.size() == 2);
  CHECK(library.find("a") == 0);
  CHECK(library.find("b") == 1);
  for (const char* name : {"", "c", "no-adapter", "../a", "a/", "./a"}) CHECK(!library.find(name));
  CHECK(library.prepare(0).ok());
  CHECK(library.open(0).value().num_modules() == 4);
  CHECK(library.open(0).value().max_rank() == 1);
  fs::remove(dir.path() + "/b/adapter_model.safetensors");
  const Status first = library.prepare(1);
  CHECK(!first.ok());
  CHECK(library.prepare(1).message() == first.message());
}

// Says that each adapter takes 100 bytes.
class HundredBytes final : public AdapterPacker {
 public:
  int64_t num_bytes(const LoraAdapter&) const override { return 100; }
  std::shared_ptr<const PackedAdapter> pack(const LoraAdapter&) const override {
    return std::make_shared<const PackedAdapter>();
  }
};

TEST_CASE("a pool reads what is wanted, in order, as far as there is room beside what is needed") {
  const TempDir dir;
  for (const char* name : {"0", "1", "2", "3", "4"})
    fs::create_directory_symlink(fixtures() + "adapters/llama-gqa/rank-1", dir.path() + "/" + name);
  const auto library = std::make_shared<AdapterLibrary>(adapters_below(dir.path()).value(),
                                                        load_model_config(fixtures() + "models/llama-gqa").value());
  AdapterPool pool(library, std::make_unique<HundredBytes>(), 250);
  const auto read = [&](int32_t id) {
    while (pool.state(id) == AdapterState::kOnItsWay) pool.wait_for_read(10);
    return pool.state(id) == AdapterState::kReady;
  };
  const auto stop_reading = [&] {
    while (pool.is_reading()) pool.wait_for_read(1);
  };
  for (const int32_t id : {0, 1, 2}) pool.want(id);
  CHECK(read(0));
  CHECK(read(1));
  stop_reading();
  CHECK(pool.state(2) == AdapterState::kOnItsWay);  // 0 and 1 are needed
  pool.want(1);
  pool.release(1);
  stop_reading();
  CHECK(pool.state(2) == AdapterState::kOnItsWay);
  pool.release(0);
  CHECK(read(2));
  CHECK(pool.num_reads() == 3);
  pool.want(0);  // it made room
  pool.want(3);
  stop_reading();
  pool.release(3);
  pool.release(1);
  CHECK(read(0));
  CHECK(pool.num_reads() == 4);
  pool.want(1);
  pool.want(4);
  pool.release(0);
  pool.release(2);
  CHECK(read(1));
  CHECK(read(4));
  CHECK(pool.num_reads() == 6);
  pool.release(1);
  pool.want(1);  // it is still there
  CHECK(pool.state(1) == AdapterState::kReady);
  pool.release(1);
  pool.release(4);
  fs::remove(dir.path() + "/3");
  pool.want(3);
  CHECK_FALSE(read(3));
  CHECK(pool.failure(3).message().find(dir.path() + "/3") != std::string::npos);
  CHECK_THROWS_AS(pool.take(3), std::runtime_error);
  CHECK(pool.take(2) != nullptr);
  CHECK(pool.num_reads() == 7);
}

// By their values, whatever they are stored as.
void check_same(const LoraModule& one, const LoraModule& other) {
  CHECK(one.scale == other.scale);
  CHECK(one.out_column == other.out_column);
  REQUIRE(one.rank() == other.rank());
  REQUIRE(one.b.rows == other.b.rows);
  std::vector<float> x(std::max(one.a.cols, one.rank())), y(x.size());
  for (int64_t r = 0; r < one.rank(); ++r) {
    read_floats(one.a, r, x.data());
    read_floats(other.a, r, y.data());
    CHECK(x == y);
  }
  for (int64_t column = 0; column < one.b.rows; ++column) {
    read_floats(one.b, one.row_of_column(column), x.data());
    read_floats(other.b, other.row_of_column(column), y.data());
    CHECK(std::equal(x.begin(), x.begin() + one.rank(), y.begin()));
  }
}

TEST_CASE("a GGUF adapter has the values of the PEFT adapter that it was made of, in the places that they belong to") {
  for (const char* name : {"llama-gqa/rank-8", "llama-gqa/rank-1", "phi3/rank-8"}) {
    CAPTURE(name);
    const std::string model = std::string(name).substr(0, std::string(name).find('/'));
    std::string file = name;
    file[model.size()] = '.';
    const ModelConfig config = load_model_config(fixtures() + "models/" + model).value();
    const auto peft = LoraAdapter::open(fixtures() + "adapters/" + name, config);
    const auto gguf = LoraAdapter::open(fixtures() + "gguf/adapters/" + file + ".gguf", config);
    REQUIRE_MESSAGE(gguf.ok(), gguf.status().message());
    CHECK(gguf->check_values().ok());
    CHECK(gguf->num_modules() == peft->num_modules());
    for (int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      for (int32_t p = 0; p < kNumProjections; ++p) {
        const auto expected = peft->modules(layer, static_cast<Projection>(p));
        const auto found = gguf->modules(layer, static_cast<Projection>(p));
        REQUIRE(found.size() == expected.size());
        for (const LoraModule& module : found)
          for (const LoraModule& other : expected)
            if (module.out_column == other.out_column) check_same(module, other);
      }
    }
  }
}

TEST_CASE("FAULTS 36: GGUF files that are models, another model's adapters or damaged are refused") {
  const std::string good = fixtures() + "gguf/adapters/llama-gqa.rank-8.gguf";
  const auto refusal = [](const std::string& path, const std::string& model) {
    const Result<LoraAdapter> adapter = LoraAdapter::open(path, load_model_config(fixtures() + "models/" + model).value());
    const Status status = adapter.ok() ? adapter->check_values() : adapter.status();
    return status.message();
  };
  CHECK(refusal(good, "llama-gqa") == "");
  CHECK(has(refusal(good, "qwen3"), "the adapter is for llama"));
  CHECK(has(refusal(good, "llama-headdim"), "has shape"));
  CHECK(has(refusal(fixtures() + "gguf/llama-f32.gguf", "llama-gqa"), "expected \"adapter\""));
  const TempDir dir;
  const auto with = [&](const std::string& from, const std::string& to) {
    std::ifstream in(good, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    replace(bytes, from, to);
    std::ofstream(dir.path() + "/a.gguf", std::ios::binary) << bytes;
    return refusal(dir.path() + "/a.gguf", "llama-gqa");
  };
  CHECK(has(with("blk.1.ffn_up.weight.lora_b", "blk.1.ffn_up.weight.lora_c"), "lora_b is missing"));
  CHECK(has(with("blk.1.ffn_up.", "blk.7.ffn_up."), "blk.7.ffn_up"));
  CHECK(has(with("blk.1.ffn_up.", "blk.1.ffn_xx."), "blk.1.ffn_xx"));
  std::ofstream(dir.path() + "/a.gguf", std::ios::binary) << "GGUF";
  CHECK(refusal(dir.path() + "/a.gguf", "llama-gqa") != "");
}

}  // namespace
}  // namespace llmb::test
