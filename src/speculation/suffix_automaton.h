// The suffix automaton of a text of tokens that grows at its end (Blumer et al. 1985): finds the longest end of a text
// that occurs in it before, or anywhere in another text, in amortised constant time for each token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/types.h"

namespace llmb {

// Not thread-safe. A token is any number but kTextEnd. At most 2^29 tokens. Memory: num_bytes(), 50 to 64 bytes a
// token.
class SuffixAutomaton {
 public:
  // Stands between texts that have nothing to do with each other: nothing is found across it.
  static constexpr TokenId kTextEnd = -1;

  SuffixAutomaton();

  void append(TokenId token);

  int32_t size() const { return static_cast<int32_t>(text_.size()); }
  std::span<const TokenId> text() const { return text_; }
  int64_t num_bytes() const;

  // Where tokens stand in the text: text()[end - length, end).
  struct Match {
    int32_t length = 0;  // 0: nowhere
    int32_t end = 0;
  };
  // The longest end of the text that occurs in it before, at one of its newest places.
  Match repeated_end() const { return repeated_end_; }

  // Follows a text token by token: its longest end that occurs in the automaton's text. Stays valid while that grows.
  class Cursor {
   public:
    void advance(const SuffixAutomaton& automaton, TokenId token);
    Match match(const SuffixAutomaton& automaton) const;

   private:
    int32_t state_ = 0, length_ = 0;
  };

  // Appends up to `count` tokens that stood behind a match of the text's own end; where they reach the end of the text
  // they begin again behind the match. Stops at a kTextEnd.
  void continue_match(Match match, int32_t count, std::vector<TokenId>* out) const;

 private:
  // A set of ends: all substrings that occur at exactly these, the longest of them `length` long.
  struct State {
    int32_t length = 0;
    int32_t link = -1;    // the state of the longest end that occurs at more places
    int32_t newest = 0;   // one of the ends
    TokenId token = 0;    // of the first transition
    int32_t target = -1;  // of the first transition; -1: there is none
    int32_t more = -1;    // further transitions: a list in edges_
  };
  struct Edge {
    int32_t state, target, next;
    TokenId token;
  };

  int32_t* find(int32_t state, TokenId token);
  int32_t target(int32_t state, TokenId token) const {
    const int32_t* found = const_cast<SuffixAutomaton*>(this)->find(state, token);
    return found ? *found : -1;
  }
  void add_transition(int32_t state, TokenId token, int32_t to);
  int32_t split(int32_t from, int32_t state, TokenId token);
  size_t bucket(int32_t state, TokenId token) const;
  void insert_edge(int32_t edge);

  std::vector<TokenId> text_;
  std::vector<State> states_;   // 0: the empty text
  std::vector<Edge> edges_;     // transitions but the first of each state
  std::vector<int32_t> table_;  // open addressing over edges_; -1: free
  int32_t last_ = 0;            // the state of the whole text
  Match repeated_end_;
};

}  // namespace llmb
