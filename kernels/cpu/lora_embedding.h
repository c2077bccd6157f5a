// lora of an embedding: out[row, columns] += B t[row] with t[row] = scale * A[token], where A has a row for each token.
// lora_look_up() makes t in place of lora_shrink() (lora.h), lora_expand() adds it.
#pragma once

#include "core/types.h"
#include "kernels/cpu/lora.h"

namespace llmb::cpu {

// Bytes of A, for matrices whose in_features are tokens.
inline int64_t lora_table_bytes(const LoraMatrices& m) { return m.rank * m.in_features * m.element_bytes(); }

// Sets work->t. Each segment has one of the matrices, whose a is a table [in_features, rank].
void lora_look_up(const TokenId* tokens,  // [rows]
                  LoraWork* work);

}  // namespace llmb::cpu
