// An answer that was given, as bytes: kept for rows that ask for the same and come later.
#pragma once

#include <string>
#include <string_view>

#include "core/completion.h"

namespace llmb {

// The part of a completion that does not belong to its line: all but the line, its id, model and fields, and how long it
// took. Tokens are left out that no record shows. REQUIRES: no error
std::string pack_answer(const Completion& completion);
// REQUIRES: bytes of pack_answer()
Completion unpack_answer(std::string_view bytes);

}  // namespace llmb
