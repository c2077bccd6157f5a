// sentencepiece's precompiled character map: a double-array trie (Darts-clone layout) over UTF-8, whose values are
// offsets into a block of NUL-terminated replacements.
#include <cstring>
#include <vector>

#include "text/unicode.h"
#include "tokenizer/base64.h"
#include "tokenizer/normalizer.h"

namespace llmb {

namespace {

constexpr size_t kMaxReplacementBytes = 256;
constexpr size_t kShortGraphemeBytes = 6;  // longer grapheme clusters are mapped character by character

class Precompiled final : public Normalizer {
 public:
  Precompiled(std::vector<uint32_t> trie, std::string replacements)
      : trie_(std::move(trie)), replacements_(std::move(replacements)) {}

  bool apply(std::string* text, RegexScratch&) const override {
    std::string out;
    out.reserve(text->size());
    const std::string_view in = *text;
    for (size_t pos = 0; pos < in.size();) {
      const size_t end = grapheme_end(in, pos);
      if (end - pos < kShortGraphemeBytes && replace(in.substr(pos, end - pos), &out)) {
        pos = end;
        continue;
      }
      while (pos < end) {
        const size_t n = utf8_length(in[pos]);
        if (!replace(in.substr(pos, n), &out)) out += in.substr(pos, n);
        pos += n;
      }
    }
    *text = std::move(out);
    return false;
  }

 private:
  // Appends the replacement of the shortest prefix of `key` that has one; that prefix stands for all of `key`.
  bool replace(std::string_view key, std::string* out) const {
    if (trie_.empty()) return false;
    size_t node = offset_of(trie_[0]);
    for (const char c : key) {
      const auto label = static_cast<unsigned char>(c);
      if (label == 0) return false;
      node ^= label;
      if (node >= trie_.size()) return false;
      const uint32_t unit = trie_[node];
      if ((unit & 0x800000FFu) != label) return false;
      node ^= offset_of(unit);
      if (node >= trie_.size()) return false;
      if ((unit >> 8 & 1) == 0) continue;
      const size_t at = trie_[node] & 0x7FFFFFFFu;
      if (at >= replacements_.size() || (replacements_[at] & 0xC0) == 0x80) return false;
      const char* replacement = replacements_.c_str() + at;
      const size_t length = strnlen(replacement, kMaxReplacementBytes + 1);
      if (length > kMaxReplacementBytes) return false;
      out->append(replacement, length);
      return true;
    }
    return false;
  }

  static size_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

  std::vector<uint32_t> trie_;
  std::string replacements_;  // valid UTF-8
};

}  // namespace

Result<std::unique_ptr<Normalizer>> make_precompiled_normalizer(std::string_view base64) {
  std::string blob;
  if (!decode_base64(base64, &blob)) return data_loss("normalizer Precompiled: the character map is not base64");
  if (blob.empty()) return std::unique_ptr<Normalizer>(std::make_unique<Precompiled>(std::vector<uint32_t>(), ""));
  uint32_t trie_bytes = 0;
  if (blob.size() >= 4) std::memcpy(&trie_bytes, blob.data(), 4);
  if (blob.size() < 4 || trie_bytes % 4 != 0 || trie_bytes > blob.size() - 4) {
    return data_loss("normalizer Precompiled: the character map is damaged");
  }
  std::vector<uint32_t> trie(trie_bytes / 4);
  std::memcpy(trie.data(), blob.data() + 4, trie_bytes);
  std::string replacements = blob.substr(4 + trie_bytes);
  if (!is_valid_utf8(replacements)) return data_loss("normalizer Precompiled: a replacement is not valid UTF-8");
  return std::unique_ptr<Normalizer>(std::make_unique<Precompiled>(std::move(trie), std::move(replacements)));
}

}  // namespace llmb
