#include "cli/inspect_command.h"

#include <cstdio>
#include <string>

#include "base/log.h"
#include "cli/exit_code.h"
#include "inspect/adapter_inspector.h"
#include "inspect/model_inspector.h"
#include "model/model_location.h"

namespace llmb {

int inspect_command(const Options& o) {
  const ModelParts whatever = {.config = false, .weights = false, .tokenizer = false};
  const auto locate = [&](const std::string& name) {
    return locate_model(name, o.job.model.revision, whatever, hub_cache_dir());
  };
  std::string base;
  if (!o.job.model.model.empty()) {
    const auto found = locate(o.job.model.model);
    if (!found.ok()) return log_error(found.status().message()), kExitModelRefused;
    base = found->path;
  }
  bool all_run = true;
  for (const std::string& path : o.job.inputs) {
    if (is_adapter(path)) {
      const Status status = inspect_adapter(path, base);
      if (!status.ok()) std::printf("REFUSED       %s\n", escape_control(status.message()).c_str());
      all_run = all_run && status.ok();
      continue;
    }
    const auto found = locate(path);
    if (!found.ok()) return log_error(found.status().message()), kExitModelRefused;
    std::printf("model         %s\n", escape_control(found->path).c_str());
    all_run = inspect_model({found->path, {uint64_t{16} << 30}, /*list_tensors=*/false, {}}) && all_run;
  }
  return all_run ? kExitOk : kExitModelRefused;
}

}  // namespace llmb
