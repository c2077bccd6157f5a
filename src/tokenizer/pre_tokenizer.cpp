#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "text/unicode.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/tokenizer_file.h"

namespace llmb {

namespace {

using nlohmann::json;
using Stages = std::vector<std::unique_ptr<PreTokenizerStage>>;
using Scratch = PreTokenizerScratch;

constexpr size_t kMaxStages = 64;
constexpr const char* kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// Turns matches and what lies between them into pieces; dropped ones keep is_match.
void apply_behavior(SplitBehavior behavior, std::vector<Span>* spans) {
  if (behavior == SplitBehavior::kRemoved) return;
  if (behavior == SplitBehavior::kIsolated) {
    for (Span& s : *spans) s.is_match = false;
    return;
  }
  if (behavior == SplitBehavior::kMergedWithNext) std::reverse(spans->begin(), spans->end());
  size_t kept = 0;
  bool previous_match = false;
  for (const Span s : *spans) {
    const bool joins =
        behavior == SplitBehavior::kContiguous ? s.is_match == previous_match : s.is_match && !previous_match;
    if (joins && kept > 0) {
      Span& last = (*spans)[kept - 1];
      if (behavior == SplitBehavior::kMergedWithNext) last.begin = s.begin;
      else last.end = s.end;
    } else {
      (*spans)[kept++] = {s.begin, s.end, false};
    }
    previous_match = s.is_match;
  }
  spans->resize(kept);
  if (behavior == SplitBehavior::kMergedWithNext) std::reverse(spans->begin(), spans->end());
}

// Every character with the property is a match of its own.
template <typename Predicate>
void match_chars(std::string_view text, const Predicate& is_match, std::vector<Span>* spans) {
  spans->clear();
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    if (!is_match(next_char(text, &i))) continue;
    if (done < begin) spans->push_back({done, begin, false});
    spans->push_back({begin, i, true});
    done = i;
  }
  if (done < text.size()) spans->push_back({done, text.size(), false});
}

class SplitStage final : public PreTokenizerStage {
 public:
  SplitStage(Regex regex, SplitBehavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}
  std::string_view run(std::string_view piece, bool, size_t index, Scratch& scratch) const override {
    std::vector<Span>& spans = scratch.stages[index].spans;
    regex_.find_all(piece, scratch.regex, &spans);
    if (invert_) {
      for (Span& s : spans) s.is_match = !s.is_match;
    }
    apply_behavior(behavior_, &spans);
    return piece;
  }

 private:
  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

class CharStage final : public PreTokenizerStage {
 public:
  using Predicate = bool (*)(char32_t);
  CharStage(Predicate predicate, SplitBehavior behavior) : predicate_(predicate), behavior_(behavior) {}
  std::string_view run(std::string_view piece, bool, size_t index, Scratch& scratch) const override {
    match_chars(piece, predicate_, &scratch.stages[index].spans);
    apply_behavior(behavior_, &scratch.stages[index].spans);
    return piece;
  }

 private:
  Predicate predicate_;
  SplitBehavior behavior_;
};

class DelimiterStage final : public PreTokenizerStage {
 public:
  explicit DelimiterStage(char32_t delimiter) : delimiter_(delimiter) {}
  std::string_view run(std::string_view piece, bool, size_t index, Scratch& scratch) const override {
    match_chars(
        piece, [this](char32_t c) { return c == delimiter_; }, &scratch.stages[index].spans);
    return piece;
  }

 private:
  char32_t delimiter_;
};

// Runs of word characters and runs of other visible characters: \w+|[^\w\s]+
class WhitespaceStage final : public PreTokenizerStage {
 public:
  std::string_view run(std::string_view piece, bool, size_t index, Scratch& scratch) const override {
    std::vector<Span>& spans = scratch.stages[index].spans;
    spans.clear();
    int previous = -1;
    for (size_t i = 0; i < piece.size();) {
      const size_t begin = i;
      const char32_t c = next_char(piece, &i);
      const int kind = is_word_char(c) ? 0 : is_whitespace(c) ? 1 : 2;
      if (kind == previous) spans.back().end = i;
      else spans.push_back({begin, i, kind == 1});
      previous = kind;
    }
    return piece;
  }
};

class FixedLengthStage final : public PreTokenizerStage {
 public:
  explicit FixedLengthStage(size_t length) : length_(length) {}
  std::string_view run(std::string_view piece, bool, size_t index, Scratch& scratch) const override {
    std::vector<Span>& spans = scratch.stages[index].spans;
    spans.clear();
    size_t in_piece = length_;
    for (size_t i = 0; i < piece.size(); ++in_piece) {
      const size_t begin = i;
      next_char(piece, &i);
      if (in_piece == length_) {
        spans.push_back({begin, i, false});
        in_piece = 0;
      } else {
        spans.back().end = i;
      }
    }
    return piece;
  }

 private:
  size_t length_;
};

class MetaspaceStage final : public PreTokenizerStage {
 public:
  enum Scheme { kFirst, kNever, kAlways };
  MetaspaceStage(char32_t replacement, Scheme scheme, bool split) : scheme_(scheme), split_(split) {
    append_utf8(&replacement_, replacement);
    char_ = replacement;
  }
  std::string_view run(std::string_view piece, bool at_start, size_t index, Scratch& scratch) const override {
    std::string& text = scratch.stages[index].text;
    text.clear();
    const bool has_mark = piece.starts_with(' ') || piece.starts_with(replacement_);
    if (!has_mark && (scheme_ == kAlways || (scheme_ == kFirst && at_start))) text += replacement_;
    for (const char c : piece) {
      if (c == ' ') text += replacement_;
      else text += c;
    }
    std::vector<Span>& spans = scratch.stages[index].spans;
    if (split_) {
      match_chars(
          text, [this](char32_t c) { return c == char_; }, &spans);
      apply_behavior(SplitBehavior::kMergedWithNext, &spans);
    } else {
      spans.assign(1, {0, text.size(), false});
    }
    return text;
  }

 private:
  std::string replacement_;
  char32_t char_ = 0;
  Scheme scheme_;
  bool split_;
};

// The cutting half of ByteLevel; ByteMapStage is the other.
class ByteLevelStage final : public PreTokenizerStage {
 public:
  ByteLevelStage(std::optional<Regex> regex, bool add_prefix_space)
      : regex_(std::move(regex)), add_prefix_space_(add_prefix_space) {}
  std::string_view run(std::string_view piece, bool, size_t index, Scratch& scratch) const override {
    Scratch::Stage& stage = scratch.stages[index];
    if (add_prefix_space_ && !piece.starts_with(' ')) {
      stage.text.assign(1, ' ').append(piece);
      piece = stage.text;
    }
    if (regex_) {
      regex_->find_all(piece, scratch.regex, &stage.spans);
      apply_behavior(SplitBehavior::kIsolated, &stage.spans);
    } else {
      stage.spans.assign(1, {0, piece.size(), false});
    }
    return piece;
  }

 private:
  std::optional<Regex> regex_;
  bool add_prefix_space_;
};

class ByteMapStage final : public PreTokenizerStage {
 public:
  std::string_view run(std::string_view piece, bool, size_t index, Scratch& scratch) const override {
    Scratch::Stage& stage = scratch.stages[index];
    stage.text.clear();
    for (const char c : piece) append_utf8(&stage.text, byte_level_char(static_cast<uint8_t>(c)));
    stage.spans.assign(1, {0, stage.text.size(), false});
    return stage.text;
  }
};

bool is_byte_map(const PreTokenizerStage* stage) { return dynamic_cast<const ByteMapStage*>(stage) != nullptr; }

Result<SplitBehavior> read_behavior(const json& spec, SplitBehavior default_value) {
  LLMB_ASSIGN_OR_RETURN(const auto name, json_string(spec, "behavior", ""));
  std::string key;
  for (const char c : name) {
    if (c != '_') key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (key.empty()) return default_value;
  if (key == "removed") return SplitBehavior::kRemoved;
  if (key == "isolated") return SplitBehavior::kIsolated;
  if (key == "mergedwithprevious") return SplitBehavior::kMergedWithPrevious;
  if (key == "mergedwithnext") return SplitBehavior::kMergedWithNext;
  if (key == "contiguous") return SplitBehavior::kContiguous;
  return unsupported("split behavior \"" + name + "\" is not supported");
}

Status add_metaspace(const json& spec, Stages* stages) {
  LLMB_ASSIGN_OR_RETURN(const auto replacement, json_string(spec, "replacement", "\xE2\x96\x81"));
  LLMB_ASSIGN_OR_RETURN(const auto scheme_name, json_string(spec, "prepend_scheme", "always"));
  LLMB_ASSIGN_OR_RETURN(const auto prefix_space, json_bool(spec, "add_prefix_space", true));
  LLMB_ASSIGN_OR_RETURN(const auto split, json_bool(spec, "split", true));
  if (replacement.empty() || utf8_length(replacement[0]) != replacement.size()) {
    return data_loss("pre_tokenizer Metaspace: \"replacement\" is not one character");
  }
  auto scheme = MetaspaceStage::kAlways;
  if (!prefix_space || scheme_name == "never") scheme = MetaspaceStage::kNever;
  else if (scheme_name == "first") scheme = MetaspaceStage::kFirst;
  else if (scheme_name != "always")
    return unsupported("Metaspace prepend_scheme \"" + scheme_name + "\" is not supported");
  size_t pos = 0;
  stages->push_back(std::make_unique<MetaspaceStage>(next_char(replacement, &pos), scheme, split));
  return {};
}

Status add_byte_level(const json& spec, Stages* stages) {
  LLMB_ASSIGN_OR_RETURN(const auto prefix_space, json_bool(spec, "add_prefix_space", true));
  LLMB_ASSIGN_OR_RETURN(const auto use_regex, json_bool(spec, "use_regex", true));
  std::optional<Regex> regex;
  if (use_regex) {
    LLMB_ASSIGN_OR_RETURN(regex, Regex::compile(kGpt2Pattern));
  }
  if (regex || prefix_space) stages->push_back(std::make_unique<ByteLevelStage>(std::move(regex), prefix_space));
  stages->push_back(std::make_unique<ByteMapStage>());
  return {};
}

Status add_split(const json& spec, Stages* stages) {
  auto regex = make_pattern(spec.value("pattern", json()));
  if (!regex.ok()) return regex.status().with_context("pre_tokenizer Split");
  LLMB_ASSIGN_OR_RETURN(const auto behavior, read_behavior(spec, SplitBehavior::kIsolated));
  LLMB_ASSIGN_OR_RETURN(const auto invert, json_bool(spec, "invert", false));
  stages->push_back(std::make_unique<SplitStage>(std::move(*regex), behavior, invert));
  return {};
}

Status add_stages(const json& spec, int depth, Stages* stages);

Status add_sequence(const json& spec, int depth, Stages* stages) {
  const json members = spec.value("pretokenizers", json());
  if (!members.is_array()) return data_loss("pre_tokenizer Sequence without an array of pretokenizers");
  for (const json& m : members) LLMB_RETURN_IF_ERROR(add_stages(m, depth + 1, stages));
  return {};
}

Status add_stages(const json& spec, int depth, Stages* stages) {
  if (depth > 8 || stages->size() > kMaxStages) return unsupported("too many pre-tokenizers");
  if (!spec.is_object()) return data_loss("a pre_tokenizer is not an object");
  LLMB_ASSIGN_OR_RETURN(const auto type, json_string(spec, "type", ""));
  if (type == "Sequence") return add_sequence(spec, depth, stages);
  if (type == "ByteLevel") return add_byte_level(spec, stages);
  if (type == "Split") return add_split(spec, stages);
  if (type == "Metaspace") return add_metaspace(spec, stages);
  if (type == "Whitespace") {
    stages->push_back(std::make_unique<WhitespaceStage>());
  } else if (type == "WhitespaceSplit") {
    stages->push_back(std::make_unique<CharStage>(is_whitespace, SplitBehavior::kRemoved));
  } else if (type == "BertPreTokenizer") {
    stages->push_back(std::make_unique<CharStage>(is_whitespace, SplitBehavior::kRemoved));
    stages->push_back(std::make_unique<CharStage>(is_punctuation, SplitBehavior::kIsolated));
  } else if (type == "Punctuation") {
    LLMB_ASSIGN_OR_RETURN(const auto behavior, read_behavior(spec, SplitBehavior::kIsolated));
    stages->push_back(std::make_unique<CharStage>(is_punctuation, behavior));
  } else if (type == "Digits") {
    LLMB_ASSIGN_OR_RETURN(const auto individual, json_bool(spec, "individual_digits", false));
    const auto behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    stages->push_back(std::make_unique<CharStage>(is_numeric, behavior));
  } else if (type == "CharDelimiterSplit") {
    LLMB_ASSIGN_OR_RETURN(const auto delimiter, json_string(spec, "delimiter", ""));
    if (delimiter.empty()) return data_loss("pre_tokenizer CharDelimiterSplit without a delimiter");
    size_t pos = 0;
    stages->push_back(std::make_unique<DelimiterStage>(next_char(delimiter, &pos)));
  } else if (type == "FixedLength") {
    LLMB_ASSIGN_OR_RETURN(const auto length, json_int(spec, "length", 5));
    if (length < 1) return data_loss("pre_tokenizer FixedLength: \"length\" is less than 1");
    stages->push_back(std::make_unique<FixedLengthStage>(static_cast<size_t>(length)));
  } else {
    return unsupported("pre_tokenizer \"" + type + "\" is not supported");
  }
  return {};
}

}  // namespace

Result<PreTokenizer> PreTokenizer::make(const json& spec) {
  PreTokenizer result;
  if (spec.is_null()) return result;
  LLMB_RETURN_IF_ERROR(add_stages(spec, 0, &result.stages_));
  result.ends_in_byte_mapping_ = !result.stages_.empty() && is_byte_map(result.stages_.back().get());
  return result;
}

void PreTokenizer::drop_byte_mapping() {
  LLMB_CHECK(ends_in_byte_mapping_);
  stages_.pop_back();
  ends_in_byte_mapping_ = false;
}

void PreTokenizer::run(std::string_view text, bool at_start, PreTokenizerScratch& scratch, const Sink& sink) const {
  scratch.stages.resize(stages_.size());
  if (!text.empty()) run_stage(0, text, at_start, scratch, sink);
}

void PreTokenizer::run_stage(size_t index, std::string_view piece, bool at_start, PreTokenizerScratch& scratch,
                             const Sink& sink) const {
  if (index == stages_.size()) {
    sink(piece);
    return;
  }
  const std::string_view text = stages_[index]->run(piece, at_start, index, scratch);
  // Later stages use their own entries of scratch.stages: this one's stay as they are during the loop.
  for (const Span& s : scratch.stages[index].spans) {
    if (s.is_match || s.begin == s.end) continue;
    run_stage(index + 1, text.substr(s.begin, s.end - s.begin), at_start && s.begin == 0, scratch, sink);
  }
}

}  // namespace llmb
