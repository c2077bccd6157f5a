// Golden files of tokenizers: one JSON document per line.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

inline std::vector<nlohmann::json> read_jsonl(const std::string& path) {
  std::ifstream in(path);
  REQUIRE_MESSAGE(in.good(), path);
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(nlohmann::json::parse(line));
  REQUIRE(!rows.empty());
  return rows;
}

inline std::unique_ptr<Tokenizer> load_tokenizer(const std::string& dir) {
  auto tokenizer = Tokenizer::load(dir);
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  return std::move(*tokenizer);
}

// The text that push() and finish() give after `context`, one token at a time; each part has to be valid UTF-8 by
// itself, which the JSON writer checks.
inline std::string decode_in_steps(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special,
                                   const std::vector<TokenId>& context = {}) {
  Detokenizer detokenizer(tokenizer, skip_special, context);
  std::string text;
  for (const TokenId id : ids) {
    const std::string part = detokenizer.push(id);
    CHECK_NOTHROW((void)nlohmann::json(part).dump());
    text += part;
  }
  return text + detokenizer.finish();
}

// Writes a file of a model directory that a test makes.
inline void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace llmb
