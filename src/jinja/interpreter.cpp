#include "jinja/interpreter.h"

#include "jinja/builtins.h"
#include "jinja/iter.h"
#include "jinja/ops.h"

namespace llmb::jinja {

namespace {

// The elements that satisfy the condition of a for loop.
class ConditionIterator final : public Iterator {
 public:
  ConditionIterator(const Stmt& node, Value source, Value scope)
      : node_(node), source_(std::move(source)), scope_(std::move(scope)) {}
  void drop_references() override {
    source_ = Value();
    scope_ = Value();
  }
  bool next(Interpreter& in, Value* out) override {
    while (advance(in, source_, out)) {
      const bool take = in.within(scope_, [&] {
        in.assign(*node_.targets[1], *out);
        return truthy(in.eval(*node_.exprs[1]));
      });
      if (take) return true;
    }
    return false;
  }

 private:
  const Stmt& node_;
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
    const auto& variables = template_.block.frame.variables;
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

void Interpreter::assign(const Expr& target, Value value) {
  if (target.kind == ExprKind::kName) {
    scope_at(target.at.hops).slots[static_cast<size_t>(target.at.slot)] = std::move(value);
    return;
  }
  if (target.kind == ExprKind::kNamespaceRef) {
    const std::string& attribute = target.names[0];
    const Value ns = scope_at(target.at.hops).slots[static_cast<size_t>(target.at.slot)];
    if (!ns.is(Type::kNamespace)) throw template_error("cannot assign attribute on non-namespace object");
    check_namespace_attribute(attribute);
    ns.as<Namespace>().attributes.as<Dict>().set(make_string(heap_, attribute), std::move(value));
    return;
  }
  std::vector<Value> parts;
  for_each(*this, value, [&](const Value& v) {
    parts.push_back(v);
    return parts.size() <= target.parts.size();
  });
  const std::string expected = "(expected " + std::to_string(target.parts.size());
  if (parts.size() > target.parts.size()) throw value_error("too many values to unpack " + expected + ")");
  if (parts.size() < target.parts.size())
    throw value_error("not enough values to unpack " + expected + ", got " + std::to_string(parts.size()) + ")");
  for (size_t i = 0; i < parts.size(); ++i) assign(*target.parts[i], std::move(parts[i]));
}

// ---- statements ---------------------------------------------------------------------------------

std::string Interpreter::run() {
  TextBuilder out(heap_);
  const Redirect redirect(&out_, &out);
  scope_ = enter(template_.block.frame, Value());
  root_scope_ = scope_;
  exec_body(template_.block.body);
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
      exec_output(s);
      break;
    case StmtKind::kIf:
      return exec_if(s);
    case StmtKind::kFor:
      return run_loop(s, eval(*s.exprs[0]), 0);
    case StmtKind::kSet:
      assign(*s.targets[0], eval(*s.exprs[0]));
      break;
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock:
      return exec_filtered(s);
    case StmtKind::kMacro:
      assign(*s.targets[0], Value(Type::kMacro, heap_.make<Macro>(s.code.get(), scope_)));
      break;
    case StmtKind::kCallBlock: {
      const Value caller(Type::kMacro, heap_.make<Macro>(s.code.get(), scope_));
      print(eval_call(*s.exprs[0], &caller));
      break;
    }
    case StmtKind::kWith:
      return exec_with(s);
    case StmtKind::kBlock:
    case StmtKind::kGeneration: {
      const bool is_block = s.kind == StmtKind::kBlock;
      block_depth_ += is_block;
      const Value inner = enter(s.blocks[0].frame, is_block ? Value() : scope_);
      within(inner, [&] { exec_body(s.blocks[0].body); });
      block_depth_ -= is_block;
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

void Interpreter::exec_output(const Stmt& s) {
  for (const ExprPtr& item : s.exprs) {
    if (item->kind == ExprKind::kConst && item->type == Type::kString) {
      out_->append(item->text);
      check_output();
    } else {
      print(eval(*item));
    }
  }
}

Interpreter::Flow Interpreter::exec_if(const Stmt& s) {
  size_t i = 0;
  while (i < s.exprs.size() && !truthy(eval(*s.exprs[i]))) ++i;
  return exec_body(s.blocks[i].body);
}

Interpreter::Flow Interpreter::exec_block(const Block& block) {
  const Value scope = enter(block.frame, scope_);
  return within(scope, [&] { return exec_body(block.body); });
}

Interpreter::Flow Interpreter::run_loop(const Stmt& s, const Value& iterable, int64_t depth0) {
  auto* loop = heap_.make<Loop>();
  const Value loop_value(Type::kLoop, loop);
  loop->depth0 = depth0;
  loop->recursive = s.recursive ? &s : nullptr;
  loop->scope = scope_;
  loop->iterable = iterable;
  loop->iterator = make_iterator(*this, iterable);
  if (s.exprs[1] != nullptr) {
    const Value scope = enter(s.blocks[2].frame, scope_);
    loop->iterator = Value(Type::kIterator, heap_.make<ConditionIterator>(s, loop->iterator, scope));
    loop->iterable = loop->iterator;
  }
  const Block& block = s.blocks[0];
  const Value inner = enter(block.frame, scope_);
  bool untouched = true;  // no element went through the whole body
  while (loop->step(*this)) {
    const Flow flow = within(inner, [&] {
      assign(*s.targets[0], loop->current);
      inner.as<Scope>().slots[static_cast<size_t>(s.loop_slot)] = loop_value;
      load_variables(block.frame, inner.as<Scope>());
      return exec_body(block.body);
    });
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) untouched = false;
  }
  for (Value& slot : inner.as<Scope>().slots) slot = Value();
  return untouched && !s.blocks[1].body.empty() ? exec_block(s.blocks[1]) : Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_with(const Stmt& s) {
  const Value inner = enter(s.blocks[0].frame, scope_);
  for (size_t i = 0; i < s.targets.size(); ++i) {
    Value v = eval(*s.exprs[i]);
    within(inner, [&] { assign(*s.targets[i], v); });
  }
  return within(inner, [&] { return exec_body(s.blocks[0].body); });
}

// A block whose text is filtered and printed, or filtered where there is a filter and assigned.
Interpreter::Flow Interpreter::exec_filtered(const Stmt& s) {
  const Value inner = enter(s.blocks[0].frame, scope_);
  TextBuilder text(heap_);
  Value value;
  const Flow flow = within(inner, [&] {
    const auto body = [&] {
      const Redirect redirect(&out_, &text);
      return exec_body(s.blocks[0].body);
    };
    const Flow result = body();
    value = text.finish();
    if (result == Flow::kNormal && s.exprs[0] != nullptr) value = eval_filter(*s.exprs[0], &value);
    if (result == Flow::kNormal && s.targets.empty()) print(value);
    return result;
  });
  if (flow == Flow::kNormal && !s.targets.empty()) assign(*s.targets[0], std::move(value));
  return flow;
}

}  // namespace llmb::jinja
