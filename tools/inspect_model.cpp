// Says what a model is and whether it runs, without reading its weights (inspect/model_inspector.h).
//   inspect_model MODEL [--memory 24G] [--tensors] [--adapter DIR]
// MODEL is what llm-batch -m takes. Exit code 0: it runs; 4: it is refused.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "base/log.h"
#include "inspect/model_inspector.h"
#include "model/model_location.h"

constexpr int kExitRefused = 4;

int main(int argc, char** argv) {
  std::string model, revision;
  std::vector<uint64_t> memory;
  bool list_tensors = false;
  std::vector<std::string> adapters;
  CLI::App app("Says what a model is and whether llm-batch runs it; reads no weights.");
  app.add_option("model", model, "Directory, GGUF file, or name in the local Hugging Face cache")->required();
  app.add_option("--revision", revision, "Branch, tag or commit of a model in the cache");
  app.add_option("--memory", memory, "How many tokens of KV cache fit, such as 24G; may be given several times [16G]")
      ->transform(CLI::AsSizeValue(false));
  app.add_flag("--tensors", list_tensors, "List every tensor");
  app.add_option("--adapter", adapters, "LoRA adapter of the model; may be given several times")->allow_extra_args(false);
  CLI11_PARSE(app, argc, argv);
  if (memory.empty()) memory = {uint64_t{16} << 30};
  const llmb::ModelParts whatever = {.config = false, .weights = false, .tokenizer = false};
  const auto location = llmb::locate_model(model, revision, whatever, llmb::hub_cache_dir());
  if (!location.ok()) {
    std::fprintf(stderr, "inspect_model: error: %s\n", llmb::escape_control(location.status().message()).c_str());
    return kExitRefused;
  }
  std::printf("model         %s%s%s\n", location->path.c_str(), location->commit.empty() ? "" : " at ",
              location->commit.substr(0, 12).c_str());
  return llmb::inspect_model({location->path, std::move(memory), list_tensors, std::move(adapters)}) ? 0 : kExitRefused;
}
