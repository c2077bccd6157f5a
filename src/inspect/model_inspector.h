// Says what a model is and whether it runs, without reading its weights: architecture, tensors, tokenizer, chat template,
// what will be refused and why, and how many tokens of KV cache fit a given memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llmb {

struct ModelInspection {
  std::string path;              // a folder or a GGUF file
  std::vector<uint64_t> memory;  // for each, how many tokens fit
  bool list_tensors = false;
  std::vector<std::string> adapters;  // folders or GGUF files of adapters of the model
};

// Prints to standard output. False: the model, or one of the adapters, is refused.
bool inspect_model(ModelInspection inspection);

}  // namespace llmb
