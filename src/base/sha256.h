// SHA-256, as specified in FIPS 180-4: for what must not be mistaken for something else, even where somebody tries.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace llmb {

using Sha256Digest = std::array<uint64_t, 4>;  // the first byte of the digest is the highest of the first word

// The processor computes it with instructions of its own.
bool has_sha_instructions();

// uses_instructions: only where has_sha_instructions(); the digest is the same.
Sha256Digest sha256(std::string_view bytes, bool uses_instructions = has_sha_instructions());

}  // namespace llmb
