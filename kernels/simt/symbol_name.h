// The name of a function of this program, for messages about kernels.
#pragma once

#include <string>

namespace llmb::simt {

// Demangled, without parameters; the address in hexadecimal where the symbol table does not say.
std::string symbol_name(const void* function);

}  // namespace llmb::simt
