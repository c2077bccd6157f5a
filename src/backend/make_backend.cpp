#include "backend/make_backend.h"

#include <string>

#include "backend/cpu/cpu_backend.h"
#include "backend/ledger/ledger_backend.h"

namespace llmb {

Result<std::unique_ptr<Backend>> make_backend(std::string_view device) {
  if (device == "auto" || device == "cpu") return make_cpu_backend();
  if (device == "ledger") return make_ledger_backend({});
  if (device == "cuda") return unsupported("device cuda: this build has no CUDA; use --device cpu");
  return invalid_argument("device \"" + std::string(device) + "\" is not known; known: auto, cpu, cuda, ledger");
}

}  // namespace llmb
