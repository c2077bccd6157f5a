#include "engine/split_choice.h"

#include <vector>

#include "chat/answer_parts.h"
#include "tokenizer/detokenizer.h"

namespace llmb {

namespace {

// The text with all its special tokens: formats mark calls and reasoning by them.
MarkedText marked_text(const Request& request, const Tokenizer& tokenizer, size_t num_tokens, const Choice& choice,
                       std::vector<size_t>* token_ends) {
  Detokenizer detokenizer(tokenizer, /*skip_special_tokens=*/false, request.prompt_tokens);
  MarkedText marked;
  for (size_t i = 0; i < num_tokens; ++i) {
    const TokenId token = choice.token_ids[i];
    marked.text += detokenizer.push(token);
    token_ends->push_back(marked.text.size());
    if (!request.params.output.skip_special_tokens || !tokenizer.is_special(token)) continue;
    const std::string text = tokenizer.token_piece(token);
    if (marked.text.ends_with(text)) marked.hidden.emplace_back(marked.text.size() - text.size(), marked.text.size());
  }
  marked.text += detokenizer.finish();
  if (!choice.stop_string) return marked;
  const size_t stop = marked.text.rfind(*choice.stop_string);
  const bool keeps = request.params.stop.include_stop_str_in_output;
  if (stop != std::string::npos) marked.text.resize(stop + (keeps ? choice.stop_string->size() : 0));
  while (!marked.hidden.empty() && marked.hidden.back().second > marked.text.size()) marked.hidden.pop_back();
  return marked;
}

}  // namespace

void split_choice(const Request& request, const Tokenizer& tokenizer, bool hides_last, Choice* choice) {
  if (!request.split.any()) return;
  const size_t num_tokens = choice->token_ids.size() - (hides_last && !choice->token_ids.empty() ? 1 : 0);
  std::vector<size_t> token_ends;
  const MarkedText marked = marked_text(request, tokenizer, num_tokens, *choice, &token_ends);
  choice->parts = split_answer(marked, request.split);
  const size_t end = reasoning_end(marked.text, request.split);
  for (const size_t token_end : token_ends) choice->num_reasoning_tokens += token_end <= end;
}

}  // namespace llmb
