#include "tokenizer/normalizer.h"

#include <vector>

#include "text/unicode.h"
#include "tokenizer/tokenizer_file.h"

namespace llmb {

namespace {

using nlohmann::json;
using Ptr = std::unique_ptr<Normalizer>;

constexpr int kMaxNormalizerDepth = 8;

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(NormalizationForm form) : form_(form) {}
  bool apply(std::string* text, RegexScratch&) const override {
    bool ascii = true;  // unchanged by every form
    for (const char c : *text) ascii &= static_cast<unsigned char>(c) < 0x80;
    if (!ascii) *text = normalize_unicode(*text, form_);
    return false;
  }

 private:
  NormalizationForm form_;
};

// Calls visit(c, &out) for each character and makes `out` the text. visit returns false where it drops the character.
template <typename Visit>
bool rewrite(std::string* text, const Visit& visit) {
  std::string out;
  out.reserve(text->size());
  bool dropped_first = false;
  for (size_t i = 0; i < text->size();) {
    const bool is_first = i == 0;
    const char32_t c = next_char(*text, &i);
    if (!visit(c, &out)) dropped_first |= is_first;
  }
  *text = std::move(out);
  return dropped_first;
}

class Lowercase final : public Normalizer {
 public:
  bool apply(std::string* text, RegexScratch&) const override {
    return rewrite(text, [](char32_t c, std::string* out) {
      append_lowercase(out, c);
      return true;
    });
  }
};

class StripAccents final : public Normalizer {
 public:
  bool apply(std::string* text, RegexScratch&) const override {
    return rewrite(text, [](char32_t c, std::string* out) {
      if (is_mark(c)) return false;
      append_utf8(out, c);
      return true;
    });
  }
};

// sentencepiece's nmt rules: control characters go, other white space becomes a space.
class Nmt final : public Normalizer {
 public:
  bool apply(std::string* text, RegexScratch&) const override {
    return rewrite(text, [](char32_t c, std::string* out) {
      if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
        return false;
      const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      append_utf8(out, space ? U' ' : c);
      return true;
    });
  }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool apply(std::string* text, RegexScratch&) const override {
    size_t begin = 0, end = text->size();
    while (left_ && begin < end) {
      size_t next = begin;
      if (!is_whitespace(next_char(*text, &next))) break;
      begin = next;
    }
    while (right_ && end > begin) {
      const size_t start = last_char_start(std::string_view(*text).substr(0, end));
      size_t pos = start;
      if (!is_whitespace(next_char(*text, &pos))) break;
      end = start;
    }
    *text = text->substr(begin, end - begin);
    return begin > 0;
  }

 private:
  bool left_, right_;
};

class SentencepieceSpaces final : public Normalizer {
 public:
  bool apply(std::string* text, RegexScratch&) const override {
    constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // ▁
    std::string out;
    out.reserve(text->size());
    bool after_space = true;
    for (const char c : *text) {
      if (c != ' ' || !after_space) out += c;
      after_space = c == ' ';
    }
    while (out.ends_with(' ') || out.ends_with(kSpaceMark))
      out.resize(out.size() - (out.ends_with(' ') ? 1 : kSpaceMark.size()));
    const bool dropped_first = text->starts_with(' ');
    *text = std::move(out);
    return dropped_first;
  }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  bool apply(std::string* text, RegexScratch&) const override {
    if (!text->empty()) text->insert(0, prefix_);
    return false;
  }

 private:
  std::string prefix_;
};

// A literal pattern is searched directly, which is linear and needs no regex.
class ReplaceLiteral final : public Normalizer {
 public:
  ReplaceLiteral(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  bool apply(std::string* text, RegexScratch&) const override {
    size_t found = text->find(from_);
    if (found == std::string::npos) return false;
    const bool dropped_first = found == 0 && to_.empty();
    std::string out;
    out.reserve(text->size() + text->size() / 4);
    size_t done = 0;
    for (; found != std::string::npos; found = text->find(from_, done)) {
      out.append(*text, done, found - done);
      out += to_;
      done = found + from_.size();
    }
    out.append(*text, done, std::string::npos);
    *text = std::move(out);
    return dropped_first;
  }

 private:
  std::string from_, to_;
};

class ReplaceRegex final : public Normalizer {
 public:
  ReplaceRegex(Regex regex, std::string to) : regex_(std::move(regex)), to_(std::move(to)) {}
  bool apply(std::string* text, RegexScratch& scratch) const override {
    std::vector<Span> spans;
    regex_.find_all(*text, scratch, &spans);
    std::string out;
    out.reserve(text->size());
    for (const Span& s : spans) {
      if (s.is_match) out += to_;
      else out.append(*text, s.begin, s.end - s.begin);
    }
    *text = std::move(out);
    return to_.empty() && !spans.empty() && spans[0].is_match && spans[0].end > 0;
  }

 private:
  Regex regex_;
  std::string to_;
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  bool apply(std::string* text, RegexScratch&) const override {
    std::string out;
    out.reserve(text->size() * 2);
    for (const char c : *text) append_utf8(&out, byte_level_char(static_cast<uint8_t>(c)));
    *text = std::move(out);
    return false;
  }
};

bool is_cjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

class Bert final : public Normalizer {
 public:
  Bert(bool clean, bool cjk, bool strip_accents, bool lowercase)
      : clean_(clean), cjk_(cjk), strip_accents_(strip_accents), lowercase_(lowercase) {}

  bool apply(std::string* text, RegexScratch& scratch) const override {
    bool dropped_first = false;
    if (clean_) {
      dropped_first |= rewrite(text, [](char32_t c, std::string* out) {
        const bool white = is_whitespace(c);
        const bool ascii_white = c == '\t' || c == '\n' || c == '\r';
        if (c == 0 || c == kReplacementChar || (!ascii_white && is_control_or_format(c))) return false;
        append_utf8(out, white ? U' ' : c);
        return true;
      });
    }
    if (cjk_) {
      rewrite(text, [](char32_t c, std::string* out) {
        const bool spaced = is_cjk(c);
        if (spaced) *out += ' ';
        append_utf8(out, c);
        if (spaced) *out += ' ';
        return true;
      });
    }
    if (strip_accents_) {
      UnicodeForm(NormalizationForm::kNfd).apply(text, scratch);
      dropped_first |= rewrite(text, [](char32_t c, std::string* out) {
        if (is_nonspacing_mark(c)) return false;
        append_utf8(out, c);
        return true;
      });
    }
    if (lowercase_) Lowercase().apply(text, scratch);
    return dropped_first;
  }

 private:
  bool clean_, cjk_, strip_accents_, lowercase_;
};

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<Ptr> members) : members_(std::move(members)) {}
  bool apply(std::string* text, RegexScratch& scratch) const override {
    bool dropped_first = false;
    for (const Ptr& m : members_) dropped_first |= m->apply(text, scratch);
    return dropped_first;
  }

 private:
  std::vector<Ptr> members_;
};

Result<Ptr> make_replace(const json& spec) {
  LLMB_ASSIGN_OR_RETURN(const auto content, json_string(spec, "content", ""));
  if (content.size() > kMaxReplacementBytes) return unsupported("Replace with a content longer than 256 bytes");
  const json pattern = spec.value("pattern", json());
  if (pattern.is_object() && pattern.contains("String") && pattern["String"].is_string()) {
    const auto from = pattern["String"].get<std::string>();
    if (!from.empty()) return Ptr(std::make_unique<ReplaceLiteral>(from, content));
  }
  LLMB_ASSIGN_OR_RETURN(auto regex, make_pattern(pattern));
  return Ptr(std::make_unique<ReplaceRegex>(std::move(regex), content));
}

Result<Ptr> make_bert(const json& spec) {
  LLMB_ASSIGN_OR_RETURN(const auto clean, json_bool(spec, "clean_text", true));
  LLMB_ASSIGN_OR_RETURN(const auto cjk, json_bool(spec, "handle_chinese_chars", true));
  LLMB_ASSIGN_OR_RETURN(const auto lowercase, json_bool(spec, "lowercase", true));
  LLMB_ASSIGN_OR_RETURN(const auto strip, json_bool(spec, "strip_accents", lowercase));
  return Ptr(std::make_unique<Bert>(clean, cjk, strip, lowercase));
}

Result<Ptr> make(const json& spec, int depth);

Result<Ptr> make_sequence(const json& spec, int depth) {
  if (depth > kMaxNormalizerDepth) return unsupported("normalizers nest too deeply");
  const json members = spec.value("normalizers", json());
  if (!members.is_array()) return data_loss("normalizer Sequence without an array of normalizers");
  std::vector<Ptr> built;
  for (const json& m : members) {
    LLMB_ASSIGN_OR_RETURN(auto normalizer, make(m, depth + 1));
    built.push_back(std::move(normalizer));
  }
  return Ptr(std::make_unique<Sequence>(std::move(built)));
}

Result<Ptr> make(const json& spec, int depth) {
  if (!spec.is_object()) return data_loss("a normalizer is not an object");
  LLMB_ASSIGN_OR_RETURN(const auto type, json_string(spec, "type", ""));
  if (type == "Sequence") return make_sequence(spec, depth);
  if (type == "NFC") return Ptr(std::make_unique<UnicodeForm>(NormalizationForm::kNfc));
  if (type == "NFD") return Ptr(std::make_unique<UnicodeForm>(NormalizationForm::kNfd));
  if (type == "NFKC") return Ptr(std::make_unique<UnicodeForm>(NormalizationForm::kNfkc));
  if (type == "NFKD") return Ptr(std::make_unique<UnicodeForm>(NormalizationForm::kNfkd));
  if (type == "Lowercase") return Ptr(std::make_unique<Lowercase>());
  if (type == "StripAccents") return Ptr(std::make_unique<StripAccents>());
  if (type == "Nmt") return Ptr(std::make_unique<Nmt>());
  if (type == "ByteLevel") return Ptr(std::make_unique<ByteLevelNormalizer>());
  if (type == "Replace") return make_replace(spec);
  if (type == "BertNormalizer") return make_bert(spec);
  if (type == "Strip") {
    LLMB_ASSIGN_OR_RETURN(const auto left, json_bool(spec, "strip_left", true));
    LLMB_ASSIGN_OR_RETURN(const auto right, json_bool(spec, "strip_right", true));
    return Ptr(std::make_unique<Strip>(left, right));
  }
  if (type == "Prepend") {
    LLMB_ASSIGN_OR_RETURN(const auto prefix, json_string(spec, "prepend", ""));
    return Ptr(std::make_unique<Prepend>(prefix));
  }
  if (type == "Precompiled" || type == kSentencepieceMapType) {
    LLMB_ASSIGN_OR_RETURN(const auto charsmap, json_string(spec, "precompiled_charsmap", ""));
    const bool as_hugging_face = type == "Precompiled";
    return make_precompiled_normalizer(
        charsmap, as_hugging_face ? CharacterMapUse::kGraphemes : CharacterMapUse::kLongestMatch);
  }
  if (type == kSentencepieceSpacesType) return Ptr(std::make_unique<SentencepieceSpaces>());
  return unsupported("normalizer \"" + type + "\" is not supported");
}

}  // namespace

Result<std::unique_ptr<Normalizer>> make_normalizer(const json& spec) {
  if (spec.is_null()) return Ptr();
  return make(spec, 0);
}

Result<Regex> make_pattern(const json& pattern) {
  if (pattern.is_object() && pattern.size() == 1) {
    const auto it = pattern.begin();
    if (it->is_string() && it.key() == "String") return Regex::compile_literal(it->get<std::string>());
    if (it->is_string() && it.key() == "Regex") return Regex::compile(it->get<std::string>());
  }
  return data_loss("expected a pattern {\"String\": …} or {\"Regex\": …}");
}

}  // namespace llmb
