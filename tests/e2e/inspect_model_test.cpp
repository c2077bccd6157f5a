// tools/inspect_model: what it says of models that run, and of those that are refused.
#include <doctest/doctest.h>

#include <filesystem>

#include "model/config_loader.h"
#include "tests/e2e/run.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

ProcessResult inspect(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), binary_dir() + "/tools/inspect_model");
  return run_process(arguments);
}

void check_says(const ProcessResult& result, const std::string& part) {
  CHECK_MESSAGE(result.out.find(part) != std::string::npos, part << " is not in:\n" << result.out << result.err);
}

}  // namespace

TEST_CASE("a directory that runs") {
  const ProcessResult result = inspect({kModel, "--memory", "1G", "--memory", "1M"});
  CHECK(result.exit_code == 0);
  check_says(result, "architecture  llama\n");
  check_says(result, "hidden 192, 6 heads over 2 KV heads of 32, MLP 512 gated, vocabulary 1536 (tied)");
  check_says(result, "tensors       38, 3.6 MiB: BF16 38");
  check_says(result, "tokenizer     BPE (byte-level), 1536 tokens");
  check_says(result, "template      tools: no; text parts: joined");
  check_says(result, "sampling      greedy; ends at <|end|> 1, <|endoftext|> 0\n");
  check_says(result, "float32: 2048 bytes a token");
  check_says(result, "in 0.0 GiB  0 tokens");
  check_says(result, "runs          yes");
  CHECK(result.out.find("model.norm.weight") == std::string::npos);
  check_says(inspect({kModel, "--tensors"}), "model.norm.weight");
}

TEST_CASE("layers with a state, and layers that are an MLP alone") {
  const ProcessResult result = inspect({source_dir() + "/data/fixtures/models/nemotron_h-experts"});
  check_says(result, "layers        5, 1 with a recurrent state, 3 an MLP alone, 2 with 6 experts (2 of them for a token)\n");
  check_says(result, "positions     128, none in attention\n");
}

TEST_CASE("every architecture that has a golden model, encoders too, is known; only a tokenizer is missing") {
  for (const char* folder : {"models", "encoders", "classifiers", "judges"})
    for (const auto& entry : fs::directory_iterator(source_dir() + "/data/fixtures/" + folder)) {
      const std::string dir = entry.path().string();
      CAPTURE(dir);
      const ProcessResult result = inspect({dir});
      check_says(result, "architecture  " + load_model_config(dir).value().model_type);
      check_says(result, "\ntensors  ");
      const size_t refused = result.out.find("REFUSED  ");
      const bool is_whole = refused == std::string::npos;
      CHECK((is_whole || result.out.compare(refused, 25, "REFUSED       tokenizer: ") == 0));
      CHECK((is_whole || result.out.find("REFUSED  ", refused + 1) == std::string::npos));
      CHECK(is_whole == fs::exists(entry.path() / "tokenizer.json"));
    }
  const std::string fixtures = source_dir() + "/data/fixtures/";
  const ProcessResult headless = inspect({fixtures + "classifiers/llama"});
  check_says(headless, "architecture  llama (--task classify)\n");
  check_says(headless, "note          has no head: it gives vectors or scores, no answers\n");
  check_says(inspect({fixtures + "encoders/bert"}), "architecture  bert, an encoder (--task embed)\n");
  check_says(inspect({fixtures + "judges/modules"}), "architecture  qwen3 (--task classify)\n");
}

TEST_CASE("a layer for multi-token prediction, where the checkpoint has one") {
  const std::string fixtures = source_dir() + "/data/fixtures/";
  check_says(inspect({fixtures + "mtp/deepseek_v3"}), "drafts        layer 2 predicts further tokens (--speculative mtp)\n");
  CHECK(inspect({fixtures + "models/deepseek_v3"}).out.find("drafts ") == std::string::npos);
}

TEST_CASE("an adapter, and one of another model") {
  const std::string fixtures = source_dir() + "/data/fixtures/";
  const ProcessResult fits =
      inspect({fixtures + "models/llama-gqa", "--adapter", fixtures + "adapters/llama-gqa/rank-1"});
  check_says(fits, "adapters/llama-gqa/rank-1: LoRA of rank 1 at most, 4 modules, 224 parameters");
  const ProcessResult other = inspect({fixtures + "models/llama-gqa", "--adapter", fixtures + "adapters/gpt2/rank-16"});
  CHECK(other.exit_code == 4);
  check_says(other, "REFUSED       adapter: ");
}

TEST_CASE("tokens of KV cache are what is left beside the weights, in whole blocks") {
  const ProcessResult result = inspect({source_dir() + "/data/shapes/llama-3.1-8b", "--memory", "16G"});
  // 8.03 G parameters of two bytes; 2 * 32 layers * 8 heads * 128 * 2 bytes a token.
  check_says(result, "bfloat16: 131072 bytes a token, weights 15316.0 MiB");
  check_says(result, "in 16.0 GiB  8544 tokens");
}

TEST_CASE("a name in the cache, and a GGUF file with a model but no tokenizer") {
  const TemporaryDirectory home;
  const fs::path repo = home.file("hub/models--Test--Bundled");
  const std::string commit(40, 'd');
  fs::create_directories(repo / "refs");
  fs::create_directories(repo / "snapshots" / commit);
  write_file((repo / "refs/main").string(), commit);
  for (const auto& entry : fs::directory_iterator(kModel))
    fs::create_symlink(entry.path(), repo / "snapshots" / commit / entry.path().filename());
  const ProcessResult named =
      run_process({"env", "-u", "HF_HUB_CACHE", "-u", "HUGGINGFACE_HUB_CACHE", "HF_HOME=" + home.path(),
                   binary_dir() + "/tools/inspect_model", "Test/Bundled"});
  CHECK(named.exit_code == 0);
  check_says(named, "at dddddddddddd\n");

  const ProcessResult gguf = inspect({source_dir() + "/data/fixtures/gguf/gemma3.gguf"});
  CHECK(gguf.exit_code == 4);
  check_says(gguf, "architecture  gemma3_text");
  check_says(gguf, "7, 6 with a window of 11");
  check_says(gguf, "Q4_0 17");
  check_says(gguf, "REFUSED       tokenizer: ");
  check_says(gguf, "note          weights of few bits stay as they are on a CPU; on a GPU they become bfloat16");
  check_says(gguf, "--gguf-activations int8");
  check_says(inspect({source_dir() + "/data/fixtures/gguf/split-00001-of-00003.gguf"}), "architecture  qwen3");
  const ProcessResult states = inspect({source_dir() + "/data/fixtures/gguf/of_models/qwen35-mtp.gguf"});
  check_says(states, "3, 2 with a recurrent state");
  check_says(states, "drafts        layer 3 predicts further tokens (--speculative mtp)");
  const ProcessResult encoder = inspect({source_dir() + "/data/fixtures/gguf/of_models/bert.gguf"});
  CHECK(encoder.exit_code == 0);
  check_says(encoder, "architecture  bert, an encoder (--task embed)");
  check_says(encoder, "tokenizer     WordPiece, 180 tokens");
  const ProcessResult tensors = inspect({source_dir() + "/data/fixtures/gguf/gemma3.gguf", "--tensors"});
  check_says(tensors, "stays on a CPU, becomes bfloat16 on a GPU\n");
  const ProcessResult gptq = inspect({source_dir() + "/data/fixtures/quantized/gptq-4", "--tensors"});
  check_says(gptq, "model.layers.0.mlp.down_proj.qweight");
  check_says(gptq, "stays on a CPU, becomes F16 on a GPU\n");
  const ProcessResult w8a8 = inspect({source_dir() + "/data/fixtures/quantized/w8a8", "--tensors"});
  check_says(w8a8, "stays on a GPU, and on a CPU that multiplies in float32, else becomes BF16\n");
  check_says(w8a8, "note          weights of few bits stay as they are on a GPU, and on a CPU");
  check_says(inspect({source_dir() + "/data/fixtures/quantized/gptq-8-v2", "--tensors"}),
             "stays on a CPU and on a GPU\n");
  const ProcessResult nvfp4 = inspect({source_dir() + "/data/fixtures/quantized/nvfp4", "--tensors"});
  check_says(nvfp4, "model.layers.1.mlp.down_proj.weight_packed");
  check_says(nvfp4, "stays on a CPU that multiplies in float32, else becomes BF16\n");
  check_says(inspect({source_dir() + "/data/fixtures/quantized/nf4", "--tensors"}),
             "stays on a CPU that multiplies in float32, else becomes the model's dtype\n");
  const ProcessResult sparse = inspect({source_dir() + "/data/fixtures/quantized/sparse24", "--tensors"});
  check_says(sparse, "stays on a GPU, and on a CPU that multiplies in float32, else becomes dense BF16\n");
  check_says(sparse, "note          2:4 sparse weights stay as they are on a GPU, and on a CPU that multiplies in float32");
}

TEST_CASE("llm-batch inspect shows adapters and models, and says whether an adapter fits a model") {
  const std::string fixtures = source_dir() + "/data/fixtures/";
  const auto run = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {kProgram, "inspect"});
    return run_process(arguments);
  };
  const ProcessResult peft = run({fixtures + "adapters/llama-gqa/patterns", "-m", fixtures + "models/llama-gqa"});
  CHECK(peft.exit_code == 0);
  check_says(peft, "LoRA, PEFT\n");
  check_says(peft, "rank          2, 4, 64\n");
  check_says(peft, "alpha         3, 8\n");
  check_says(peft, "targets       down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj\n");
  check_says(peft, "A, of rank 64, scale 0.125\n");
  check_says(peft, "models/llama-gqa: 14 modules\n");
  const ProcessResult gguf = run({fixtures + "gguf/adapters/llama-gqa.rank-8.gguf"});
  CHECK(gguf.exit_code == 0);
  check_says(gguf, "LoRA, GGUF\n");
  check_says(gguf, "made for      llama\n");
  check_says(gguf, "blk.0.attn_q.weight.lora_a");
  check_says(gguf, "A, of rank 8, scale 2\n");
  const ProcessResult other = run({fixtures + "adapters/gpt2/rank-16", "-m", fixtures + "models/llama-gqa"});
  CHECK(other.exit_code == 4);
  check_says(other, "REFUSED       ");
  const ProcessResult model = run({kModel});
  CHECK(model.exit_code == 0);
  check_says(model, "architecture  llama\n");
  CHECK(run({"/nowhere/at/all"}).exit_code == 4);
  CHECK(run({kModel, "--seed", "1"}).exit_code == 2);
}

TEST_CASE("what is refused is said with its reason, and the rest is still shown") {
  const TemporaryDirectory dir;
  const std::string model = dir.file("m");
  fs::copy(kModel, model);
  auto config = nlohmann::json::parse(read_file(model + "/config.json"));
  config["model_type"] = "mamba";
  write_file(model + "/config.json", config.dump());
  write_file(model + "/chat_template.jinja", "{% if %}");
  const ProcessResult result = inspect({model});
  CHECK(result.exit_code == 4);
  check_says(result, "REFUSED       model: ");
  check_says(result, "mamba");
  check_says(result, "REFUSED       chat template: ");
  check_says(result, "tensors       38");
  check_says(result, "tokenizer     BPE");
  CHECK(result.out.find("runs ") == std::string::npos);

  config["model_type"] = "llama";
  config["num_hidden_layers"] = 5;
  write_file(model + "/config.json", config.dump());
  write_file(model + "/chat_template.jinja", "{{ messages | shell }}{{ tools }}{{ enable_thinking }}");
  const ProcessResult missing = inspect({model});
  CHECK(missing.exit_code == 4);
  check_says(missing, "model.layers.4.input_layernorm.weight");

  config["num_hidden_layers"] = 4;
  write_file(model + "/config.json", config.dump());
  write_file(model + "/chat_template.jinja",
             "{{ messages[0].content }}{{ tools }}{% if enable_thinking %}x{% endif %}");
  const ProcessResult runs = inspect({model});
  CHECK(runs.exit_code == 0);
  check_says(runs, "tools: yes; text parts: joined; chat_template_kwargs: enable_thinking");
}

TEST_CASE("no model and no arguments") {
  CHECK(inspect({"/nowhere/at/all"}).exit_code == 4);
  CHECK(inspect({}).exit_code != 0);
  CHECK(inspect({kModel, "--memory", "much"}).exit_code != 0);
}

}  // namespace llmb::test
