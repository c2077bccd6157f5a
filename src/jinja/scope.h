// Gives every name of a template a place in a frame, by the rules of jinja2's symbol analysis: a loop, macro, with or
// block body has variables of its own; an `if` has none; a name that a frame sets starts as the outer one's value.
#pragma once

#include "jinja/ast.h"

namespace llmb::jinja {

// Fills in all FrameInfos, Locations and slots. Throws jinja::Error for a loop that assigns to `loop`.
void resolve_names(Template* tmpl);

}  // namespace llmb::jinja
