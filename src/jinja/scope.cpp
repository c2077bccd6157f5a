#include "jinja/scope.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "jinja/walk.h"

namespace llmb::jinja {

namespace {

// Adds to `used` those of caller, kwargs and varargs that are read anywhere in the body.
void find_special_names(const Body& body, std::set<std::string>* used) {
  const auto on_expr = [&](Expr& e) {
    visit_names(e, [&](const std::string& name, Location*) {
      if (name == "caller" || name == "kwargs" || name == "varargs") used->insert(name);
    });
  };
  for (const auto& s : body) visit_parts(*s, on_expr, [&](const Body& b) { find_special_names(b, used); });
}

// ---- frames -------------------------------------------------------------------------------------

// A frame whose variables are settled.
struct Frame {
  const Frame* parent = nullptr;
  std::map<std::string, int, std::less<>> slots;
  bool in_loop = false;  // inside a loop, where `loop` must not be set

  Location find(const std::string& name) const {
    int hops = 0;
    for (const Frame* f = this; f != nullptr; f = f->parent, ++hops) {
      if (const auto at = f->slots.find(name); at != f->slots.end()) return {hops, at->second};
    }
    return {};
  }
};

// Finds out the variables of one frame by walking its code in order. Branches of an `if` are layers over what was
// known before it, which are merged behind it.
class Analysis {
 public:
  explicit Analysis(const Frame* parent) : parent_(parent) {}

  void declare(const std::string& name) {
    add_store(name);
    know({name, Load::kParameter, {}});
  }

  void load(Expr& e) {
    visit_names(e, [&](const std::string& name, Location*) {
      if (!knows(name) && outer(name).slot < 0) know({name, Load::kResolve, {}});
    });
  }

  void store(Expr& target) {
    if (target.kind == ExprKind::kNamespaceRef) return load(target);
    visit_names(target, [&](const std::string& name, Location*) { store(name); });
  }

  void store(const std::string& name) {
    add_store(name);
    if (knows(name)) return;
    const Location at = outer(name);
    know({name, at.slot >= 0 ? Load::kAlias : Load::kUndefined, at});
  }

  void declare_all(Expr& target) {
    visit_names(target, [&](const std::string& name, Location*) { declare(name); });
  }

  void body(const Body& statements) {
    for (const auto& s : statements) statement(*s);
  }

  Frame finish(FrameInfo* info, bool in_loop) const {
    Frame frame;
    frame.parent = parent_;
    frame.in_loop = in_loop;
    for (const auto& [name, variable] : top_->known) {
      frame.slots[name] = static_cast<int>(info->variables.size());
      info->variables.push_back(variable);
    }
    return frame;
  }

 private:
  struct Layer {
    std::map<std::string, Variable> known;
    std::set<std::string> stores;
  };
  struct Count {
    int known = 0, stored = 0;  // layers in force that have the name
  };

  bool knows(const std::string& name) const {
    const auto at = counts_.find(name);
    return at != counts_.end() && at->second.known > 0;
  }
  bool stored(const std::string& name) const {
    const auto at = counts_.find(name);
    return at != counts_.end() && at->second.stored > 0;
  }
  void know(const Variable& variable) {
    if (top_->known.insert_or_assign(variable.name, variable).second) ++counts_[variable.name].known;
  }
  void add_store(const std::string& name) {
    if (top_->stores.insert(name).second) ++counts_[name].stored;
  }
  Location outer(const std::string& name) const { return parent_ == nullptr ? Location{} : parent_->find(name); }

  template <typename Walk>
  Layer branch(const Walk& walk) {
    Layer layer;
    Layer* const before = top_;
    top_ = &layer;
    walk();
    top_ = before;
    for (const auto& [name, variable] : layer.known) --counts_[name].known;
    for (const std::string& name : layer.stores) --counts_[name].stored;
    return layer;
  }

  void merge(std::initializer_list<Layer*> branches) {
    std::set<std::string> fresh;
    for (const Layer* b : branches) {
      std::copy_if(b->stores.begin(), b->stores.end(), std::inserter(fresh, fresh.end()),
                   [&](const std::string& name) { return !stored(name); });
    }
    for (Layer* b : branches) {
      for (const auto& [name, variable] : b->known) know(variable);
      for (const std::string& name : b->stores) add_store(name);
    }
    // Not set on every way: it begins as what it is outside.
    for (const std::string& name : fresh) {
      const Location at = outer(name);
      know({name, at.slot >= 0 ? Load::kAlias : Load::kResolve, at});
    }
  }

  void conditional(const std::pair<ExprPtr, Body>& first, const std::vector<std::pair<ExprPtr, Body>>& all,
                   const Body& otherwise) {
    load(*first.first);
    Layer yes = branch([&] { body(first.second); });
    static const std::vector<std::pair<ExprPtr, Body>> kNone;
    Layer elifs = branch([&] {
      for (size_t i = 1; i < all.size(); ++i) conditional(all[i], kNone, {});
    });
    Layer no = branch([&] { body(otherwise); });
    merge({&yes, &elifs, &no});
  }

  void statement(Stmt& s) {
    switch (s.kind) {
      case StmtKind::kOutput:
        for (const auto& e : static_cast<OutputStmt&>(s).items) load(*e);
        return;
      case StmtKind::kIf: {
        auto& node = static_cast<IfStmt&>(s);
        return conditional(node.branches.front(), node.branches, node.otherwise);
      }
      case StmtKind::kFor:
        return load(*static_cast<ForStmt&>(s).iterable);
      case StmtKind::kSet:
        load(*static_cast<SetStmt&>(s).value);
        return store(*static_cast<SetStmt&>(s).target);
      case StmtKind::kSetBlock:
        return store(*static_cast<SetBlockStmt&>(s).target);
      case StmtKind::kMacro:
        return store(static_cast<MacroStmt&>(s).target.name);
      case StmtKind::kCallBlock:
        return load(*static_cast<CallBlockStmt&>(s).call);
      case StmtKind::kFilterBlock:
        return load(*static_cast<FilterBlockStmt&>(s).filter);
      case StmtKind::kWith:
        for (const auto& [target, value] : static_cast<WithStmt&>(s).assignments) load(*value);
        return;
      case StmtKind::kBlock:
      case StmtKind::kGeneration:
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        return;
    }
  }

  const Frame* parent_;
  std::unordered_map<std::string, Count> counts_;
  Layer own_;
  Layer* top_ = &own_;
};

// ---- binding ------------------------------------------------------------------------------------

void bind_body(const Body& body, const Frame& frame);

void bind(Expr& e, const Frame& frame) {
  visit_names(e, [&](const std::string& name, Location* at) { *at = frame.find(name); });
}

void bind_target(Expr& target, const Frame& frame) {
  visit_names(target, [&](const std::string& name, Location* at) {
    if (name == "loop" && frame.in_loop) {
      throw template_error("Can't assign to special loop variable in for-loop target (line " +
                           std::to_string(target.line) + ")");
    }
    *at = frame.find(name);
  });
}

void bind_for(ForStmt& node, const Frame& frame) {
  bind(*node.iterable, frame);
  Analysis loop(&frame);
  loop.declare("loop");
  loop.declare_all(*node.target);
  loop.body(node.body);
  const Frame body_frame = loop.finish(&node.body_frame, true);
  node.loop_slot = body_frame.find("loop").slot;
  bind_target(*node.target, body_frame);
  bind_body(node.body, body_frame);
  if (node.condition != nullptr) {
    Analysis condition(&frame);
    condition.declare_all(*node.condition_target);
    condition.load(*node.condition);
    const Frame condition_frame = condition.finish(&node.condition_frame, true);
    bind_target(*node.condition_target, condition_frame);
    bind(*node.condition, condition_frame);
  }
  Analysis otherwise(&frame);
  otherwise.body(node.otherwise);
  bind_body(node.otherwise, otherwise.finish(&node.otherwise_frame, true));
}

void bind_macro(MacroCode& code, const Frame& frame, int line) {
  std::set<std::string> used;
  find_special_names(code.body, &used);
  Analysis analysis(&frame);
  for (const auto& p : code.parameters) analysis.declare(p->name);
  for (const auto& e : code.defaults) analysis.load(*e);
  analysis.body(code.body);
  const auto is_parameter = [&](const std::string& name) {
    return std::any_of(code.parameters.begin(), code.parameters.end(), [&](const auto& p) { return p->name == name; });
  };
  if (used.count("caller") > 0 && code.explicit_caller) {
    const size_t first_default = code.parameters.size() - code.defaults.size();
    for (size_t i = 0; i < first_default; ++i) {
      if (code.parameters[i]->name == "caller") {
        throw template_error("the special \"caller\" argument must be omitted or be given a default (line " +
                             std::to_string(line) + ")");
      }
    }
    used.erase("caller");
  }
  for (const std::string& name : used) {
    if (!is_parameter(name)) analysis.declare(name);
  }
  const Frame inner = analysis.finish(&code.frame, false);
  const auto slot_of = [&](const char* name) {
    return used.count(name) > 0 && !is_parameter(name) ? inner.find(name).slot : -1;
  };
  code.caller_slot = slot_of("caller");
  code.kwargs_slot = slot_of("kwargs");
  code.varargs_slot = slot_of("varargs");
  for (const auto& p : code.parameters) bind_target(*p, inner);
  for (const auto& e : code.defaults) bind(*e, inner);
  bind_body(code.body, inner);
}

void bind_with(WithStmt& node, const Frame& frame) {
  Analysis analysis(&frame);
  for (const auto& [target, value] : node.assignments) analysis.declare_all(*target);
  analysis.body(node.body);
  const Frame inner = analysis.finish(&node.frame, frame.in_loop);
  for (const auto& [target, value] : node.assignments) {
    bind_target(*target, inner);
    bind(*value, frame);
  }
  bind_body(node.body, inner);
}

void bind_scoped(const Body& body, Expr* filter, FrameInfo* info, const Frame* parent, bool in_loop) {
  Analysis analysis(parent);
  analysis.body(body);
  if (filter != nullptr) analysis.load(*filter);
  const Frame inner = analysis.finish(info, in_loop);
  bind_body(body, inner);
  if (filter != nullptr) bind(*filter, inner);
}

void bind_statement(Stmt& s, const Frame& frame) {
  switch (s.kind) {
    case StmtKind::kOutput:
      for (const auto& e : static_cast<OutputStmt&>(s).items) bind(*e, frame);
      return;
    case StmtKind::kIf: {
      auto& node = static_cast<IfStmt&>(s);
      for (const auto& [condition, branch] : node.branches) bind(*condition, frame), bind_body(branch, frame);
      return bind_body(node.otherwise, frame);
    }
    case StmtKind::kFor:
      return bind_for(static_cast<ForStmt&>(s), frame);
    case StmtKind::kSet:
      bind(*static_cast<SetStmt&>(s).value, frame);
      return bind_target(*static_cast<SetStmt&>(s).target, frame);
    case StmtKind::kSetBlock: {
      auto& node = static_cast<SetBlockStmt&>(s);
      bind_target(*node.target, frame);
      return bind_scoped(node.body, node.filter.get(), &node.frame, &frame, frame.in_loop);
    }
    case StmtKind::kMacro:
      bind_target(static_cast<MacroStmt&>(s).target, frame);
      return bind_macro(static_cast<MacroStmt&>(s).code, frame, s.line);
    case StmtKind::kCallBlock:
      bind(*static_cast<CallBlockStmt&>(s).call, frame);
      return bind_macro(static_cast<CallBlockStmt&>(s).code, frame, s.line);
    case StmtKind::kFilterBlock: {
      auto& node = static_cast<FilterBlockStmt&>(s);
      return bind_scoped(node.body, node.filter.get(), &node.frame, &frame, frame.in_loop);
    }
    case StmtKind::kWith:
      return bind_with(static_cast<WithStmt&>(s), frame);
    case StmtKind::kBlock:
      return bind_scoped(static_cast<ScopedStmt&>(s).body, nullptr, &static_cast<ScopedStmt&>(s).frame, nullptr, false);
    case StmtKind::kGeneration:
      return bind_scoped(static_cast<ScopedStmt&>(s).body, nullptr, &static_cast<ScopedStmt&>(s).frame, &frame, false);
    case StmtKind::kBreak:
    case StmtKind::kContinue:
      return;
  }
}

void bind_body(const Body& body, const Frame& frame) {
  for (const auto& s : body) bind_statement(*s, frame);
}

}  // namespace

void resolve_names(Template* tmpl) {
  Analysis analysis(nullptr);
  analysis.body(tmpl->body);
  bind_body(tmpl->body, analysis.finish(&tmpl->frame, false));
}

}  // namespace llmb::jinja
