// Operations and bytes of a backend's step, from the model's configuration, layer by layer: the least that it must compute
// and read, beside which tools/bench_engine.cpp sets what the step took. Weights count once, the embedding lookup and
// activations not at all. A layer counts for the rows that it runs for: behind the last one with keys and values of its
// own only sampled ones are left (model/transformer_narrow.cpp), and so behind the last layer's attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/model_config.h"

namespace llmb {

struct Work {
  double flops = 0;
  double bytes = 0;

  double compute_ms(double flops_per_s) const { return 1e3 * flops / flops_per_s; }
  double memory_ms(double bytes_per_s) const { return 1e3 * bytes / bytes_per_s; }
};

struct EngineWork {
  Work products, attention;

  double flops() const { return products.flops + attention.flops; }
  double bytes() const { return products.bytes + attention.bytes; }
};

// Sequences with as many rows each, of which the last is sampled.
struct EngineStep {
  double num_seqs = 1;
  int32_t rows_of_seq = 1;
  double first_position = 0;  // of these; a mean may lie between two
  double num_shared = 0;      // positions that all sequences have together, cached once

  double num_rows() const { return num_seqs * rows_of_seq; }
};

// A token's multiply-adds with a layer's matrices.
struct LayerProducts {
  double before = 0;  // of what attention or a state takes
  double behind = 0;  // of what it gives, the MLP's or experts', and those of the layer's own inputs behind it
  double input = 0;   // of the token's embedding with a part of the layer's inputs
};

inline LayerProducts layer_products(const ModelConfig& c, int32_t index) {
  const LayerConfig layer = c.layer(index);
  const double head = double(c.hidden_size) * c.vocab_size;
  ModelConfig one = c;
  one.num_hidden_layers = 1, one.layers = {layer}, one.mtp.is_used = false;
  const double all = double(one.num_matmul_params()) - head;
  one.layers[0].has_mlp = false, one.hidden_size_per_layer_input = 0;
  const double mixer = double(one.num_matmul_params()) - head;
  const int64_t given = layer.has_state ? c.state.values_size() : c.o_size_of(index);
  const double output = layer.has_mixer ? double(c.hidden_size) * double(given) : 0;
  const double input = double(c.hidden_size) * c.hidden_size_per_layer_input;
  return {mixer - output, all - mixer + output - input, input};
}

// A layer's matrices of one sequence: their numbers, and a token's multiply-adds with each of these.
inline double state_numbers(const StateConfig& c) { return double(c.num_value_heads) * c.key_dim * c.value_dim; }
inline double state_products(const StateConfig& c) { return c.kind == StateKind::kGatedDelta ? 3 : 2; }

// Positions that a row sees in a layer, its own included.
inline double num_seen(const LayerConfig& layer, double position) {
  if (layer.chunk > 0) return std::fmod(position, layer.chunk) + 1;
  return layer.window > 0 ? std::min(position + 1, double(layer.window)) : position + 1;
}

// The first layer that runs for sampled rows alone, as Transformer::first_reader() has it; num_hidden_layers: none does.
inline int32_t first_narrow_layer(const ModelConfig& c) {
  int32_t first = c.num_hidden_layers;
  while (first > 0 && !c.has_own_kv(first - 1) && !c.layer(first - 1).has_state) --first;
  return first + 1 < c.num_hidden_layers ? first : c.num_hidden_layers;
}

// How many cached tokens a step reads in a layer.
inline double num_read(const LayerConfig& layer, const EngineStep& step) {
  const double end = step.first_position + step.rows_of_seq;
  const double begin = step.first_position + 1 - num_seen(layer, step.first_position);
  return step.num_seqs * (end - begin) - (step.num_seqs - 1) * std::max(0.0, step.num_shared - begin);
}

// `kv_bytes`: of a token in all layers of the cache; `weight_bytes`: of all weights.
inline EngineWork engine_work(const ModelConfig& c, const EngineStep& step, double kv_bytes, double weight_bytes) {
  const int32_t last = c.num_hidden_layers - 1, narrow = first_narrow_layer(c);
  const double num_samples = step.num_seqs;
  EngineWork work;
  double kv_size = 0;  // numbers of a token's keys in all layers
  for (int32_t i = 0; i <= last; ++i) kv_size += double(c.kv_size_of(i));
  for (int32_t i = 0; i <= last; ++i) {
    const LayerConfig layer = c.layer(i);
    const LayerProducts products = layer_products(c, i);
    const double rows = i >= narrow ? num_samples : step.num_rows();
    work.products.flops += 2 * (rows * products.before + (i == last ? num_samples : rows) * products.behind +
                                step.num_rows() * products.input);
    if (layer.has_state) {
      work.attention.flops += 2 * rows * state_numbers(c.state) * state_products(c.state);
      work.attention.bytes += num_samples * state_numbers(c.state) * double(sizeof(float));
    } else if (layer.has_mixer) {
      double seen = 0;
      for (int32_t row = i >= narrow ? step.rows_of_seq - 1 : 0; row < step.rows_of_seq; ++row)
        seen += num_seen(layer, step.first_position + row);
      work.attention.flops += 2 * double(c.q_size_of(i) + c.gathered_size_of(i)) * step.num_seqs * seen;
      if (kv_size > 0) work.attention.bytes += num_read(layer, step) * kv_bytes * double(c.kv_size_of(i)) / kv_size;
    }
  }
  work.products.flops += 2 * num_samples * double(c.hidden_size) * c.vocab_size;
  const double layers = c.num_hidden_layers;
  const double stored = double(c.num_stored_matmul_params()) +
                        (c.tie_word_embeddings ? 0 : double(c.vocab_size) * c.hidden_size) +
                        double(c.vocab_size_per_layer_input) * c.hidden_size_per_layer_input * layers;
  work.products.bytes = weight_bytes * double(c.num_matmul_params()) / stored;
  return work;
}

}  // namespace llmb
