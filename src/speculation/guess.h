// A drafter's expectation of how a sequence goes on.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace llmb {

// Guessed tokens, as a chain or a tree. All arrays, but for empty parents, have one length. A parent stands before
// its children.
struct Guess {
  std::vector<TokenId> tokens;
  std::vector<int32_t> parents;    // a token before it, or -1: the sequence's last one; empty: a chain
  std::vector<double> acceptance;  // probability that it is right where its parent is
  std::vector<int32_t> kinds;      // known to the drafter: by what it learns; >= 0, or UnseenSteps'
  bool is_whole = false;           // a part of it is of no use

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  bool empty() const { return tokens.empty(); }
  int32_t parent(int32_t i) const { return parents.empty() ? i - 1 : parents[i]; }
  void clear();
  // Behind `parent`, a token of the guess or -1. Returns its place.
  int32_t add(TokenId token, int32_t parent, double acceptance, int32_t kind);
  // The child of `parent` that holds `token`; -1: none.
  int32_t find(int32_t parent, TokenId token) const;

  std::vector<int32_t> depths() const;  // [tokens]  0: behind the sequence's last one
  std::vector<double> probabilities() const;  // that a token is right, and all before it on its path
  double expected() const;  // tokens that are accepted, on average

  // Takes out all others. REQUIRES: who is kept has a parent that is kept
  void keep(const std::vector<bool>& is_kept);
  void keep_first(int32_t count);
  // The tokens that are most likely to be accepted.
  void keep_likeliest(int32_t count);
  // Whole paths, the likeliest first: what is accepted of it is in place (core/step_plan.h).
  void put_likeliest_first();
};

// The fate of a guessed token.
enum class Verdict : uint8_t { kUnknown, kWrong, kRight };

}  // namespace llmb
