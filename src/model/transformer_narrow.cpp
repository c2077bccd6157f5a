// Rows that nobody looks at any more: behind the last layer that has keys and values of its own, later tokens see nothing
// of a prompt's rows but what is in the cache, so that the layers behind it run for sampled rows alone. (Gemma 4's
// cross-layer sharing makes these more than half of its layers.)
#include "model/transformer.h"

namespace llmb {

int32_t Transformer::first_reader() const {
  const bool is_whole = is_first_stage_ && is_last_stage_ && link_ == nullptr;
  const bool takes_all_rows = config_.mtp.is_used || (pooling_ && pooling_->kind() != PoolingKind::kLast);
  int32_t first = config_.num_hidden_layers;
  if (!is_whole || takes_all_rows) return first;
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
