// sentencepiece's precompiled character map: a double-array trie (Darts-clone layout) over UTF-8, whose values are
// offsets into a block of NUL-terminated replacements.
#include <cstring>
#include <vector>

#include "text/unicode.h"
#include "base/base64.h"
#include "tokenizer/normalizer.h"

namespace llmb {

namespace {

constexpr size_t kMaxKeyBytes = 256;
constexpr size_t kShortGraphemeBytes = 6;  // longer grapheme clusters are mapped character by character

class Precompiled final : public Normalizer {
 public:
  Precompiled(std::vector<uint32_t> trie, std::string replacements, CharacterMapUse use)
      : trie_(std::move(trie)), replacements_(std::move(replacements)), use_(use) {}

  bool apply(std::string* text, RegexScratch&) const override {
    std::string out;
    out.reserve(text->size());
    if (use_ == CharacterMapUse::kGraphemes) map_graphemes(*text, &out);
    else map_longest(*text, &out);
    *text = std::move(out);
    return false;
  }

 private:
  void map_graphemes(std::string_view in, std::string* out) const {
    for (size_t pos = 0; pos < in.size();) {
      const size_t end = grapheme_end(in, pos);
      if (end - pos < kShortGraphemeBytes && replace(in.substr(pos, end - pos), out)) {
        pos = end;
        continue;
      }
      while (pos < end) {
        const size_t n = utf8_length(in[pos]);
        if (!replace(in.substr(pos, n), out)) *out += in.substr(pos, n);
        pos += n;
      }
    }
  }

  void map_longest(std::string_view in, std::string* out) const {
    for (size_t pos = 0; pos < in.size();) {
      size_t matched = 0;
      const char* longest = nullptr;
      find(in.substr(pos, kMaxKeyBytes), [&](size_t length, const char* replacement) {
        const size_t next = pos + length;
        if (next < in.size() && (in[next] & 0xC0) == 0x80) return true;  // a damaged map: not at a character's end
        matched = length;
        longest = replacement;
        return true;
      });
      if (longest == nullptr) {
        matched = utf8_length(in[pos]);
        *out += in.substr(pos, matched);
      } else {
        *out += longest;
      }
      pos += matched;
    }
  }

  // Appends the replacement of the shortest prefix of `key` that has one; that prefix stands for all of `key`.
  bool replace(std::string_view key, std::string* out) const {
    bool found = false;
    find(key, [&](size_t, const char* replacement) {
      *out += replacement;
      found = true;
      return false;
    });
    return found;
  }

  // Calls visit(length, replacement) for each prefix of `key` that has one, shortest first, as long as it says so.
  template <typename Visit>
  void find(std::string_view key, const Visit& visit) const {
    if (trie_.empty()) return;
    size_t node = offset_of(trie_[0]);
    for (size_t i = 0; i < key.size(); ++i) {
      const auto label = static_cast<unsigned char>(key[i]);
      if (label == 0) return;
      node ^= label;
      if (node >= trie_.size()) return;
      const uint32_t unit = trie_[node];
      if ((unit & 0x800000FFu) != label) return;
      node ^= offset_of(unit);
      if (node >= trie_.size()) return;
      if ((unit >> 8 & 1) == 0) continue;
      const size_t at = trie_[node] & 0x7FFFFFFFu;
      if (at >= replacements_.size() || (replacements_[at] & 0xC0) == 0x80) return;
      const char* replacement = replacements_.c_str() + at;
      if (strnlen(replacement, kMaxReplacementBytes + 1) > kMaxReplacementBytes) return;
      if (!visit(i + 1, replacement)) return;
    }
  }

  static size_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

  std::vector<uint32_t> trie_;
  std::string replacements_;  // valid UTF-8
  CharacterMapUse use_;
};

}  // namespace

Result<std::unique_ptr<Normalizer>> make_precompiled_normalizer(std::string_view base64, CharacterMapUse use) {
  std::string blob;
  if (!decode_base64(base64, &blob)) return data_loss("normalizer Precompiled: the character map is not base64");
  if (blob.empty()) return std::unique_ptr<Normalizer>(std::make_unique<Precompiled>(std::vector<uint32_t>(), "", use));
  uint32_t trie_bytes = 0;
  if (blob.size() >= 4) std::memcpy(&trie_bytes, blob.data(), 4);
  if (blob.size() < 4 || trie_bytes % 4 != 0 || trie_bytes > blob.size() - 4) {
    return data_loss("normalizer Precompiled: the character map is damaged");
  }
  std::vector<uint32_t> trie(trie_bytes / 4);
  std::memcpy(trie.data(), blob.data() + 4, trie_bytes);
  std::string replacements = blob.substr(4 + trie_bytes);
  if (!is_valid_utf8(replacements)) return data_loss("normalizer Precompiled: a replacement is not valid UTF-8");
  return std::unique_ptr<Normalizer>(std::make_unique<Precompiled>(std::move(trie), std::move(replacements), use));
}

}  // namespace llmb
