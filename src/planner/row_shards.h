// Divides the rows of a file into shards, so that rows with a common prefix stay together and each shard has as much
// work. Pure: of the rows alone, never of measured times.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/row_order.h"

namespace llmb {

// Tokens that a row computes where all before it in the trie's order were: its prompt without the shared part, and its
// answer; at least 1.
int64_t tokens_to_compute(const PlannedRow& row, int64_t num_prompt_tokens);

// The shard of each row. The rows stand in the trie's depth-first order, in which the prompt tokens that a row shares
// with any earlier one it shares with the one before it. They are cut where each shard has its part of `costs`, give or
// take 2 %, and there in front of the row that shares least: what it shares is computed on both sides.
std::vector<int32_t> divide_rows(std::span<const PlannedRow> rows, std::span<const int64_t> costs, int32_t num_shards);

}  // namespace llmb
