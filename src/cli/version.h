#pragma once

namespace llmb {

inline constexpr const char* kVersion = LLMB_VERSION;  // from CMakeLists.txt

}  // namespace llmb
