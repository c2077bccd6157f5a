// Any bytes as a checkpoint of GPTQ, AWQ, compressed-tensors or bitsandbytes: refused, or every weight can be read. The
// input is a config.json, a NUL, and a safetensors file with the parts of a matrix "m".
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/packed_weights.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/fuzz_tokenizers.h"
#include "tests/support/temp_dir.h"

LLMB_FUZZ_TARGET(packed_weights) {
  static const TempDir dir;
  write_or_remove(dir / "config.json", take_part(&input));
  write_or_remove(dir / "model.safetensors", input);
  const auto stored = llmb::load_stored_quantization(dir.path());
  const auto checkpoint = llmb::Checkpoint::open(dir.path());
  if (!stored.ok() || !checkpoint.ok()) return;
  llmb::ThreadPool pool(1);
  llmb::ModelConfig config;
  using llmb::WeightAccess, llmb::WeightForm;
  const std::pair<WeightAccess, WeightForm> ways[] = {{WeightAccess::kShapes, WeightForm::kNumbers},
                                                      {WeightAccess::kValues, WeightForm::kNumbers},
                                                      {WeightAccess::kValues, WeightForm::kBlocks}};
  for (const auto& [access, form] : ways) {
    llmb::PackedSource source(*checkpoint, config, *stored, pool, access, form);
    using Shape = std::array<int64_t, 2>;
    for (const auto& shape : {Shape{8, 32}, Shape{16, 8}, Shape{8, 64}}) {
      const auto view = source.tensor("m.weight", shape);
      if (!view.ok()) {
        LLMB_CHECK(!view.status().message().empty());
        continue;
      }
      LLMB_CHECK(view->rows == shape[0] && view->cols == shape[1]);
      const auto* const bytes = static_cast<const uint8_t*>(view->data);
      for (int64_t i = 0; bytes != nullptr && i < shape[0] * view->row_bytes(); ++i) LLMB_CHECK(bytes[i] <= 255);
      if (bytes == nullptr || view->blocks == llmb::BlockFormat::kNone) continue;
      std::vector<float> row(static_cast<size_t>(shape[1]));
      for (int64_t i = 0; i < shape[0]; ++i) llmb::decode_row(*view, i, row.data());
    }
  }
}
