#include "cli/adapter_options.h"

#include <CLI/CLI.hpp>
#include <string>

#include "cli/option_values.h"

namespace llmb {

void add_adapter_options(CLI::App& app, Options& o) {
  const std::string group = "LoRA adapters";
  app.add_option("--adapter", o.texts.adapters,
                 "Adapter that lines may name, a folder in PEFT's layout or a GGUF file; may be given several times")
      ->allow_extra_args(false)
      ->group(group)
      ->option_text("NAME=DIR|FILE.gguf");
  app.add_option("--adapter-dir", o.job.model.adapter_dir,
                 "Each folder in DIR is an adapter of its name, and so is each GGUF file")
      ->group(group)
      ->option_text("DIR");
  app.add_option("--default-adapter", o.job.model.default_adapter, "Adapter of lines that name none")
      ->group(group)
      ->option_text("NAME [none]");
  app.add_option("--lora-modules", o.texts.lora_modules, "As vLLM's: the same as --adapter; several may follow it")
      ->allow_extra_args(false)
      ->group(group)
      ->option_text("NAME=DIR...");
  app.add_option("--adapter-memory", o.job.load.adapter_bytes,
                 "Memory for adapters: the next ones are read while rows run, and rows wait where there is no room")
      ->transform(size_validator(int64_t{1} << 40))
      ->group(group)
      ->option_text("SIZE [1G]");
  app.add_option("--merge-adapters", o.job.merges_adapters,
                 "Whether adapters with many rows run with weights merged for them, where that is predicted to cost less; "
                 "their answers then differ by rounding, so it is decided once for all rows and recorded; CPU only")
      ->transform(one_of(std::vector<std::pair<std::string, bool>>{{"never", false}, {"auto", true}}))
      ->group(group)
      ->option_text("never|auto [never]");
  app.add_option("--served-model-name", o.job.model.served_names,
                 "Name of the base model in OpenAI lines, beside that of -m; may be given several times")
      ->allow_extra_args(false)
      ->group(group)
      ->option_text("NAME");
}

}  // namespace llmb
