// The form that an answer must have, seen token by token. Matchers live in grammar; schedulers and engines know this.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/types.h"

namespace llmb {

// How far one answer has come. Driven by one thread.
class ConstraintState {
 public:
  virtual ~ConstraintState() = default;

  // The tokens that may come next: token t is bit t % 32 of word t / 32. Those that end a sequence are among them
  // exactly where the answer is complete. All zero: no token of the vocabulary goes on. Valid until advance().
  virtual std::span<const uint32_t> allowed() = 0;

  // REQUIRES: the token is allowed.
  virtual void advance(TokenId token) = 0;

  // Another answer that has come as far.
  virtual std::unique_ptr<ConstraintState> clone() const = 0;
};

// Immutable and thread-safe.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  virtual std::unique_ptr<ConstraintState> start() const = 0;
  virtual size_t num_bytes() const = 0;  // of memory, about, before the first answer
};

}  // namespace llmb
