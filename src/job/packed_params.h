// A line's parameters as bytes (base/packed_bytes.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/packed_bytes.h"
#include "core/chat_messages.h"
#include "core/request.h"

namespace llmb {

// Bindings name every member, so that one more does not compile until it is here.
template <typename F>
void each_member(BeamParams& p, F f) {
  auto& [width, length_penalty, early_stopping] = p;
  f(width), f(length_penalty), f(early_stopping);
}

template <typename F>
void each_member(SamplingParams& p, F f) {
  auto& [temperature, top_p, top_k, min_p, repetition, presence, frequency, bias, num_logprobs, seed, n, best_of, beams,
         num_choices] = p;
  f(temperature), f(top_p), f(top_k), f(min_p), f(repetition), f(presence), f(frequency), f(bias), f(num_logprobs);
  f(seed), f(n), f(best_of), f(beams), f(num_choices);
}

template <typename F>
void each_member(StopParams& p, F f) {
  auto& [max_tokens, min_tokens, stop, stop_token_ids, ignore_eos, include_stop, repetition, thinking_budget] = p;
  f(max_tokens), f(min_tokens), f(stop), f(stop_token_ids), f(ignore_eos), f(include_stop), f(repetition);
  f(thinking_budget);
}

template <typename F>
void each_member(OutputParams& p, F f) {
  auto& [skip_special_tokens, return_token_ids, echo, hides_answer] = p;
  f(skip_special_tokens), f(return_token_ids), f(echo), f(hides_answer);
}

template <typename F>
void each_member(PromptParams& p, F f) {
  auto& [truncate, max_prompt_tokens] = p;
  f(truncate), f(max_prompt_tokens);
}

template <typename F>
void each_member(TokenRules& p, F f) {
  auto& [allowed, bad_words] = p;
  f(allowed), f(bad_words);
}

template <typename F>
void each_member(ScoreParams& p, F f) {
  auto& [options, num_logprobs, prompt_logprobs, hides_details] = p;
  f(options), f(num_logprobs), f(prompt_logprobs), f(hides_details);
}

template <typename F>
void each_member(EmbedParams& p, F f) {
  auto& [normalizes, dimensions, is_list, is_base64] = p;
  f(normalizes), f(dimensions), f(is_list), f(is_base64);
}

template <typename F>
void each_member(ClassifyParams& p, F f) {
  auto& [scores, pairs, top_n, returns_documents, instruction] = p;
  f(scores), f(pairs), f(top_n), f(returns_documents), f(instruction);
}

template <typename F>
void each_member(ChatMessages& p, F f) {
  auto& [messages, tools, template_kwargs, tool_choice, tool_name, has_one_call, reasoning_effort,
         add_generation_prompt, continue_final_message] = p;
  f(messages), f(tools), f(template_kwargs), f(tool_choice), f(tool_name), f(has_one_call), f(reasoning_effort);
  f(add_generation_prompt), f(continue_final_message);
}

template <typename F>
void each_member(CallFrame& p, F f) {
  auto& [before, schema, after, is_strict] = p;
  f(before), f(schema), f(after), f(is_strict);
}

template <typename F>
void each_member(AnswerForm& p, F f) {
  auto& [kind, text, choices, is_strict, field, calls, has_several_calls, quote] = p;
  f(kind), f(text), f(choices), f(is_strict), f(field), f(calls), f(has_several_calls), f(quote);
}

// All members.
inline void add_params(const GenerationParams& params, PackedBytes* bytes) {
  const auto& [sampling, stop, output, prompt, form, token_rules, score, embed, classify, task] = params;
  bytes->add(sampling), bytes->add(stop), bytes->add(output), bytes->add(prompt), bytes->add(token_rules);
  bytes->add(score), bytes->add(embed), bytes->add(classify), bytes->add(task);
  bytes->add(form != nullptr);
  if (form) bytes->add(*form);
}

// REQUIRES: the bytes are those of add_params()
inline void read_params(PackedReader* bytes, GenerationParams* params) {
  auto& [sampling, stop, output, prompt, form, token_rules, score, embed, classify, task] = *params;
  bytes->read(sampling), bytes->read(stop), bytes->read(output), bytes->read(prompt), bytes->read(token_rules);
  bytes->read(score), bytes->read(embed), bytes->read(classify), bytes->read(task);
  bool has_form = false;
  bytes->read(has_form);
  if (!has_form) return;
  auto read = std::make_shared<AnswerForm>();
  bytes->read(*read);
  form = std::move(read);
}

// A line's prompts.
inline void add_prompts(const PromptInput& first, const std::vector<PromptInput>& more, PackedBytes* bytes) {
  const auto add = [&](const PromptInput& prompt) {
    bytes->add(static_cast<uint8_t>(prompt.index()));
    std::visit([&](const auto& value) { bytes->add(value); }, prompt);
  };
  add(first);
  bytes->add(static_cast<uint32_t>(more.size()));
  for (const PromptInput& prompt : more) add(prompt);
}

// REQUIRES: the bytes are those of add_prompts()
inline void read_prompts(PackedReader* bytes, PromptInput* first, std::vector<PromptInput>* more) {
  const auto read = [&](PromptInput* prompt) {
    uint8_t kind = 0;
    bytes->read(kind);
    if (kind == 1) *prompt = ChatMessages();
    if (kind == 2) *prompt = std::vector<TokenId>();
    std::visit([&](auto& value) { bytes->read(value); }, *prompt);
  };
  read(first);
  uint32_t count = 0;
  bytes->read(count);
  more->resize(count);
  for (PromptInput& prompt : *more) read(&prompt);
}

}  // namespace llmb
