#include "model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace llmb {

namespace {

constexpr double kMaxNumber = 1e12;

void read_llama3(ConfigFields& rope, RopeScaling* s) {
  s->low_freq_factor = rope.number("low_freq_factor", 1, 1e-6, kMaxNumber);
  s->high_freq_factor = rope.number("high_freq_factor", 4, 1e-6, kMaxNumber);
  if (s->high_freq_factor < s->low_freq_factor)
    rope.fail(data_loss("\"high_freq_factor\" must not be below \"low_freq_factor\""));
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

void read_yarn(ConfigFields& rope, double theta, RopeScaling* s) {
  s->beta_fast = rope.number("beta_fast", 32, 1e-6, kMaxNumber);
  s->beta_slow = rope.number("beta_slow", 1, 1e-6, kMaxNumber);
  s->truncate = rope.boolean("truncate", true);
  const double mscale = rope.number("mscale", 0, 0, 1e3), all_dim = rope.number("mscale_all_dim", 0, 0, 1e3);
  const double inferred = mscale > 0 && all_dim > 0 ? yarn_mscale(s->factor, mscale) / yarn_mscale(s->factor, all_dim)
                                                    : yarn_mscale(s->factor, 1);
  s->attention_factor = rope.number("attention_factor", inferred, 1e-6, 1e6);
  if (!(theta > 1)) rope.fail(data_loss("rope scaling \"yarn\" needs a \"rope_theta\" above 1"));
}

void read_longrope(ConfigFields& rope, int32_t rotary_dim, RopeScaling* s) {
  const size_t size = static_cast<size_t>(rotary_dim) / 2;
  s->short_factor = rope.numbers("short_factor", size, 1e-6, kMaxNumber);
  s->long_factor = rope.numbers("long_factor", size, 1e-6, kMaxNumber);
  const double original = std::max(s->original_max_position_embeddings, 2);
  const double inferred = s->factor <= 1 ? 1 : std::sqrt(1 + std::log(s->factor) / std::log(original));
  s->attention_factor = rope.number("attention_factor", inferred, 1e-6, 1e6);
}

// Past its trained length the model may be used as far as factor says.
void read_dynamic(ConfigFields& rope, int32_t rotary_dim, RopeScaling* s, ModelConfig* config) {
  if (rotary_dim <= 2) rope.fail(data_loss("rope scaling \"dynamic\" needs more than 2 rotated channels"));
  if (s->factor < 1) rope.fail(data_loss("rope scaling \"dynamic\" needs a \"factor\" of at least 1"));
  s->original_max_position_embeddings = config->max_position_embeddings;
  const double stretched = std::floor(s->factor * config->max_position_embeddings);
  config->max_position_embeddings = static_cast<int32_t>(std::min<double>(stretched, kMaxPositions));
}

// The factor where the object does not say: how much longer the context is than the original one.
double default_factor(const RopeScaling& s, const ModelConfig& config) {
  return static_cast<double>(config.max_position_embeddings) / std::max(s.original_max_position_embeddings, 1);
}

void read_scaling(ConfigFields& rope, const RopeDefaults& defaults, const RopeConfig& config, int32_t rotary_dim,
                  RopeScaling* s, ModelConfig* model) {
  std::string kind = rope.text("rope_type", rope.text("type", "default"));
  if (kind == "su") kind = "longrope";  // what the first Phi-3 models called it
  if (kind == "default" || kind == "mrope") return;  // mrope: three positions of an image, one of a token of text
  const struct {
    const char* name;
    RopeScalingKind kind;
    bool needs_factor;
  } kinds[] = {
      {"linear", RopeScalingKind::kLinear, true},      {"dynamic", RopeScalingKind::kDynamic, true},
      {"llama3", RopeScalingKind::kLlama3, true},      {"yarn", RopeScalingKind::kYarn, false},
      {"longrope", RopeScalingKind::kLongRope, false}, {"proportional", RopeScalingKind::kProportional, false}};
  const auto* found = std::find_if(std::begin(kinds), std::end(kinds), [&](const auto& k) { return kind == k.name; });
  if (found == std::end(kinds))
    return rope.fail(
        unsupported("rope scaling \"" + kind.substr(0, 60) +
                    "\" is not supported; supported: linear, dynamic, llama3, yarn, longrope, proportional"));
  if (found->needs_factor && !rope.has("factor"))
    return rope.fail(data_loss("rope scaling \"" + kind + "\" needs \"factor\""));
  s->kind = found->kind;
  const int64_t original =
      rope.integer("original_max_position_embeddings", model->max_position_embeddings, 1, kMaxPositions);
  s->original_max_position_embeddings = static_cast<int32_t>(
      defaults.original_max_position_embeddings > 0 ? defaults.original_max_position_embeddings : original);
  const bool is_proportional = s->kind == RopeScalingKind::kProportional;
  s->factor = rope.number("factor", is_proportional ? 1 : default_factor(*s, *model), 1e-3, kMaxNumber);
  if (is_proportional) s->rotated_share = rope.number("partial_rotary_factor", 1, 0, 1);
  if (s->kind == RopeScalingKind::kLlama3) read_llama3(rope, s);
  if (s->kind == RopeScalingKind::kYarn) read_yarn(rope, config.theta, s);
  if (s->kind == RopeScalingKind::kLongRope) read_longrope(rope, rotary_dim, s);
  if (s->kind == RopeScalingKind::kDynamic) read_dynamic(rope, rotary_dim, s, model);
}

// Where the architecture rotates whole heads, the name must not be there with another value than 1.
double read_partial_factor(ConfigFields& f, const char* name, const RopeDefaults& defaults) {
  if (defaults.partial_name != nullptr) return f.number(name, defaults.partial_rotary_factor, 0, 1);
  if (f.number("partial_rotary_factor", 1, 0, 1) != 1)
    f.fail(unsupported("\"partial_rotary_factor\" other than 1 is not supported for this architecture"));
  return 1;
}

int32_t read_rotary_dim(ConfigFields& f, double factor, int32_t head_dim) {
  const auto dim = static_cast<int32_t>(head_dim * factor);
  if (dim >= 2 && dim % 2 == 0) return dim;
  f.fail(data_loss("\"partial_rotary_factor\" rotates " + std::to_string(dim) + " of " + std::to_string(head_dim) +
                   " channels, expected an even number from 2 on"));
  return head_dim;
}

}  // namespace

RopeConfig read_rope_object(ConfigFields& f, const nlohmann::json& object, const char* where,
                            const RopeDefaults& defaults, ModelConfig* config) {
  RopeConfig rope;
  ConfigFields fields(object);
  rope.theta = fields.number("rope_theta", defaults.theta, 1, kMaxNumber);
  const int32_t head_dim = defaults.head_dim > 0 ? defaults.head_dim : config->head_dim;
  // Proportional ropes leave the other pairs of channels where they are: all are rotated, some by nothing.
  const bool is_proportional = fields.text("rope_type", "") == "proportional";
  const double partial = is_proportional ? 1 : read_partial_factor(fields, "partial_rotary_factor", defaults);
  rope.rotary_dim = read_rotary_dim(fields, partial, head_dim);
  if (fields.status().ok()) read_scaling(fields, defaults, rope, rope.rotary_dim, &rope.scaling, config);
  f.fail(fields.status().with_context(where));
  return rope;
}

RopeConfig read_rope(ConfigFields& f, const RopeDefaults& defaults, ModelConfig* config) {
  RopeDefaults d = defaults;
  d.theta = f.number(d.theta_name, d.theta, 1, kMaxNumber);
  d.partial_rotary_factor = read_partial_factor(f, d.partial_name, defaults);
  if (f.has("original_max_position_embeddings"))
    d.original_max_position_embeddings =
        static_cast<int32_t>(f.integer("original_max_position_embeddings", {}, 1, kMaxPositions));
  const std::string where = f.pick("rope_scaling|rope_parameters");
  static const nlohmann::json kNothing = nlohmann::json::object();
  const nlohmann::json* object = f.has(where.c_str()) ? f.find(where.c_str()) : &kNothing;
  if (!object->is_object()) {
    f.fail(data_loss("\"" + where + "\" is not an object"));
    return {};
  }
  for (const auto& [key, value] : object->items())
    if (value.is_object())
      f.fail(unsupported("rope parameters by layer type (\"" + key.substr(0, 60) + "\") are not supported"));
  return read_rope_object(f, *object, where.c_str(), d, config);
}

}  // namespace llmb
