// A line as it was understood, as bytes: for a worker in another process, which makes the same request of it.
#pragma once

#include <string>
#include <string_view>

#include "core/request.h"

namespace llmb {

// All members, the line's place included.
std::string pack_request(const InputRequest& input);
// REQUIRES: bytes of pack_request()
InputRequest unpack_request(std::string_view bytes);

}  // namespace llmb
