#include "tokenizer/decoder_steps.h"

#include <utility>
#include <vector>

#include "text/unicode.h"

namespace llmb {

namespace {

// Base of the steps that change whole tokens: collects fragments up to a token's end.
class WholeTokenStep : public DecoderStep {
 public:
  void push(std::string_view fragment, bool is_end) final {
    token_ += fragment;
    has_token_ = true;
    if (is_end) flush();
  }
  void finish() final {
    if (has_token_) flush();
    end();
    DecoderStep::finish();
  }

 protected:
  virtual void token(std::string token, bool is_first) = 0;
  virtual void end() {}

 private:
  void flush() {
    std::string whole = std::move(token_);
    token_.clear();
    has_token_ = false;
    token(std::move(whole), is_first_);
    is_first_ = false;
  }
  std::string token_;
  bool has_token_ = false;
  bool is_first_ = true;
};

// A spec whose step maps every token by itself. Map: std::string(std::string token, bool is_first) const.
template <typename Map>
class MapSpec final : public DecoderSpec {
 public:
  explicit MapSpec(std::shared_ptr<const Map> map) : map_(std::move(map)) {}
  std::unique_ptr<DecoderStep> make_step() const override { return std::make_unique<Step>(map_); }
  std::string token_bytes(std::string token, bool is_first) const override {
    return (*map_)(std::move(token), is_first);
  }

 private:
  class Step final : public WholeTokenStep {
   public:
    explicit Step(std::shared_ptr<const Map> map) : map_(std::move(map)) {}

   protected:
    void token(std::string t, bool is_first) override { emit((*map_)(std::move(t), is_first), true); }

   private:
    std::shared_ptr<const Map> map_;
  };
  std::shared_ptr<const Map> map_;
};

template <typename Map>
std::unique_ptr<DecoderSpec> make_map(Map map) {
  return std::make_unique<MapSpec<Map>>(std::make_shared<const Map>(std::move(map)));
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t found = text.find(from); found != std::string::npos; found = text.find(from, done)) {
    out.append(text, done, found - done);
    out += to;
    done = found + from.size();
  }
  if (done == 0) return text;
  out.append(text, done, std::string::npos);
  return out;
}

// Replacement of one character: works on fragments as they come.
class ReplaceCharSpec final : public DecoderSpec {
 public:
  ReplaceCharSpec(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  std::unique_ptr<DecoderStep> make_step() const override { return std::make_unique<Step>(*this); }
  std::string token_bytes(std::string token, bool) const override { return replace_all(std::move(token), from_, to_); }

 private:
  class Step final : public DecoderStep {
   public:
    explicit Step(const ReplaceCharSpec& spec) : spec_(spec) {}
    void push(std::string_view fragment, bool is_end) override {
      emit(replace_all(std::string(fragment), spec_.from_, spec_.to_), is_end);
    }

   private:
    const ReplaceCharSpec& spec_;
  };
  std::string from_, to_;
};

// Everything becomes one token.
class FuseSpec final : public DecoderSpec {
 public:
  std::unique_ptr<DecoderStep> make_step() const override { return std::make_unique<Step>(); }

 private:
  class Step final : public DecoderStep {
   public:
    void push(std::string_view fragment, bool) override { emit(fragment, false); }
    void finish() override {
      emit("", true);
      DecoderStep::finish();
    }
  };
};

// Up to `start` and `stop` copies of a character are cut from a token's ends.
class StripSpec final : public DecoderSpec {
 public:
  StripSpec(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  std::unique_ptr<DecoderStep> make_step() const override { return std::make_unique<Step>(*this); }
  std::string token_bytes(std::string token, bool is_first) const override {
    for (size_t i = 0; is_first && i < start_ && token.starts_with(content_); ++i) token.erase(0, content_.size());
    return token;
  }

 private:
  class Step final : public DecoderStep {
   public:
    explicit Step(const StripSpec& spec) : spec_(spec), can_cut_(spec.start_) {}
    void push(std::string_view fragment, bool is_end) override {
      while (can_cut_ > 0 && fragment.starts_with(spec_.content_)) {
        fragment.remove_prefix(spec_.content_.size());
        --can_cut_;
      }
      if (!fragment.empty()) can_cut_ = 0;
      if (spec_.stop_ > 0) {
        hold(fragment, is_end);
      } else {
        emit(fragment, is_end);
      }
      if (is_end) can_cut_ = spec_.start_;
    }

   private:
    // Copies of the character at the end of what has come may be the token's end: up to stop_ of them stay here.
    void hold(std::string_view fragment, bool is_end) {
      held_ += fragment;
      size_t keep = 0, copies = 0;
      while (copies < spec_.stop_ && std::string_view(held_).substr(0, held_.size() - keep).ends_with(spec_.content_)) {
        keep += spec_.content_.size();
        ++copies;
      }
      emit(std::string_view(held_).substr(0, held_.size() - keep), is_end);
      held_.erase(0, is_end ? held_.size() : held_.size() - keep);
    }
    const StripSpec& spec_;
    size_t can_cut_;
    std::string held_;
  };
  std::string content_;
  size_t start_, stop_;
};

// -1 where the token is not <0xNN>.
int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// A run of byte tokens becomes one token where it is valid UTF-8 as a whole, else one U+FFFD per byte.
class ByteFallbackSpec final : public DecoderSpec {
 public:
  std::unique_ptr<DecoderStep> make_step() const override { return std::make_unique<Step>(); }
  std::string token_bytes(std::string token, bool) const override {
    const int byte = byte_of_token(token);
    return byte < 0 ? token : std::string(1, static_cast<char>(byte));
  }

 private:
  class Step final : public WholeTokenStep {
   protected:
    void token(std::string token, bool) override {
      const int byte = byte_of_token(token);
      if (byte >= 0) {
        bytes_ += static_cast<char>(byte);
        return;
      }
      end();
      emit(token, true);
    }
    void end() override {
      if (bytes_.empty()) return;
      if (is_valid_utf8(bytes_)) {
        emit(bytes_, true);
      } else {
        for (size_t i = 0; i < bytes_.size(); ++i) emit(kReplacementUtf8, true);
      }
      bytes_.clear();
    }

   private:
    std::string bytes_;
  };
};

// GPT-2's characters back to bytes; all tokens become one, whose bytes are read as UTF-8 with U+FFFD for what is not.
class ByteLevelSpec final : public DecoderSpec {
 public:
  std::unique_ptr<DecoderStep> make_step() const override { return std::make_unique<Step>(); }
  std::string token_bytes(std::string token, bool) const override { return to_bytes(token); }

 private:
  // A token with a character outside the mapping is taken as it is.
  static std::string to_bytes(const std::string& token) {
    std::string bytes;
    for (size_t pos = 0; pos < token.size();) {
      const int byte = byte_level_byte(next_char(token, &pos));
      if (byte < 0) return token;
      bytes += static_cast<char>(byte);
    }
    return bytes;
  }

  class Step final : public WholeTokenStep {
   protected:
    void token(std::string t, bool) override {
      held_ += to_bytes(t);
      std::string out;
      size_t done = 0;
      while (done < held_.size()) {
        const Utf8Step step = utf8_step(std::string_view(held_).substr(done));
        if (step.kind == Utf8Step::kIncomplete) break;
        if (step.kind == Utf8Step::kValid) out.append(held_, done, step.length);
        else out += kReplacementUtf8;
        done += step.length;
      }
      held_.erase(0, done);
      emit(out, false);
    }
    void end() override { emit(held_.empty() ? std::string_view() : kReplacementUtf8, true); }

   private:
    std::string held_;  // the beginning of a character
  };
};

// A suffix marks the ends of words; the last token's gives no space.
class BpeDecoderSpec final : public DecoderSpec {
 public:
  explicit BpeDecoderSpec(std::string suffix) : suffix_(std::move(suffix)) {}
  std::unique_ptr<DecoderStep> make_step() const override { return std::make_unique<Step>(suffix_); }
  std::string token_bytes(std::string token, bool) const override {
    return replace_all(std::move(token), suffix_, " ");
  }

 private:
  class Step final : public WholeTokenStep {
   public:
    explicit Step(std::string suffix) : suffix_(std::move(suffix)) {}

   protected:
    void token(std::string t, bool) override {
      if (has_held_) emit(replace_all(std::move(held_), suffix_, " "), true);
      held_ = std::move(t);
      has_held_ = true;
    }
    void end() override {
      if (has_held_) emit(replace_all(std::move(held_), suffix_, ""), true);
      has_held_ = false;
    }

   private:
    std::string suffix_, held_;
    bool has_held_ = false;
  };
  std::string suffix_;
};

struct JoinWithSpaces {
  std::string operator()(std::string token, bool is_first) const {
    if (!is_first) token.insert(0, 1, ' ');
    return token;
  }
};

struct MetaspaceMap {
  std::string replacement;
  bool drops_first;
  std::string operator()(std::string token, bool is_first) const {
    return replace_all(std::move(token), replacement, is_first && drops_first ? "" : " ");
  }
};

struct WordPieceMap {
  std::string prefix;
  bool cleanup;
  std::string operator()(std::string token, bool is_first) const {
    if (!is_first) {
      if (token.starts_with(prefix)) token.erase(0, prefix.size());
      else token.insert(0, 1, ' ');
    }
    if (!cleanup) return token;
    constexpr std::pair<const char*, const char*> kRules[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kRules) token = replace_all(std::move(token), from, to);
    return token;
  }
};

struct ReplaceRegexMap {
  std::shared_ptr<const Regex> regex;
  std::string to;
  std::string operator()(std::string token, bool) const {
    RegexScratch scratch;
    std::vector<Span> spans;
    regex->find_all(token, scratch, &spans);
    std::string out;
    for (const Span& s : spans) {
      if (s.is_match) out += to;
      else out.append(token, s.begin, s.end - s.begin);
    }
    return out;
  }
};

struct ReplaceLiteralMap {
  std::string from, to;
  std::string operator()(std::string token, bool) const { return replace_all(std::move(token), from, to); }
};

}  // namespace

DecoderSpecPtr make_byte_level_decoder() { return std::make_unique<ByteLevelSpec>(); }
DecoderSpecPtr make_byte_fallback_decoder() { return std::make_unique<ByteFallbackSpec>(); }
DecoderSpecPtr make_fuse_decoder() { return std::make_unique<FuseSpec>(); }

DecoderSpecPtr make_strip_decoder(std::string content, size_t start, size_t stop) {
  return std::make_unique<StripSpec>(std::move(content), start, stop);
}

DecoderSpecPtr make_bpe_decoder(std::string suffix) { return std::make_unique<BpeDecoderSpec>(std::move(suffix)); }

DecoderSpecPtr make_replace_decoder(std::string from, std::string to) {
  if (utf8_length(from[0]) == from.size()) return std::make_unique<ReplaceCharSpec>(std::move(from), std::move(to));
  return make_map(ReplaceLiteralMap{std::move(from), std::move(to)});
}

DecoderSpecPtr make_replace_decoder(Regex from, std::string to) {
  return make_map(ReplaceRegexMap{std::make_shared<const Regex>(std::move(from)), std::move(to)});
}

DecoderSpecPtr make_metaspace_decoder(std::string replacement, bool drops_first) {
  return make_map(MetaspaceMap{std::move(replacement), drops_first});
}

DecoderSpecPtr make_word_piece_decoder(std::string prefix, bool cleanup) {
  return make_map(WordPieceMap{std::move(prefix), cleanup});
}

DecoderSpecPtr make_join_decoder() { return make_map(JoinWithSpaces{}); }

}  // namespace llmb
