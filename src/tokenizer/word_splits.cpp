#include "tokenizer/word_splits.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/log.h"
#include "text/unicode.h"
#include "tokenizer/patterns.h"
#include "tokenizer/pre_tokenizer.h"

namespace llmb {

namespace {

using nlohmann::json;

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", use_regex}};
}
json split(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}
json digits(bool individual) { return {{"type", "Digits"}, {"individual_digits", individual}}; }

WordSplit splits(std::initializer_list<const char*> patterns) {
  WordSplit s;
  for (const char* pattern : patterns) s.steps.push_back(split(pattern));
  s.steps.push_back(byte_level(false));
  return s;
}

WordSplit falcon() {
  WordSplit s;
  s.steps = {{{"type", "Punctuation"}, {"behavior", "Contiguous"}}, byte_level(true)};
  s.steps.push_back(digits(false));
  s.steps.push_back(split("[0-9][0-9][0-9]"));
  return s;
}

// Splits of one maker each.
std::optional<WordSplit> find_rare_split(std::string_view name) {
  if (name == "bailingmoe" || name == "bailingmoe2" || name == "llada-moe") return splits({kBailingPattern});
  if (name == "seed-coder") return splits({kSeedCoderPattern});
  if (name == "ufakzeka") return splits({kUfakzekaPattern});
  if (name == "jais-2") return splits({kJais2Pattern});
  if (name == "tiny_aya" || name == "cohere2moe") return splits({kTinyAyaDigits, kO200kPattern});
  if (name == "superbpe") return splits({kSuperBpePatterns[0], kSuperBpePatterns[1]});
  if (name == "afmoe") return splits({kAfmoePatterns[0], kAfmoePatterns[1], kDeepSeekV3Patterns[2]});
  if (name == "laguna") return splits({kLagunaLines, kQwen2Pattern});
  if (name == "spark2_5") return splits({kDeepSeekV3Patterns[0], kDeepSeekV3Patterns[1], kSparkPattern, "\\p{N}"});
  std::optional<WordSplit> s;
  if (name == "qwen35") {
    s = splits({kQwen35Pattern});
    s->nfc = true;
    return s;
  }
  if (name == "youtu") s = splits({kYoutuPatterns[0], kYoutuPatterns[1]});
  if (name == "minicpm5") s = splits({kMiniCpm5Patterns[0], kMiniCpm5Patterns[1]});
  if (s) s->ignore_merges = true;
  return s;
}

// A split that may have made a vocabulary, and those that cut less: these fit its vocabularies as well.
struct Candidate {
  std::string_view name;
  std::array<std::string_view, 3> coarser = {};
};
constexpr Candidate kCandidates[] = {{"deepseek-llm", {"deepseek-v3", "qwen2", "llama-bpe"}},
                                     {"deepseek-coder"},
                                     {"deepseek-v3", {"llama-bpe"}},
                                     {"smollm", {"gpt-2"}},
                                     {"falcon", {"gpt-2"}},
                                     {"gpt-2"},
                                     {"qwen2", {"llama-bpe"}},
                                     {"llama-bpe"},
                                     {"tekken", {"gpt-4o"}},
                                     {"kimi-k2", {"gpt-4o"}},
                                     {"gpt-4o"},
                                     {"bloom"}};

// The tokens that are text of several characters, in UTF-8. Those with combining marks are left out: some makers added
// words of Indian and Thai script by hand.
std::vector<std::string> telling_tokens(std::span<const std::string_view> all) {
  std::vector<std::string> tokens;
  for (const std::string_view spelled : all) {
    std::string bytes;
    bool is_bytes = true;
    for (size_t pos = 0; is_bytes && pos < spelled.size();) {
      const int byte = byte_level_byte(next_char(spelled, &pos));
      is_bytes = byte >= 0;
      bytes += static_cast<char>(byte);
    }
    if (!is_bytes || !is_valid_utf8(bytes)) continue;
    size_t num_chars = 0;
    bool has_mark = false;
    for (size_t pos = 0; pos < bytes.size(); ++num_chars) has_mark |= is_mark(next_char(bytes, &pos));
    if (num_chars > 1 && !has_mark) tokens.push_back(std::move(bytes));
  }
  return tokens;
}

// How many of the tokens the split cuts; counting ends at `most`.
Result<size_t> count_cut(const WordSplit& split, const std::vector<std::string>& tokens, size_t most) {
  LLMB_ASSIGN_OR_RETURN(const auto pre_tokenizer, PreTokenizer::make(pre_tokenizer_of(split)));
  PreTokenizerScratch scratch;
  size_t num_cut = 0;
  for (const std::string& token : tokens) {
    int num_pieces = 0;
    pre_tokenizer.run(token, true, scratch, [&](std::string_view) { ++num_pieces; });
    num_cut += num_pieces > 1;
    if (num_cut >= most) break;
  }
  return num_cut;
}

}  // namespace

std::optional<WordSplit> find_word_split(std::string_view name) {
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  WordSplit s;
  if (is({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0", "jina-v5-nano"})) {
    s = splits({kLlama3Pattern});
    s.ignore_merges = s.add_bos = true;
  } else if (is({"dbrx", "smaug-bpe", "glm4", "glm5", "chatglm-bpe"})) {
    s = splits({kLlama3Pattern});
    s.ignore_merges = name.starts_with("glm");
  } else if (is({"qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2"})) {
    s = splits({kQwen2Pattern});
    s.nfc = true;
  } else if (is({"stablelm2", "hunyuan", "solar-open", "grok-2", "kormo"})) {
    s = splits({kQwen2Pattern});
  } else if (is({"gpt-2", "phi-2", "exaone4", "gigachat", "a.x-4.0", "mellum", "jais", "trillion", "granite-docling",
                 "roberta-bpe", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"})) {
    s.steps = {byte_level(true)};
  } else if (is({"mpt", "olmo", "modern-bert"})) {
    s.steps = {byte_level(true)};
    s.nfc = true;
  } else if (is({"smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "command-r", "mellum2"})) {
    s.steps = {digits(true), byte_level(true)};
    s.nfc = name == "command-r";
  } else if (is({"falcon", "default"})) {
    s = falcon();
  } else if (is({"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m"})) {
    s = splits({kO200kPattern});
    s.ignore_merges = name == "granite-embed-multi-97m";
  } else if (is({"tekken"})) {
    s = splits({kTekkenPattern});
    s.ignore_merges = s.add_bos = true;
  } else if (is({"kimi-k2"})) {
    s = splits({kKimiPattern});
  } else if (is({"bloom", "poro-chat", "gpt3-finnish"})) {
    s = splits({kBloomPattern});
  } else if (is({"viking"})) {
    s = splits({kBloomPattern, "\\p{N}"});
  } else if (is({"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"})) {
    s = splits({kDeepSeekV3Patterns[0], kDeepSeekV3Patterns[1], kDeepSeekV3Patterns[2]});
  } else if (is({"deepseek-coder", "deepseek-llm"})) {
    using Patterns = std::span<const char* const>;
    for (const char* pattern : name == "deepseek-llm" ? Patterns(kDeepSeekLlmPatterns) : kDeepSeekCoderPatterns)
      s.steps.push_back(split(pattern));
    s.steps.insert(s.steps.end(), {digits(true), byte_level(false)});
  } else {
    return find_rare_split(name);
  }
  return s;
}

json pre_tokenizer_of(const WordSplit& split) { return {{"type", "Sequence"}, {"pretokenizers", split.steps}}; }

Result<std::optional<std::string_view>> recognise_word_split(std::span<const std::string_view> all) {
  const std::vector<std::string> tokens = telling_tokens(all);
  // A few tokens of any vocabulary were added by hand. Splits that did not make it cut 20 times as many and more
  // (measured on gpt2, falcon, qwen, Llama 3 and 4, cl100k, tekken and DeepSeek).
  const size_t most_by_hand = tokens.size() / 1000, slack = tokens.size() / 2000;
  std::vector<std::pair<const Candidate*, size_t>> counts;
  size_t fewest = SIZE_MAX;
  for (const Candidate& candidate : kCandidates) {
    LLMB_ASSIGN_OR_RETURN(const auto num_cut,
                          count_cut(*find_word_split(candidate.name), tokens, most_by_hand + slack + 1));
    counts.emplace_back(&candidate, num_cut);
    fewest = std::min(fewest, num_cut);
  }
  if (fewest > most_by_hand) return std::optional<std::string_view>();
  std::vector<const Candidate*> fitting;
  for (const auto& [candidate, num_cut] : counts)
    if (num_cut <= fewest + slack) fitting.push_back(candidate);
  for (const Candidate* finest : fitting) {
    const bool others_are_coarser = std::all_of(fitting.begin(), fitting.end(), [&](const Candidate* other) {
      return other == finest || std::count(finest->coarser.begin(), finest->coarser.end(), other->name) > 0;
    });
    if (others_are_coarser) return std::optional(finest->name);
  }
  return std::optional<std::string_view>();
}

Result<std::string> guess_word_split(std::span<const std::string_view> tokens, std::string_view file,
                                     std::string_view fallback) {
  LLMB_ASSIGN_OR_RETURN(const auto recognised, recognise_word_split(tokens));
  const std::string name(recognised.value_or(fallback));
  log_warning(
      std::string(file) + " does not say how text is split into words; " +
      (recognised ? "the tokens fit \"" + name + "\", which is taken"
                  : "the tokens do not tell, and \"" + name + "\" is taken: token ids may differ from the original's") +
      " (--tokenizer takes a tokenizer that says it)");
  return name;
}

}  // namespace llmb
