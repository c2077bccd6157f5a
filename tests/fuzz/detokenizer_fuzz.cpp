// The first byte chooses a tokenizer, each further pair of bytes is a token id, unknown ones included.
#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/fuzz_tokenizers.h"

LLMB_FUZZ_TARGET(detokenizer) {
  if (input.empty()) return;
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(input[at]); };
  const llmb::Tokenizer& tokenizer = fixture_tokenizer(byte(0) % kFixtureNames.size());
  std::vector<llmb::TokenId> ids;
  for (size_t at = 1; at + 1 < input.size(); at += 2)
    ids.push_back((byte(at) | byte(at + 1) << 8) % (tokenizer.vocab_size() + 2) - 1);
  check_decoding(tokenizer, ids);
  for (const llmb::TokenId id : ids) LLMB_CHECK(llmb::is_valid_utf8(tokenizer.token_text(id)));
}
