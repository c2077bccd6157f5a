// The request fields of one JSON object, each found by its Field.
#pragma once

#include <array>

#include "io/field_values.h"
#include "io/request_fields.h"

namespace llmb {

// The fields of a line, or of an OpenAI line's body. The values live as long as the parsed document.
class FieldSet {
 public:
  // nullptr where absent or null.
  const JsonElement* find(Field field) const {
    const Slot& slot = slots_[static_cast<int>(field)];
    return slot.count > 0 && !slot.value.is_null() ? &slot.value : nullptr;
  }
  bool has(Field field) const { return find(field) != nullptr; }

  // False where the field was there before.
  bool add(Field field, JsonElement value) {
    Slot& slot = slots_[static_cast<int>(field)];
    if (slot.count++ > 0) return false;
    slot.value = value;
    return true;
  }

 private:
  struct Slot {
    JsonElement value;
    int count = 0;
  };
  std::array<Slot, kNumFields> slots_;
};

}  // namespace llmb
