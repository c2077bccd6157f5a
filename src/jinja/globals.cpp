// The global functions of chat templates.
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "jinja/args.h"
#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/methods.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2's MAX_RANGE

Value global_range(Interpreter& in, const Value&, Arguments& a) {
  const BoundArguments b("range", a, {"start", "stop", "step"}, 1);
  const int64_t start = b.given(1) ? b.integer(0, 0) : 0;
  const int64_t stop = b.given(1) ? b.integer(1, 0) : b.integer(0, 0);
  const int64_t step = b.integer(2, 1);
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
  return Value(Type::kRange, in.heap().make<Range>(start, stop, step, static_cast<int64_t>(length)));
}

// dict(mapping_or_pairs, **named)
Value make_dict(Interpreter& in, Arguments& a) {
  if (a.positional.size() > 1) throw type_error("dict expected at most 1 argument");
  auto* dict = in.heap().make<Dict>();
  const Value result(Type::kDict, dict);
  if (!a.positional.empty()) {
    const Value& source = a.positional[0];
    if (source.is(Type::kDict)) {
      for (const auto& [key, value] : source.as<Dict>().entries) dict->set(key, value);
    } else {
      for_each(in, source, [&](const Value& pair) {
        Value holder;
        const List* parts = collect(in, pair, &holder);
        if (parts->items.size() != 2) throw value_error("a dictionary update sequence element needs length 2");
        dict->set(parts->items[0], parts->items[1]);
        return true;
      });
    }
  }
  for (auto& [name, value] : a.keyword) dict->set(make_string(in.heap(), name), value);
  return result;
}

Value global_dict(Interpreter& in, const Value&, Arguments& a) { return make_dict(in, a); }

Value global_namespace(Interpreter& in, const Value&, Arguments& a) {
  const Value attributes = make_dict(in, a);
  for (const auto& [key, value] : attributes.as<Dict>().entries) {
    if (key.is_string() && text_of(key).starts_with("_")) {
      throw template_error("Chat templates cannot store underscore-prefixed attributes on a namespace, but got " +
                           repr_text(text_of(key)) + ". Please rename the attribute.");
    }
  }
  auto* ns = in.heap().make<Namespace>();
  const Value result(Type::kNamespace, ns);
  ns->attributes = attributes;
  return result;
}

Value global_cycler(Interpreter& in, const Value&, Arguments& a) {
  if (!a.keyword.empty()) throw type_error("cycler() takes no keyword arguments");
  if (a.positional.empty()) throw template_error("at least one item has to be provided");
  auto* cycler = in.heap().make<Cycler>();
  const Value result(Type::kCycler, cycler);
  cycler->grow(static_cast<int64_t>(a.positional.size() * sizeof(Value)));
  cycler->items = a.positional;
  return result;
}

Value global_joiner(Interpreter& in, const Value&, Arguments& a) {
  const BoundArguments b("joiner", a, {"sep"});
  auto* joiner = in.heap().make<Joiner>();
  const Value result(Type::kJoiner, joiner);
  joiner->separator = b.given(0) ? b.at(0) : make_string(in.heap(), ", ");
  return result;
}

Value global_raise_exception(Interpreter& in, const Value&, Arguments& a) {
  const BoundArguments b("raise_exception", a, {"message"}, 1);
  const Value message = to_string(in.heap(), b.at(0));
  throw template_error(std::string(text_of(message).substr(0, char_offset(text_of(message), 2000))));
}

// datetime.now().strftime(format)
Value global_strftime_now(Interpreter& in, const Value&, Arguments& a) {
  const BoundArguments b("strftime_now", a, {"format"}, 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = static_cast<time_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count() % 1'000'000;
  tm local{};
  localtime_r(&seconds, &local);
  TextBuilder out(in.heap());
  const std::string_view format = b.text(0);
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%' || at + 1 == format.size()) {
      out.push_back(format[at]);
      continue;
    }
    in.heap().spend(4);
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

constexpr MethodEntry kGlobals[] = {
    {"cycler", global_cycler},
    {"dict", global_dict},
    {"joiner", global_joiner},
    {"namespace", global_namespace},
    {"range", global_range},
    {"raise_exception", global_raise_exception},
    {"strftime_now", global_strftime_now},
};

}  // namespace

Value find_global(Heap& heap, std::string_view name) {
  for (const MethodEntry& entry : kGlobals) {
    if (name == entry.name) return Value(Type::kFunction, heap.make<Function>(entry.name, entry.call, Value()));
  }
  return Value();
}

}  // namespace llmb::jinja
