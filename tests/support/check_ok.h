// For tests' own programs around the engine: a status that must be ok.
#pragma once

#include "base/check.h"
#include "base/status.h"

namespace llmb::test {

// CheckFailure with the status's message.
inline void check_ok(const Status& status) { LLMB_CHECK_MSG(status.ok(), status.message()); }

}  // namespace llmb::test
