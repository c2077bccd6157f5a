#include "tokenizer/token_bound.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "text/unicode.h"

namespace llmb {

namespace {

using nlohmann::json;

json type_of(const json& spec) { return spec.value("type", json()); }

// Calls f for the component, or for each member of a Sequence; false where f is for one of them.
template <typename F>
bool holds_for_all(const json& spec, const char* members, const F& f) {
  if (spec.is_null()) return true;
  if (!spec.is_object()) return false;
  if (type_of(spec) != "Sequence") return f(spec);
  const auto list = spec.find(members);
  return list != spec.end() && list->is_array() &&
         std::all_of(list->begin(), list->end(), [&](const json& m) { return m.is_object() && f(m); });
}

// The factor by which a normalizer may shorten a text; 0: not known. NFC turns at most seven bytes into two: U+1FBE and
// two marks become U+0390.
size_t shrinking(const json& normalizer) {
  size_t factor = 1;
  const bool is_known = holds_for_all(normalizer, "normalizers", [&](const json& n) {
    const json type = type_of(n);
    if (type == "NFC") factor *= 4;
    if (type == "NFC" || type == "Prepend") return true;
    const json pattern = n.value("pattern", json()), content = n.value("content", json());
    return type == "Replace" && pattern.is_object() && pattern.contains("String") && pattern["String"].is_string() &&
           content.is_string() &&
           content.get_ref<const std::string&>().size() >= pattern["String"].get_ref<const std::string&>().size();
  });
  return is_known ? factor : 0;
}

bool keeps_text(const json& pre_tokenizer) {
  return holds_for_all(pre_tokenizer, "pretokenizers", [](const json& p) {
    const json type = type_of(p);
    if (type == "ByteLevel" || type == "Digits" || type == "Metaspace") return true;
    const json behavior = p.value("behavior", json());
    return (type == "Split" || type == "Punctuation") && behavior != "Removed" && behavior != "removed";
  });
}

bool maps_bytes(const json& pre_tokenizer) {
  bool found = false;
  holds_for_all(pre_tokenizer, "pretokenizers", [&](const json& p) {
    found |= type_of(p) == "ByteLevel";
    return true;
  });
  return found;
}

bool has_every_byte(const TokenizerFile& file, const Vocab& vocab) {
  const bool is_mapped = maps_bytes(file.pre_tokenizer);
  if (!is_mapped && file.model.value("byte_fallback", json()) != true) return false;
  for (int b = 0; b < 256; ++b) {
    std::string token;
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    if (is_mapped) append_utf8(&token, byte_level_char(static_cast<uint8_t>(b)));
    else token = name;
    if (!vocab.find(token)) return false;
  }
  return true;
}

}  // namespace

TokenBound TokenBound::make(const TokenizerFile& file, const Vocab& vocab, const AddedVocabulary& added) {
  TokenBound bound;
  if (!file.model.is_object()) return bound;
  const json type = file.model.value("type", json("BPE"));
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json value = file.model.value(affix, json());
    if (!value.is_null() && value != "") return bound;
  }
  const size_t factor = shrinking(file.normalizer);
  if ((type != "BPE" && type != "Unigram") || factor == 0 || !keeps_text(file.pre_tokenizer) ||
      !has_every_byte(file, vocab))
    return bound;
  size_t longest = 1;  // GPT-2's characters are at least as many bytes as they stand for
  for (TokenId id = 0; id < vocab.size(); ++id) longest = std::max(longest, vocab.text(id).size());
  for (TokenId id = 0; id < added.end_id(); ++id) {
    const AddedToken* token = added.find(id);
    if (token == nullptr) continue;
    longest = std::max(longest, token->content.size());
    bound.skips_spaces_ |= token->lstrip || token->rstrip;
  }
  bound.max_bytes_ = longest * factor;
  return bound;
}

size_t TokenBound::at_least(std::string_view text) const {
  if (max_bytes_ == 0) return 0;
  size_t num_bytes = text.size();
  if (skips_spaces_ && is_valid_utf8(text)) {
    num_bytes = 0;
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      if (!is_whitespace(next_char(text, &pos))) num_bytes += pos - begin;
    }
  } else if (skips_spaces_) {
    num_bytes = 0;
  }
  return (num_bytes + max_bytes_ - 1) / max_bytes_;
}

}  // namespace llmb
