// Rows that nobody looks at any more: later tokens see of a prompt's rows what is in the cache, so that the layers
// behind the last one with keys and values of its own run for sampled rows alone. They are more than half of Gemma 4's.
#include "model/transformer.h"

namespace llmb {

int32_t Transformer::first_reader() const {
  const bool takes_all_rows = config_.mtp.is_used || (pooling_ && pooling_->kind() != PoolingKind::kLast);
  int32_t first = config_.num_hidden_layers;
  if (!is_last_stage_ || takes_all_rows) return first;
  while (first > 0 && !config_.has_own_kv(first - 1) && !config_.layer(first - 1).has_state) --first;
  return first;
}

int64_t Transformer::narrow(int64_t num_tokens, int64_t num_samples) {
  if (num_samples == 0) return 0;
  const std::optional<int64_t> kept = ops_.narrow_step();
  if (!kept) return num_tokens;
  ops_.keep_rows(residual_->rows());
  if (pending().data != nullptr) ops_.keep_rows(delta_->rows());
  if (layer_inputs_) ops_.keep_rows(layer_inputs_->rows());
  return *kept;
}

}  // namespace llmb
