// Tokens to a Template.
#pragma once

#include <memory>
#include <string_view>

#include "jinja/ast.h"

namespace llmb::jinja {

// Throws jinja::Error, with the line, for syntax errors, for unknown filters and tests outside conditions, and by name
// for what chat templates may not use (include, import, from, extends, autoescape).
std::unique_ptr<Template> parse_template(std::string_view source);

}  // namespace llmb::jinja
