// Where a model is on this machine: a directory, a GGUF file, or a name such as "Qwen/Qwen2.5-7B-Instruct" in the local
// Hugging Face cache. Nothing is ever downloaded. Layout of the cache:
// https://huggingface.co/docs/huggingface_hub/guides/manage-cache
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/status.h"

namespace llmb {

// The parts of a cached model that have to be there.
struct ModelParts {
  bool config = true, weights = true, tokenizer = true;
};

struct ModelLocation {
  std::string path;    // a directory in Hugging Face layout, or a GGUF file
  std::string commit;  // of the snapshot, where it came from the cache
};

// An environment variable; nullopt where it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> process_environment(const char* name);

// HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub: the first
// that is set, "~" and "$NAME" in it replaced. An empty variable is as good as none.
std::string hub_cache_dir(const Environment& environment = process_environment);

// A directory or file of that name wins over the cache. `revision`: a branch, a tag or a commit of the cached model;
// "": main. A cached model, or a directory, without config.json is its GGUF file; where it has several, "NAME:PART"
// says which one, by a part of the file's name ("Org/Model-GGUF:Q4_K_M"). kNotFound: it is not there, or not all of it,
// and the message has the command that downloads it. kInvalidArgument: a revision of a directory.
Result<ModelLocation> locate_model(const std::string& name, const std::string& revision, const ModelParts& parts,
                                   const std::string& hub_cache);

}  // namespace llmb
