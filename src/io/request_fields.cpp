#include "io/request_fields.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

namespace llmb {

namespace {

using enum FieldKind;

constexpr FieldSpec request(std::string_view name, Field field) { return {name, kRequest, field}; }
constexpr FieldSpec harmless(std::string_view name) { return {name, kHarmless}; }
constexpr FieldSpec unsupported(std::string_view name, Neutral neutral = Neutral::kNull) {
  return {name, kUnsupported, Field::kId, neutral};
}

// The first kNumFields entries are in the order of Field.
constexpr FieldSpec kSpecs[] = {
    request("id", Field::kId),
    request("custom_id", Field::kCustomId),
    request("method", Field::kMethod),
    request("url", Field::kUrl),
    request("body", Field::kBody),
    request("prompt", Field::kPrompt),
    request("messages", Field::kMessages),
    request("prompt_token_ids", Field::kPromptTokenIds),
    request("model", Field::kModel),
    request("adapter", Field::kAdapter),
    request("tools", Field::kTools),
    request("tool_choice", Field::kToolChoice),
    request("parallel_tool_calls", Field::kParallelToolCalls),
    request("reasoning_effort", Field::kReasoningEffort),
    request("chat_template_kwargs", Field::kChatTemplateKwargs),
    request("add_generation_prompt", Field::kAddGenerationPrompt),
    request("continue_final_message", Field::kContinueFinalMessage),
    request("arrival_ms", Field::kArrivalMs),
    request("temperature", Field::kTemperature),
    request("top_p", Field::kTopP),
    request("top_k", Field::kTopK),
    request("min_p", Field::kMinP),
    request("repetition_penalty", Field::kRepetitionPenalty),
    request("presence_penalty", Field::kPresencePenalty),
    request("frequency_penalty", Field::kFrequencyPenalty),
    request("logit_bias", Field::kLogitBias),
    request("seed", Field::kSeed),
    request("n", Field::kN),
    request("best_of", Field::kBestOf),
    request("use_beam_search", Field::kUseBeamSearch),
    request("beam_width", Field::kBeamWidth),
    request("length_penalty", Field::kLengthPenalty),
    request("early_stopping", Field::kEarlyStopping),
    request("logprobs", Field::kLogprobs),
    request("top_logprobs", Field::kTopLogprobs),
    request("max_tokens", Field::kMaxTokens),
    request("max_completion_tokens", Field::kMaxCompletionTokens),
    request("min_tokens", Field::kMinTokens),
    request("thinking_token_budget", Field::kThinkingTokenBudget),
    request("stop", Field::kStop),
    request("stop_token_ids", Field::kStopTokenIds),
    request("ignore_eos", Field::kIgnoreEos),
    request("include_stop_str_in_output", Field::kIncludeStopStr),
    request("skip_special_tokens", Field::kSkipSpecialTokens),
    request("return_token_ids", Field::kReturnTokenIds),
    request("echo", Field::kEcho),
    request("truncate_prompt_tokens", Field::kTruncatePromptTokens),
    request("truncation_side", Field::kTruncationSide),
    request("allowed_token_ids", Field::kAllowedTokenIds),
    request("bad_words", Field::kBadWords),
    request("options", Field::kOptions),
    request("prompt_logprobs", Field::kPromptLogprobs),
    request("response_format", Field::kResponseFormat),
    request("structured_outputs", Field::kStructuredOutputs),
    request("guided_json", Field::kGuidedJson),
    request("guided_regex", Field::kGuidedRegex),
    request("guided_choice", Field::kGuidedChoice),
    request("guided_grammar", Field::kGuidedGrammar),

    harmless("user"),
    harmless("metadata"),
    harmless("store"),
    harmless("service_tier"),
    harmless("safety_identifier"),
    harmless("prompt_cache_key"),
    harmless("prompt_cache_retention"),
    harmless("cache_salt"),
    harmless("request_id"),

    // OpenAI
    unsupported("stream", Neutral::kFalse),
    unsupported("stream_options"),
    unsupported("suffix", Neutral::kEmpty),
    unsupported("functions", Neutral::kEmpty),
    unsupported("function_call", Neutral::kNoneOrAuto),
    unsupported("modalities", Neutral::kTextOnly),
    unsupported("audio"),
    unsupported("prediction"),
    unsupported("verbosity"),
    unsupported("web_search_options"),
    // vLLM and its kin
    unsupported("guided_decoding_backend"),
    unsupported("guided_whitespace_pattern"),
    unsupported("structural_tag"),
    unsupported("prompt_embeds"),
    unsupported("add_special_tokens"),
    unsupported("spaces_between_special_tokens", Neutral::kTrue),
    unsupported("detokenize", Neutral::kTrue),
    unsupported("logits_processors", Neutral::kEmpty),
    unsupported("return_tokens_as_token_ids", Neutral::kFalse),
    unsupported("priority", Neutral::kZero),
    unsupported("chat_template"),
    unsupported("documents", Neutral::kEmpty),
    unsupported("mm_processor_kwargs", Neutral::kEmpty),
    unsupported("multi_modal_data", Neutral::kEmpty),
    unsupported("lora"),
    unsupported("lora_name"),
    unsupported("lora_request"),
    unsupported("adapters", Neutral::kEmpty),
};

constexpr bool specs_match_fields() {
  for (int i = 0; i < kNumFields; ++i)
    if (kSpecs[i].kind != kRequest || static_cast<int>(kSpecs[i].field) != i) return false;
  return kSpecs[kNumFields].kind != kRequest;
}
static_assert(specs_match_fields());

// Words of other tools that no edit distance would find.
struct Alias {
  std::string_view word;
  Field field;
};
constexpr Alias kAliases[] = {
    {"maxnewtokens", Field::kMaxTokens}, {"maxoutputtokens", Field::kMaxTokens}, {"minnewtokens", Field::kMinTokens},
    {"stopsequences", Field::kStop},     {"stopstrings", Field::kStop},
    // A form must never be ignored. (Words such as schema and choices are the user's own data.)
    {"regex", Field::kGuidedRegex},      {"ebnf", Field::kGuidedGrammar}, {"grammar", Field::kGuidedGrammar},
    {"jsonschema", Field::kGuidedJson},  {"responseschema", Field::kGuidedJson},
    {"guideddecoding", Field::kStructuredOutputs}, {"thinkingbudget", Field::kThinkingTokenBudget},
};

// Letters and digits only, in lower case.
std::string normalise(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z') out += static_cast<char>(c | 0x20);
    else if (c != '_' && c != '-' && c != ' ') out += c;
  }
  return out;
}

// Optimal string alignment distance (Damerau 1964, each part edited once).
size_t edit_distance(std::string_view a, std::string_view b) {
  constexpr size_t kMax = 40;
  std::array<std::array<size_t, kMax + 1>, kMax + 1> d;
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

size_t allowed_edits(std::string_view field) { return field.size() >= 10 ? 2 : field.size() >= 5 ? 1 : 0; }

// Fields of which a near miss is no ordinary word of the user's own data.
bool is_guessable(Field field) {
  return field != Field::kId && field != Field::kMethod && field != Field::kUrl && field != Field::kBody &&
         field != Field::kModel && field != Field::kAdapter && field != Field::kTools && field != Field::kN &&
         field != Field::kOptions;
}

}  // namespace

const FieldSpec* find_field(std::string_view name) {
  static const auto* const index = [] {
    auto* map = new std::unordered_map<std::string_view, const FieldSpec*>;
    for (const FieldSpec& spec : kSpecs) map->emplace(spec.name, &spec);
    return map;
  }();
  const auto found = index->find(name);
  return found == index->end() ? nullptr : found->second;
}

std::string_view field_name(Field field) { return kSpecs[static_cast<int>(field)].name; }

std::optional<std::string_view> near_miss(std::string_view name) {
  constexpr size_t kLongest = 32;  // longer than every field and two edits
  if (name.size() > kLongest) return std::nullopt;
  const std::string normal = normalise(name);
  for (const Alias& alias : kAliases)
    if (normal == alias.word) return field_name(alias.field);
  for (int i = 0; i < kNumFields; ++i)
    if (is_guessable(kSpecs[i].field) && normal == normalise(kSpecs[i].name)) return kSpecs[i].name;
  std::optional<std::string_view> best;
  size_t best_distance = 3;
  for (int i = 0; i < kNumFields; ++i) {
    const std::string_view field = kSpecs[i].name;
    const size_t allowed = allowed_edits(field);
    const size_t lengths_apart = std::max(field.size(), name.size()) - std::min(field.size(), name.size());
    if (lengths_apart > allowed || !is_guessable(kSpecs[i].field)) continue;
    const size_t distance = edit_distance(name, field);
    if (distance > allowed || distance >= best_distance) continue;
    best = field;
    best_distance = distance;
  }
  return best;
}

}  // namespace llmb
