#include "jinja/interpreter.h"

#include "jinja/builtins.h"
#include "jinja/iter.h"
#include "jinja/ops.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

// The elements that satisfy the condition of a for loop.
class ConditionIterator final : public Iterator {
 public:
  ConditionIterator(const ForStmt& node, Value source, Value scope)
      : node_(node), source_(std::move(source)), scope_(std::move(scope)) {}
  void drop_references() override {
    source_ = Value();
    scope_ = Value();
  }
  bool next(Interpreter& in, Value* out) override {
    while (advance(in, source_, out)) {
      const bool take = in.within(scope_, [&] {
        in.assign(*node_.condition_target, *out);
        return truthy(in.eval(*node_.condition));
      });
      if (take) return true;
    }
    return false;
  }

 private:
  const ForStmt& node_;
  Value source_, scope_;
};

}  // namespace

// ---- variables ----------------------------------------------------------------------------------

Interpreter::Interpreter(const Template& tmpl, Heap& heap) : template_(tmpl), heap_(heap) {
  const auto bytes = static_cast<int64_t>(static_cast<size_t>(tmpl.num_strings) * sizeof(Value));
  heap_.charge(bytes);
  strings_.resize(static_cast<size_t>(tmpl.num_strings));
}

Scope& Interpreter::scope_at(int hops) {
  const Value* scope = &scope_;
  for (; hops > 0; --hops) scope = &scope->as<Scope>().parent;
  return scope->as<Scope>();
}

Value Interpreter::resolve(const std::string& name) {
  heap_.spend(4);
  if (block_depth_ > 0) {  // a block sees what the template has set
    const auto& variables = template_.frame.variables;
    const auto& slots = root_scope_.as<Scope>().slots;
    for (size_t i = 0; i < variables.size() && i < slots.size(); ++i) {
      if (variables[i].name == name && !slots[i].is_missing()) return slots[i];
    }
  }
  const auto at = variables_.find(name);
  if (at != variables_.end()) return at->second;
  const Builtin* global = find_global(name);
  return global == nullptr ? Value() : Value(Type::kFunction, heap_.make<Function>(*global, Value()));
}

Value Interpreter::enter(const FrameInfo& frame, const Value& parent) {
  auto* scope = heap_.make<Scope>();
  Value result(Type::kScope, scope);
  scope->parent = parent;
  scope->grow(static_cast<int64_t>(frame.variables.size() * sizeof(Value)));
  scope->slots.resize(frame.variables.size());
  load_variables(frame, *scope);
  return result;
}

// Gives each variable what it begins with; a loop does so for every element.
void Interpreter::load_variables(const FrameInfo& frame, Scope& scope) {
  heap_.spend(static_cast<int64_t>(frame.variables.size()));
  for (size_t i = 0; i < frame.variables.size(); ++i) {
    const Variable& v = frame.variables[i];
    switch (v.load) {
      case Load::kParameter:
        break;
      case Load::kUndefined:
        scope.slots[i] = Value();
        break;
      case Load::kResolve:
        scope.slots[i] = resolve(v.name);
        break;
      case Load::kAlias: {
        const Value* outer = &scope.parent;
        for (int hops = v.outer.hops; hops > 0; --hops) outer = &outer->as<Scope>().parent;
        scope.slots[i] = outer->as<Scope>().slots[static_cast<size_t>(v.outer.slot)];
        break;
      }
    }
  }
}

Value Interpreter::undefined_name(const std::string& name) {
  return make_undefined(heap_, repr_text(name) + " is undefined");
}

void Interpreter::assign(const Expr& target, Value value) {
  if (target.kind == ExprKind::kName) {
    const auto& name = static_cast<const NameExpr&>(target);
    scope_at(name.at.hops).slots[static_cast<size_t>(name.at.slot)] = std::move(value);
    return;
  }
  if (target.kind == ExprKind::kNamespaceRef) {
    const auto& ref = static_cast<const NamespaceRefExpr&>(target);
    const Value ns = scope_at(ref.at.hops).slots[static_cast<size_t>(ref.at.slot)];
    if (!ns.is(Type::kNamespace)) throw template_error("cannot assign attribute on non-namespace object");
    if (ref.attribute[0] == '_') {
      throw template_error("Chat templates cannot store underscore-prefixed attributes on a namespace, but got " +
                           repr_text(ref.attribute) + ". Please rename the attribute.");
    }
    ns.as<Namespace>().attributes.as<Dict>().set(make_string(heap_, ref.attribute), std::move(value));
    return;
  }
  const auto& targets = static_cast<const ListExpr&>(target).items;
  std::vector<Value> parts;
  for_each(*this, value, [&](const Value& v) {
    parts.push_back(v);
    return parts.size() <= targets.size();
  });
  const std::string expected = std::to_string(targets.size());
  if (parts.size() > targets.size()) throw value_error("too many values to unpack (expected " + expected + ")");
  if (parts.size() < targets.size()) {
    throw value_error("not enough values to unpack (expected " + expected + ", got " + std::to_string(parts.size()) +
                      ")");
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(*targets[i], std::move(parts[i]));
}

// ---- statements ---------------------------------------------------------------------------------

std::string Interpreter::run() {
  TextBuilder out(heap_);
  const Redirect redirect(&out_, &out);
  scope_ = enter(template_.frame, Value());
  root_scope_ = scope_;
  exec_body(template_.body);
  return out.release();
}

Interpreter::Flow Interpreter::exec_body(const Body& body) {
  for (const auto& s : body) {
    const Flow flow = exec(*s);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec(const Stmt& s) {
  const DepthGuard guard(*this);
  switch (s.kind) {
    case StmtKind::kOutput:
      exec_output(static_cast<const OutputStmt&>(s));
      break;
    case StmtKind::kIf:
      return exec_if(static_cast<const IfStmt&>(s));
    case StmtKind::kFor:
      return exec_for(static_cast<const ForStmt&>(s));
    case StmtKind::kSet: {
      const auto& set = static_cast<const SetStmt&>(s);
      assign(*set.target, eval(*set.value));
      break;
    }
    case StmtKind::kSetBlock:
      return exec_set_block(static_cast<const SetBlockStmt&>(s));
    case StmtKind::kMacro: {
      const auto& macro = static_cast<const MacroStmt&>(s);
      assign(macro.target, Value(Type::kMacro, heap_.make<Macro>(&macro.code, scope_)));
      break;
    }
    case StmtKind::kCallBlock:
      exec_call_block(static_cast<const CallBlockStmt&>(s));
      break;
    case StmtKind::kFilterBlock:
      return exec_filter_block(static_cast<const FilterBlockStmt&>(s));
    case StmtKind::kWith:
      return exec_with(static_cast<const WithStmt&>(s));
    case StmtKind::kBlock:
    case StmtKind::kGeneration: {
      const auto& scoped = static_cast<const ScopedStmt&>(s);
      const bool block = s.kind == StmtKind::kBlock;
      block_depth_ += block;
      const Value inner = enter(scoped.frame, block ? Value() : scope_);
      within(inner, [&] { exec_body(scoped.body); });
      block_depth_ -= block;
      break;
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::check_output() const {
  if (static_cast<int64_t>(out_->size()) > heap_.limits().max_output_bytes) {
    throw budget_error("the chat template wrote more than " + std::to_string(heap_.limits().max_output_bytes) +
                       " bytes");
  }
}

void Interpreter::print(const Value& v) {
  if (!prints_undefined_) require_defined(v);
  append_str(*out_, v);
  check_output();
}

void Interpreter::exec_output(const OutputStmt& s) {
  for (const auto& item : s.items) {
    const auto* constant = item->kind == ExprKind::kConst ? static_cast<const ConstExpr*>(item.get()) : nullptr;
    if (constant != nullptr && constant->type == Type::kString) {
      out_->append(constant->text);
      check_output();
    } else {
      print(eval(*item));
    }
  }
}

Interpreter::Flow Interpreter::exec_if(const IfStmt& s) {
  for (const auto& [condition, body] : s.branches) {
    if (truthy(eval(*condition))) return exec_body(body);
  }
  return exec_body(s.otherwise);
}

Interpreter::Flow Interpreter::exec_for(const ForStmt& s) { return run_loop(s, eval(*s.iterable), 0); }

Interpreter::Flow Interpreter::run_loop(const ForStmt& s, const Value& iterable, int64_t depth0) {
  auto* loop = heap_.make<Loop>();
  const Value loop_value(Type::kLoop, loop);
  loop->depth0 = depth0;
  loop->recursive = s.recursive ? &s : nullptr;
  loop->scope = scope_;
  loop->iterable = iterable;
  loop->iterator = make_iterator(*this, iterable);
  if (s.condition != nullptr) {
    const Value scope = enter(s.condition_frame, scope_);
    loop->iterator = Value(Type::kIterator, heap_.make<ConditionIterator>(s, loop->iterator, scope));
    loop->iterable = loop->iterator;
  }
  const Value inner = enter(s.body_frame, scope_);
  bool untouched = true;  // no element went through the whole body
  while (loop->step(*this)) {
    const Flow flow = within(inner, [&] {
      assign(*s.target, loop->current);
      inner.as<Scope>().slots[static_cast<size_t>(s.loop_slot)] = loop_value;
      load_variables(s.body_frame, inner.as<Scope>());
      return exec_body(s.body);
    });
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) untouched = false;
  }
  for (Value& slot : inner.as<Scope>().slots) slot = Value();
  if (!untouched || s.otherwise.empty()) return Flow::kNormal;
  const Value scope = enter(s.otherwise_frame, scope_);
  return within(scope, [&] { return exec_body(s.otherwise); });
}

Interpreter::Flow Interpreter::exec_with(const WithStmt& s) {
  const Value inner = enter(s.frame, scope_);
  for (const auto& [target, value] : s.assignments) {
    Value v = eval(*value);
    within(inner, [&, &target = target] { assign(*target, v); });
  }
  return within(inner, [&] { return exec_body(s.body); });
}

Interpreter::Flow Interpreter::exec_set_block(const SetBlockStmt& s) {
  const Value inner = enter(s.frame, scope_);
  TextBuilder text(heap_);
  Value value;
  const Flow flow = within(inner, [&] {
    Flow result;
    {
      const Redirect redirect(&out_, &text);
      result = exec_body(s.body);
    }
    value = text.finish();
    if (result == Flow::kNormal && s.filter != nullptr)
      value = eval_filter(static_cast<const FilterExpr&>(*s.filter), &value);
    return result;
  });
  if (flow == Flow::kNormal) assign(*s.target, std::move(value));
  return flow;
}

Interpreter::Flow Interpreter::exec_filter_block(const FilterBlockStmt& s) {
  const Value inner = enter(s.frame, scope_);
  TextBuilder text(heap_);
  return within(inner, [&] {
    Flow result;
    {
      const Redirect redirect(&out_, &text);
      result = exec_body(s.body);
    }
    const Value value = text.finish();
    if (result == Flow::kNormal) print(eval_filter(static_cast<const FilterExpr&>(*s.filter), &value));
    return result;
  });
}

void Interpreter::exec_call_block(const CallBlockStmt& s) {
  const Value caller(Type::kMacro, heap_.make<Macro>(&s.code, scope_));
  print(eval_call(static_cast<const CallExpr&>(*s.call), &caller));
}

}  // namespace llmb::jinja
