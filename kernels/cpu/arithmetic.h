// Which class of arithmetic (core/arithmetic.h) the kernels compute in: one for the whole process.
#pragma once

#include "core/arithmetic.h"

namespace llmb::cpu {

bool can_compute(Arithmetic arithmetic);  // on this processor

// The fastest here, where products of bf16 weights by rounded activations matter, and where they do not.
Arithmetic fastest_arithmetic(bool has_bf16_products);

// REQUIRES: can_compute(arithmetic), and nothing that is packed or computed is in use. Before the first call it is
// fastest_arithmetic(true). The class decides what targets kernels run on, and what form rounded activations have.
void set_arithmetic(Arithmetic arithmetic);
Arithmetic arithmetic();

}  // namespace llmb::cpu
