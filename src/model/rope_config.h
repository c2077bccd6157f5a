// Reads the rotary position embeddings of a config.json: theta, the rotated part of a head, and how frequencies are
// scaled for long contexts. Private to src/model.
#pragma once

#include "core/model_config.h"
#include "model/config_fields.h"

namespace llmb {

// Defaults of a model's configuration class, for fields that its config.json leaves out.
struct RopeDefaults {
  double theta = 10000;
  double partial_rotary_factor = 1;
  const char* theta_name = "rope_theta";
  const char* partial_name = nullptr;  // nullptr: whole heads are rotated, and a file that says otherwise is refused
  int32_t head_dim = 0;                // of the layers that are rotated so; 0: the model's
  int32_t original_max_position_embeddings = 0;  // 0: as in the scaling's object, or max_position_embeddings
};

// From "rope_scaling" or, in newer files, "rope_parameters". Dynamic scaling stretches config->max_position_embeddings
// to what it is made for. REQUIRES: config's sizes are read. What is wrong or not supported fails `f`.
RopeConfig read_rope(ConfigFields& f, const RopeDefaults& defaults, ModelConfig* config);

// The same from one object of rope parameters, for models that have several.
RopeConfig read_rope_object(ConfigFields& f, const nlohmann::json& object, const char* where,
                            const RopeDefaults& defaults, ModelConfig* config);

}  // namespace llmb
