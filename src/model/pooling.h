// How a model's hidden states become one vector for a text, as its sentence-transformers files say.
#pragma once

#include <string>

#include "base/status.h"

namespace llmb {

struct Pooling {
  bool normalizes = true;  // the vector to a length of 1
};

// From `model_dir`/modules.json and the configuration of its pooling. Supported is the last token's state, normalised or
// not. takes_last: that, normalised, whatever the files say and where there are none. kUnsupported names what another
// model wants.
Result<Pooling> load_pooling(const std::string& model_dir, bool takes_last);

}  // namespace llmb
