// The first byte chooses a tokenizer, the rest is a text: ids in range, decoding in steps as at once, and where
// the tokenizer loses nothing the text comes back.
#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/fuzz_tokenizers.h"

LLMB_FUZZ_TARGET(encode) {
  if (input.empty()) return;
  const size_t number = static_cast<unsigned char>(input[0]) % kFixtureNames.size();
  const llmb::Tokenizer& tokenizer = fixture_tokenizer(number);
  const std::string_view text = input.substr(1);
  const std::vector<llmb::TokenId> ids = check_encoding(tokenizer, text);
  check_decoding(tokenizer, ids);
  if (number < kNumLossless && llmb::is_valid_utf8(text)) LLMB_CHECK(tokenizer.decode(ids, false) == text);
}
