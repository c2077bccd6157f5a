// The backend that computes on the host's cores. Results are bit-identical whatever the batch, the chunking and the
// number of threads.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace llmb {

std::unique_ptr<Backend> make_cpu_backend();

}  // namespace llmb
