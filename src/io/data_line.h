// Lines of data: rows of CSV, lines of text, and JSON lines that --template or --prompt-field makes prompts of. Only the
// field that becomes the prompt, or the template, and an id are read; no other field of theirs means anything.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/request.h"

namespace llmb {

struct DataMapping {
  // Makes the prompt of a JSON object of fields; null: prompt_field is the prompt.
  std::function<Result<std::string>(std::string_view fields_json)> render;
  std::string prompt_field;           // "": "prompt" of CSV and TSV, the line of text; JSON lines are requests then
  std::optional<std::string> system;  // set: the prompt is a user's message, behind this of the system unless it is ""
  // Fields that the record repeats, also of requests.
  bool keeps_all = false;
  std::vector<std::string> kept_fields;

  bool maps_json_lines() const { return render != nullptr || !prompt_field.empty(); }
};

}  // namespace llmb
