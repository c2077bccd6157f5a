// The parts of a sentencepiece model, wherever it is stored: tokenizer.model, or the values of a GGUF file.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/tokenizer_state.h"

namespace llmb {

// Numbers of sentencepiece_model.proto; GGUF has the same.
enum PieceKind { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct Piece {
  std::string_view text;
  float score = 0;
  uint64_t kind = kNormal;
};

struct SpmModel {
  std::vector<Piece> pieces;
  uint64_t model_type = 1;  // 1 unigram, 2 BPE
  bool byte_fallback = false;
  int64_t unk_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;
  std::string_view charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
};

// The same as tokenizer.json would hold. Sets the special tokens that `config` does not name.
Result<TokenizerFile> build_sentencepiece(const SpmModel& model, TokenizerConfig* config);

}  // namespace llmb
