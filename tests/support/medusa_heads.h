// Medusa heads that are made here: all weights are set, none is trained.
#pragma once

#include <cstdint>
#include <string>

namespace llmb::test {

// Heads with one block each, all of whose weights are alike, in folder `dir`. `prefix`: of all names.
void write_medusa_heads(const std::string& dir, int32_t num_heads, int64_t hidden_size, int64_t vocab_size,
                        const std::string& prefix = "");
// Three that give what the model's own head does, which stands in `model_dir`.
void write_heads_of_model(const std::string& dir, const std::string& model_dir);

// A folder of three heads for the bundled model. Each says again what the model says of the next token, which now and
// then is right of a later one. It is there until the process ends.
const std::string& bundled_medusa_heads();

}  // namespace llmb::test
