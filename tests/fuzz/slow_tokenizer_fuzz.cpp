// vocab.json NUL merges.txt NUL tokenizer_config.json, the files before tokenizer.json.
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/fuzz_tokenizers.h"
#include "tests/support/temp_dir.h"

LLMB_FUZZ_TARGET(slow_tokenizer) {
  static const TempDir dir;
  write_or_remove(dir / "vocab.json", take_part(&input));
  write_or_remove(dir / "merges.txt", take_part(&input));
  write_or_remove(dir / "tokenizer_config.json", input);
  check_tokenizer_directory(dir.path());
}
