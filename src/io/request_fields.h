// The names of everything that a line may hold, and what each one is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llmb {

// Fields that a request is made of. Each may be given once.
enum class Field : uint8_t {
  // Around the request.
  kId,
  kCustomId,
  kMethod,
  kUrl,
  kBody,
  // The prompt.
  kPrompt,
  kMessages,
  kPromptTokenIds,
  // Read by read_params() and read_chat().
  kModel,
  kAdapter,
  kTools,
  kToolChoice,
  kParallelToolCalls,
  kReasoningEffort,
  kChatTemplateKwargs,
  kAddGenerationPrompt,
  kContinueFinalMessage,
  kArrivalMs,
  kTemperature,
  kTopP,
  kTopK,
  kMinP,
  kRepetitionPenalty,
  kPresencePenalty,
  kFrequencyPenalty,
  kLogitBias,
  kSeed,
  kN,
  kBestOf,
  kUseBeamSearch,
  kBeamWidth,
  kLengthPenalty,
  kEarlyStopping,
  kLogprobs,
  kTopLogprobs,
  kMaxTokens,
  kMaxCompletionTokens,
  kMinTokens,
  kThinkingTokenBudget,
  kStop,
  kStopTokenIds,
  kIgnoreEos,
  kIncludeStopStr,
  kSkipSpecialTokens,
  kReturnTokenIds,
  kEcho,
  kTruncatePromptTokens,
  kTruncationSide,
  kAllowedTokenIds,
  kBadWords,
  kOptions,
  kPromptLogprobs,
  // Read by read_answer_form().
  kResponseFormat,
  kStructuredOutputs,
  kGuidedJson,
  kGuidedRegex,
  kGuidedChoice,
  kGuidedGrammar,
};
inline constexpr int kNumFields = static_cast<int>(Field::kGuidedGrammar) + 1;

// The value with which a field that is not built asks for nothing. null always does.
enum class Neutral : uint8_t { kNull, kFalse, kTrue, kZero, kOne, kEmpty, kNoneOrAuto, kTextOnly };

enum class FieldKind : uint8_t {
  kRequest,      // a Field
  kHarmless,     // changes no answer: accepted, whatever its value
  kUnsupported,  // not built: accepted only with its neutral value
};

struct FieldSpec {
  std::string_view name;
  FieldKind kind;
  Field field = Field::kId;          // of kRequest
  Neutral neutral = Neutral::kNull;  // of kUnsupported
};

// nullptr where the name is not known.
const FieldSpec* find_field(std::string_view name);

std::string_view field_name(Field field);

// The request field that a writer of `name` probably meant: the same letters in other case or with other separators; or
// at most one edit (names of 5 to 9 letters) or two (longer ones) away; or another tool's word for it. Shorter names,
// such as "stop", and those around the request ("method", "model" …) are too close to ordinary words to be guessed at.
// An edit inserts, deletes, replaces or swaps neighbours.
std::optional<std::string_view> near_miss(std::string_view name);

}  // namespace llmb
