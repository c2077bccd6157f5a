// tokenizer.json NUL tokenizer_config.json: refused, or a tokenizer that encodes and decodes some texts within its
// vocabulary.
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/fuzz_tokenizers.h"
#include "tests/support/temp_dir.h"

LLMB_FUZZ_TARGET(tokenizer) {
  static const TempDir dir;
  write_or_remove(dir / "tokenizer.json", take_part(&input));
  write_or_remove(dir / "tokenizer_config.json", input);
  check_tokenizer_directory(dir.path());
}
