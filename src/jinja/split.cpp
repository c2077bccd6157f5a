#include "jinja/split.h"

#include "jinja/ops.h"

namespace llmb::jinja {

Value replace_text(Heap& heap, const Value& text, const Value& old, const Value& replacement, int64_t count) {
  for (const Value* v : {&old, &replacement}) {
    require_defined(*v);
    if (!v->is_string()) throw type_error("replace() argument must be str, not " + std::string(type_name(*v)));
  }
  const bool markup = text.as<String>().markup;
  const Value new_value = markup ? escape(heap, replacement) : replacement;
  const std::string_view all = text_of(text), from = text_of(old), to = text_of(new_value);
  if (count < 0) count = INT64_MAX;
  heap.spend_chars(all.size());
  TextBuilder out(heap);
  size_t done = 0;
  if (from.empty()) {  // before every character, and at the end
    for (; count > 0; --count) {
      out.append(to);
      if (done == all.size()) break;
      size_t next = done;
      next_char(all, &next);
      out.append(all.substr(done, next - done));
      done = next;
    }
  } else {
    for (; count > 0; --count) {
      const size_t at = find_text(all, from, done);
      if (at == std::string_view::npos) break;
      out.append(all.substr(done, at - done));
      out.append(to);
      done = at + from.size();
    }
  }
  out.append(all.substr(done));
  return out.finish(markup);
}

}  // namespace llmb::jinja
