// The global functions of chat templates.
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/text.h"

namespace llmb::jinja {

void check_namespace_attribute(std::string_view name) {
  if (name.starts_with("_")) {
    throw template_error("Chat templates cannot store underscore-prefixed attributes on a namespace, but got " +
                         repr_text(name) + ". Please rename the attribute.");
  }
}

namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2's MAX_RANGE

Value global_range(Call& c) {
  const int64_t start = c.given(1) ? c.integer(0, 0) : 0;
  const int64_t stop = c.given(1) ? c.integer(1, 0) : c.integer(0, 0);
  const int64_t step = c.integer(2, 1);
  if (step == 0) throw value_error("range() arg 3 must not be zero");
  uint64_t length = 0;
  if (step > 0 && start < stop) {
    length = (static_cast<uint64_t>(stop) - static_cast<uint64_t>(start) - 1) / static_cast<uint64_t>(step) + 1;
  } else if (step < 0 && start > stop) {
    length = (static_cast<uint64_t>(start) - static_cast<uint64_t>(stop) - 1) / -static_cast<uint64_t>(step) + 1;
  }
  if (length > static_cast<uint64_t>(kMaxRange)) {
    throw template_error("Range too big. The sandbox blocks ranges larger than MAX_RANGE (" +
                         std::to_string(kMaxRange) + ").");
  }
  return Value(Type::kRange, c.heap.make<Range>(start, stop, step, static_cast<int64_t>(length)));
}

// dict(mapping_or_pairs, **named)
Value make_dict(Call& c) {
  if (c.all.positional.size() > 1) throw type_error("dict expected at most 1 argument");
  auto* dict = c.heap.make<Dict>();
  const Value result(Type::kDict, dict);
  if (!c.all.positional.empty()) {
    const Value& source = c.all.positional[0];
    if (source.is(Type::kDict)) {
      for (const auto& [key, value] : source.as<Dict>().entries) dict->set(key, value);
    } else {
      for_each(c.in, source, [&](const Value& pair) {
        const Value list = to_list(c.in, pair);
        const auto& parts = list.as<List>().items;
        if (parts.size() != 2) throw value_error("a dictionary update sequence element needs length 2");
        dict->set(parts[0], parts[1]);
        return true;
      });
    }
  }
  for (auto& [name, value] : c.all.keyword) dict->set(make_string(c.heap, name), value);
  return result;
}

Value global_namespace(Call& c) {
  const Value attributes = make_dict(c);
  for (const auto& [key, value] : attributes.as<Dict>().entries) {
    if (key.is_string()) check_namespace_attribute(text_of(key));
  }
  auto* ns = c.heap.make<Namespace>();
  const Value result(Type::kNamespace, ns);
  ns->attributes = attributes;
  return result;
}

Value global_cycler(Call& c) {
  if (!c.all.keyword.empty()) throw type_error("cycler() takes no keyword arguments");
  if (c.all.positional.empty()) throw template_error("at least one item has to be provided");
  auto* cycler = c.heap.make<Cycler>();
  const Value result(Type::kCycler, cycler);
  cycler->grow(static_cast<int64_t>(c.all.positional.size() * sizeof(Value)));
  cycler->items = c.all.positional;
  return result;
}

Value global_joiner(Call& c) {
  auto* joiner = c.heap.make<Joiner>();
  const Value result(Type::kJoiner, joiner);
  joiner->separator = c.given(0) ? c.at(0) : make_string(c.heap, ", ");
  return result;
}

Value global_raise_exception(Call& c) {
  const Value message = to_string(c.heap, c.at(0));
  throw template_error(std::string(text_of(message).substr(0, char_offset(text_of(message), 2000))));
}

// datetime.now().strftime(format)
Value global_strftime_now(Call& c) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = static_cast<time_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count() % 1'000'000;
  tm local{};
  localtime_r(&seconds, &local);
  TextBuilder out(c.heap);
  const std::string_view format = c.text(0);
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%' || at + 1 == format.size()) {
      out.push_back(format[at]);
      continue;
    }
    c.heap.spend(4);
    std::string directive = "%";  // one at a time, so that no width reaches strftime
    if (std::string_view("-_0^#").find(format[at + 1]) != std::string_view::npos && at + 2 < format.size())
      directive += format[++at];
    directive += format[++at];
    if (directive == "%f") {
      const std::string digits = std::to_string(micros);
      out.append(std::string(6 - digits.size(), '0') + digits);
    } else if (std::string_view("aAwdbBmyYHIpMSjUWcxXGuVeDFTRrhntCgklsP%").find(format[at]) != std::string_view::npos) {
      std::array<char, 128> text;
      out.append(std::string_view(text.data(), strftime(text.data(), text.size(), directive.c_str(), &local)));
    } else if (format[at] != 'z' && format[at] != 'Z') {  // a time without zone: these print nothing
      out.append(directive);
    }
  }
  return out.finish();
}

constexpr Builtin kGlobals[] = {
    {"cycler", global_cycler, nullptr},
    {"dict", make_dict, nullptr},
    {"joiner", global_joiner, "sep"},
    {"namespace", global_namespace, nullptr},
    {"range", global_range, "start! stop step"},
    {"raise_exception", global_raise_exception, "message!"},
    {"strftime_now", global_strftime_now, "format!"},
};

}  // namespace

const Builtin* find_global(std::string_view name) { return find_in(kGlobals, name); }

}  // namespace llmb::jinja
