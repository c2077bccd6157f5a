// Says what a LoRA adapter is: what it was made for, ranks, alphas, targets, every matrix.
#pragma once

#include <string>

#include "base/status.h"

namespace llmb {

// Whether the path is that of a folder or a GGUF file with an adapter, by its config or header.
bool is_adapter(const std::string& path);

// Prints it to standard output. Ok: it can be read, and fits the model, a folder or a GGUF file; model "": any.
Status inspect_adapter(const std::string& path, const std::string& model);

}  // namespace llmb
