// The contents of a tokenizer file, before anything is built from it. tokenizer.json and older formats become this.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tokenizer/vocab.h"

namespace llmb {

struct AddedToken {
  std::string content;
  int64_t id = -1;  // as the file declares it; -1: the next free one
  bool special = false;
  bool normalized = true;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
};

constexpr size_t kMaxAddedTokenBytes = 1024;

// A rule of BPE: the two parts, as "left right" with the split unknown until the vocabulary is, or as a pair.
struct MergeRule {
  uint32_t offset = 0;  // into TokenizerFile::merge_bytes
  uint32_t length = 0;
  uint32_t left_length = 0;  // of a pair; 0: the text has to be split at a space
};

struct TokenizerFile {
  nlohmann::json normalizer, pre_tokenizer, post_processor, decoder;  // null where absent
  nlohmann::json model;                                               // its settings, without vocab and merges
  Vocab vocab;
  std::vector<double> scores;  // [vocab.size()]  unigram only
  std::string merge_bytes;
  std::vector<MergeRule> merges;  // by rank
  bool has_merges = false;
  std::vector<AddedToken> added_tokens;

  Status add_merge(std::string_view left, std::string_view right);
  Status add_merge_line(std::string_view line);  // "left right"
};

// Parses tokenizer.json in memory of a small multiple of its size; data_loss names what is wrong.
Result<TokenizerFile> parse_tokenizer_json(std::string_view text);

// A small JSON document with bounded depth and number of values. data_loss where it is not one.
Result<nlohmann::json> parse_small_json(std::string_view text);

// The fields of an added token, from tokenizer.json or from tokenizer_config.json's added_tokens_decoder.
Result<AddedToken> read_added_token(const nlohmann::json& value);

// Typed access to the settings of a component: absent or null gives the default, another type is invalid_argument.
Result<bool> json_bool(const nlohmann::json& object, const char* key, bool default_value);
Result<std::string> json_string(const nlohmann::json& object, const char* key, const std::string& default_value);
Result<int64_t> json_int(const nlohmann::json& object, const char* key, int64_t default_value);

}  // namespace llmb
