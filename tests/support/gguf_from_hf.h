// A Hugging Face tokenizer's files as the values that llama.cpp's converter makes of them.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/process.h"

namespace llmb::test {

struct HfTokenizer {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte
  std::vector<std::string> merges;
};

// tokenizer.json, or vocab.json and merges.txt, or GPT-2's names for these, with tokenizer_config.json's added tokens.
inline HfTokenizer read_hf_tokenizer(const std::string& dir) {
  namespace fs = std::filesystem;
  using nlohmann::json;
  HfTokenizer out;
  json vocab, added = json::array();
  if (fs::exists(dir + "/tokenizer.json")) {
    const json file = json::parse(read_file(dir + "/tokenizer.json"));
    vocab = file["model"]["vocab"];
    added = file["added_tokens"];
    for (const json& rule : file["model"]["merges"])
      out.merges.push_back(rule.is_string() ? rule.get<std::string>()
                                            : rule[0].get<std::string>() + " " + rule[1].get<std::string>());
  } else {
    const bool is_gpt2 = fs::exists(dir + "/encoder.json");
    vocab = json::parse(read_file(dir + (is_gpt2 ? "/encoder.json" : "/vocab.json")));
    std::stringstream lines(read_file(dir + (is_gpt2 ? "/vocab.bpe" : "/merges.txt")));
    for (std::string line; std::getline(lines, line);)
      if (!line.empty() && !line.starts_with("#version")) out.merges.push_back(line);
    if (fs::exists(dir + "/tokenizer_config.json")) {
      const json config = json::parse(read_file(dir + "/tokenizer_config.json"));
      const json named = config.value("added_tokens_decoder", json::object());
      for (const auto& [id, token] : named.items()) {
        added.push_back(token);
        added.back()["id"] = std::stoi(id);
      }
    }
  }
  const auto set = [&](size_t id, const std::string& text, int32_t type) {
    if (out.tokens.size() <= id) out.tokens.resize(id + 1), out.types.resize(id + 1, 1);
    out.tokens[id] = text;
    out.types[id] = type;
  };
  for (const auto& [text, id] : vocab.items())
    set(id.get<size_t>(), text, text.size() == 6 && text.starts_with("<0x") && text.ends_with(">") ? 6 : 1);
  for (const json& token : added)
    set(token["id"].get<size_t>(), token["content"].get<std::string>(), token.value("special", false) ? 3 : 4);
  return out;
}

inline void add_byte_level_tokenizer(GgufWriter* w, const HfTokenizer& tokenizer, const std::string& pre) {
  w->text("tokenizer.ggml.model", "gpt2");
  if (!pre.empty()) w->text("tokenizer.ggml.pre", pre);
  w->texts("tokenizer.ggml.tokens", tokenizer.tokens);
  w->ints("tokenizer.ggml.token_type", tokenizer.types);
  w->texts("tokenizer.ggml.merges", tokenizer.merges);
}

// Scores fall in the order of the merges that make the pieces, as sentencepiece has them.
inline void add_spm_tokenizer(GgufWriter* w, HfTokenizer tokenizer) {
  std::map<std::string, float> rank;
  for (size_t i = 0; i < tokenizer.merges.size(); ++i) {
    std::string joined = tokenizer.merges[i];
    joined.erase(joined.find(' '), 1);
    rank.try_emplace(joined, -static_cast<float>(i));
  }
  std::vector<float> scores;
  for (size_t id = 0; id < tokenizer.tokens.size(); ++id) {
    const auto found = rank.find(tokenizer.tokens[id]);
    scores.push_back(found != rank.end() ? found->second : -1e6f);
  }
  tokenizer.types[0] = 2;
  w->text("tokenizer.ggml.model", "llama");
  w->texts("tokenizer.ggml.tokens", tokenizer.tokens);
  w->floats("tokenizer.ggml.scores", scores);
  w->ints("tokenizer.ggml.token_type", tokenizer.types);
  w->u32("tokenizer.ggml.bos_token_id", 1);
  w->u32("tokenizer.ggml.eos_token_id", 2);
  w->u32("tokenizer.ggml.unknown_token_id", 0);
}

}  // namespace llmb::test
