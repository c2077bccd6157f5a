// The order in which rows are computed, which changes no byte of any answer.
//
//   file           as they stand
//   prefix         rows that share a prefix follow each other: the trie of their prompts, depth first. An adapter is the first
//                  token of its rows' prompts
//   longest first  by the length of the answer, so that no long one is left alone at the end
//   auto           the trie, depth first, at each of its branches what holds the longest answer first; rows much longer
//                  than others that would end after everything else could come before all
//
// In a depth-first order a prefix is needed by rows that follow each other and then never again. So a pool that holds
// the longest prompt and what the running rows have of their own holds all that can be shared.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/adapter_names.h"
#include "planner/prefix_index.h"

namespace llmb {

enum class Schedule { kAuto, kFile, kPrefix, kLongestFirst };

struct PlannedRow {
  int32_t prompt = 0;           // PrefixIndex's number of the row's prompt; increasing from row to row
  PrefixIndex::Shared shared;   // with an earlier prompt, which need not be among the rows
  int64_t num_output_tokens = 0;  // at most, or as predicted; all choices together
  int32_t adapter = kNoAdapter;
};

// The rows' places in `rows`, in the order in which they are computed. num_slots: rows that run at one time.
std::vector<int32_t> order_rows(Schedule schedule, std::span<const PlannedRow> rows, int32_t num_slots);

}  // namespace llmb
