// JSON Schemas (draft 2020-12, with draft 7's spellings; drafts 4, 6 and 7 where "$schema" names them) as rules.
// Answers are spelled as json_spelling.h says, with the properties in the schema's order, then required ones that it
// does not describe, then others. `format` is enforced as schema_formats.h says. What is not enforced exactly is
// refused, with keyword and JSON pointer.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "grammar/grammar_constraint.h"
#include "grammar/json_spelling.h"

namespace llmb::grammar {

// is_strict: OpenAI's rules for `strict` schemas hold, too: every object is closed by "additionalProperties": false and
// requires all its properties.
Result<Rules> json_schema_rules(std::string_view schema, bool is_strict = false);

// As SchemaDocument's. unsupported: "$schema" names another.
Result<int32_t> draft_of(const Json& schema);

// Any JSON object.
Result<Rules> json_object_rules();

// Looks up which tokens go on the text of a JSON string, for all grammars over the vocabulary: nearly every schema has
// strings, and their first masks take milliseconds where there are 150,000 tokens.
void look_up_strings(const std::shared_ptr<const Vocabulary>& vocabulary);

}  // namespace llmb::grammar
