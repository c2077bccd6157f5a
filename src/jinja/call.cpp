// Interpreter: calls, macros and the loop variable.
#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/ops.h"
#include "jinja/text.h"

namespace llmb::jinja {

// ---- calls --------------------------------------------------------------------------------------

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  const DepthGuard guard(*this);
  switch (callee.type()) {
    case Type::kFunction:
      return invoke(callee.as<Function>().code, *this, callee.as<Function>().self, arguments);
    case Type::kMacro:
      return call_macro(callee.as<Macro>(), arguments);
    case Type::kLoop:
      return call_loop(callee.as<Loop>(), arguments);
    case Type::kJoiner: {
      auto& joiner = callee.as<Joiner>();
      const bool first = !joiner.used;
      joiner.used = true;
      return first ? make_string(heap_, "") : joiner.separator;
    }
    default:
      require_defined(callee);
  }
  throw type_error("'" + std::string(type_name(callee)) + "' object is not callable");
}

void Interpreter::bind_parameters(const MacroCode& code, Scope& scope, Arguments& a) {
  const std::string name = "macro " + (code.name.empty() ? std::string("None") : repr_text(code.name));
  const size_t num_parameters = code.parameters.size();
  const auto take_keyword = [&](std::string_view keyword) {
    for (auto it = a.keyword.begin(); it != a.keyword.end(); ++it) {
      if (it->first != keyword) continue;
      Value v = std::move(it->second);
      a.keyword.erase(it);
      return v;
    }
    return Value();
  };
  const auto slot = [&](size_t i) -> Value& { return scope.slots[static_cast<size_t>(code.parameters[i]->at.slot)]; };
  for (size_t i = 0; i < num_parameters; ++i) {
    slot(i) = i < a.positional.size() ? a.positional[i] : take_keyword(code.parameters[i]->text);
  }
  if (code.caller_slot >= 0) {
    Value caller = take_keyword("caller");
    if (caller.is_missing() || caller.is_none()) caller = make_undefined(heap_, "No caller defined");
    scope.slots[static_cast<size_t>(code.caller_slot)] = caller;
  }
  if (code.kwargs_slot >= 0) {
    auto* dict = heap_.make<Dict>();
    scope.slots[static_cast<size_t>(code.kwargs_slot)] = Value(Type::kDict, dict);
    for (auto& [keyword, value] : a.keyword) dict->set(make_string(heap_, keyword), std::move(value));
  } else if (!a.keyword.empty()) {
    throw type_error(name + " takes no keyword argument " + repr_text(a.keyword.front().first));
  }
  if (code.varargs_slot >= 0) {
    auto* rest = heap_.make<List>();
    scope.slots[static_cast<size_t>(code.varargs_slot)] = Value(Type::kTuple, rest);
    for (size_t i = num_parameters; i < a.positional.size(); ++i) rest->push(a.positional[i]);
  } else if (a.positional.size() > num_parameters) {
    throw type_error(name + " takes not more than " + std::to_string(num_parameters) + " argument(s)");
  }
}

namespace {

// Counts nested calls of macros and recursive loops while it lives.
class CallGuard {
 public:
  CallGuard(int* depth, int limit) : depth_(depth) {
    if (*depth >= limit) throw budget_error("macros or loops of the chat template recurse too deeply");
    ++*depth;
  }
  ~CallGuard() { --*depth_; }
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;

 private:
  int* depth_;
};

}  // namespace

Value Interpreter::call_macro(const Macro& macro, Arguments& arguments) {
  const CallGuard guard(&call_depth_, heap_.limits().max_call_depth);
  const MacroCode& code = *macro.code;
  const Value scope = enter(code.block.frame, macro.scope);
  bind_parameters(code, scope.as<Scope>(), arguments);
  TextBuilder text(heap_);
  const Redirect redirect(&out_, &text);
  within(scope, [&] {
    const size_t first_default = code.parameters.size() - code.defaults.size();
    for (size_t i = 0; i < code.parameters.size(); ++i) {
      const Expr& parameter = *code.parameters[i];
      if (!scope.as<Scope>().slots[static_cast<size_t>(parameter.at.slot)].is_missing()) continue;
      assign(parameter, i >= first_default
                            ? eval(*code.defaults[i - first_default])
                            : make_undefined(heap_, "parameter " + repr_text(parameter.text) + " was not provided"));
    }
    exec_body(code.block.body);
  });
  return text.finish();
}

Value Interpreter::call_loop(Loop& loop, Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.keyword.empty())
    throw type_error("loop() takes one argument, the iterable");
  if (loop.recursive == nullptr) {
    throw type_error("The loop must have the 'recursive' marker to be called recursively.");
  }
  const CallGuard guard(&call_depth_, heap_.limits().max_call_depth);
  TextBuilder text(heap_);
  const Redirect redirect(&out_, &text);
  const Value scope = loop.scope;
  within(scope, [&] { run_loop(*loop.recursive, arguments.positional[0], loop.depth0 + 1); });
  return text.finish();
}

// ---- loop ---------------------------------------------------------------------------------------

void Loop::drop_references() {
  for (Value* v : {&iterable, &iterator, &previous, &current, &after, &last_changed, &scope}) *v = Value();
}

const Value& Loop::peek(Interpreter& in) {
  if (after.is_missing()) {
    Value next;
    if (advance(in, iterator, &next)) after = std::move(next);
  }
  return after;
}

int64_t Loop::length(Interpreter& in) {
  if (known_length >= 0) return known_length;
  if (!iterable.is(Type::kIterator)) return known_length = length_of(iterable);
  const Value rest = to_list(in, iterator);
  const int64_t count = length_of(rest);
  iterator = make_iterator(in, rest);
  return known_length = count + index0 + 1 + (after.is_missing() ? 0 : 1);
}

bool Loop::step(Interpreter& in) {
  Value next = std::move(after);
  after = Value();
  if (next.is_missing() && !advance(in, iterator, &next)) return false;
  ++index0;
  previous = std::move(current);
  current = std::move(next);
  return true;
}

// ---- macros as values ---------------------------------------------------------------------------

std::string macro_repr(const Value& macro) {
  const MacroCode& code = *macro.as<Macro>().code;
  return "<Macro " + (code.name.empty() ? std::string("anonymous") : repr_text(code.name)) + ">";
}

bool find_macro_property(Interpreter& in, const Value& macro, std::string_view name, Value* out) {
  const MacroCode& code = *macro.as<Macro>().code;
  const std::pair<std::string_view, int> kUses[] = {
      {"catch_kwargs", code.kwargs_slot}, {"catch_varargs", code.varargs_slot}, {"caller", code.caller_slot}};
  for (const auto& [use, slot] : kUses)
    if (name == use) return *out = Value::boolean(slot >= 0), true;
  if (name == "name") return *out = code.name.empty() ? Value::none() : make_string(in.heap(), code.name), true;
  if (name != "arguments") return false;
  std::vector<Value> names;
  for (const ExprPtr& p : code.parameters) names.push_back(make_string(in.heap(), p->text));
  return *out = make_sequence(in.heap(), Type::kTuple, names), true;
}

}  // namespace llmb::jinja
