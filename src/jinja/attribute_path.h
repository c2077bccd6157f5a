// The attribute argument of filters: sort(attribute="a.b"), map(attribute=0), …
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "jinja/builtins.h"
#include "jinja/text.h"

namespace llmb::jinja {

// "a.b.0", a number, or none for the element itself.
struct AttributePath {
  std::vector<Value> parts;
  Value otherwise;          // in place of what is undefined; missing: nothing is
  bool folds_case = false;  // strings come out in lower case

  AttributePath() = default;
  AttributePath(Heap& heap, const Value* attribute) {
    if (attribute == nullptr || attribute->is_none()) return;
    if (attribute->is_string()) add_parts(heap, text_of(*attribute));
    else parts.push_back(*attribute);
  }

  void add_parts(Heap& heap, std::string_view text) {
    for (;;) {
      const size_t dot = std::min(text.find('.'), text.size());
      const std::string_view part = text.substr(0, dot);
      const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
      const auto value = is_number ? parse_int(part, 10) : std::nullopt;
      parts.push_back(value ? Value::integer(*value) : make_string(heap, std::string(part)));
      if (dot == text.size()) return;
      text.remove_prefix(dot + 1);
    }
  }

  Value of(Interpreter& in, Value item) const {
    for (const Value& part : parts) {
      item = get_item(in, item, part);
      if (item.is_undefined() && !otherwise.is_missing()) item = otherwise;
    }
    if (!folds_case || !item.is_string()) return item;
    Arguments none;
    return invoke(*find_method(item, "lower"), in, item, none);
  }
};

}  // namespace llmb::jinja
