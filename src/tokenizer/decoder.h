// Token strings to text: the `decoder` of a tokenizer file, as a chain of steps that pass text on as soon as it is
// final.
//
// Text travels as fragments of tokens. Invariants of a chain:
//  1. What comes out depends on the tokens alone, not on where the stream is cut: decoding at once is the same chain.
//  2. What comes out is valid UTF-8, and no fragment ends inside a character.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace llmb {

// One step with its state. Not thread-safe; made per sequence.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  // A fragment of the current token; is_end: it is the token's last. Both go to the next step through emit().
  virtual void push(std::string_view fragment, bool is_end) = 0;
  // The sequence has ended: flushes what is held, then tells the next step.
  virtual void finish() {
    if (next_ != nullptr) next_->finish();
  }
  void set_next(DecoderStep* next) { next_ = next; }

 protected:
  void emit(std::string_view fragment, bool is_end) { next_->push(fragment, is_end); }

 private:
  DecoderStep* next_ = nullptr;
};

// Makes steps. Immutable and thread-safe.
class DecoderSpec {
 public:
  virtual ~DecoderSpec() = default;
  virtual std::unique_ptr<DecoderStep> make_step() const = 0;
  // The bytes that a token contributes through this step. The flag: it is the first of a text.
  virtual std::string token_bytes(std::string token, bool) const { return token; }
};

class Decoder {
 public:
  // Where `spec` is null tokens are joined with spaces. unsupported names a type that is not built.
  static Result<Decoder> make(const nlohmann::json& spec);

  // The chain's steps in order; the last one passes to `out`, which must outlive them.
  std::vector<std::unique_ptr<DecoderStep>> make_chain(DecoderStep* out) const;

  std::string token_bytes(std::string_view token, bool is_first) const;

 private:
  std::vector<std::unique_ptr<DecoderSpec>> specs_;
};

}  // namespace llmb
