// Chooses the backend for a device name: the one place that knows what was built in.
#pragma once

#include <memory>
#include <string_view>

#include "backend/backend.h"
#include "base/status.h"

namespace llmb {

// "auto": the best there is here; "cpu"; "ledger": the test double that computes no model. kUnsupported: a device that
// this build does not have; kInvalidArgument: no such name.
Result<std::unique_ptr<Backend>> make_backend(std::string_view device);

}  // namespace llmb
