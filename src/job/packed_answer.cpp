#include "job/packed_answer.h"

#include "base/check.h"
#include "base/packed_bytes.h"
#include "job/packed_params.h"

namespace llmb {

// Bindings name every member, so that one more does not compile until it is here.
template <typename F>
void each_member(TokenLogprob& token, F f) {
  auto& [id, logprob] = token;
  f(id), f(logprob);
}

template <typename F>
void each_member(TokenDetail& detail, F f) {
  auto& [chosen, top] = detail;
  f(chosen), f(top);
}

template <typename F>
void each_member(ToolCall& call, F f) {
  auto& [name, arguments] = call;
  f(name), f(arguments);
}

template <typename F>
void each_member(AnswerParts& parts, F f) {
  auto& [content, has_reasoning, reasoning, calls, has_short_call_ids] = parts;
  f(content), f(has_reasoning), f(reasoning), f(calls), f(has_short_call_ids);
}

template <typename F>
void each_member(OptionScore& score, F f) {
  auto& [logprob, is_greedy] = score;
  f(logprob), f(is_greedy);
}

template <typename F>
void each_member(Choice& choice, F f) {
  auto& [text, continues_character, num_output_tokens, token_ids, logprobs, num_echoed_tokens, num_unshown_chars,
         logprob_texts, finish_reason, stop_string, stop_token, parts, num_reasoning_tokens, score, embedding] = choice;
  f(text), f(continues_character), f(num_output_tokens), f(token_ids), f(logprobs), f(logprob_texts), f(finish_reason);
  f(num_echoed_tokens), f(num_unshown_chars);
  f(stop_string), f(stop_token), f(parts), f(num_reasoning_tokens), f(score), f(embedding);
}

template <typename F>
void each_member(Completion& completion, F f) {
  auto& [line, form, id, model_name, input, settings, is_chat, return_token_ids, adapter, num_prompt_tokens,
         num_truncated_tokens, task, embed, classify, has_prompt_logprobs, prompt_logprobs, prompt_texts, choices,
         num_unreturned_tokens, latency, error] = completion;
  f(form), f(settings), f(is_chat), f(return_token_ids), f(adapter), f(num_prompt_tokens), f(num_truncated_tokens);
  f(choices);
  f(num_unreturned_tokens), f(task), f(embed), f(classify), f(has_prompt_logprobs), f(prompt_logprobs), f(prompt_texts);
}

std::string pack_answer(const Completion& completion) {
  LLMB_CHECK(!completion.error);
  PackedBytes bytes;
  Completion shown = completion;
  if (!shown.return_token_ids)
    for (Choice& choice : shown.choices)
      if (choice.logprobs.empty()) choice.token_ids.clear();
  bytes.add(shown);
  return bytes.bytes();
}

Completion unpack_answer(std::string_view bytes) {
  Completion completion;
  PackedReader reader(bytes);
  reader.read(completion);
  LLMB_CHECK(reader.at_end());
  return completion;
}

}  // namespace llmb
