#include "jinja/scope.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

namespace llmb::jinja {

namespace {

// Calls visit(name, location) for each name in e.
template <typename Visit>
void visit_names(Expr& e, const Visit& visit) {
  visit_tree(e, [&](Expr& part) {
    if (part.kind == ExprKind::kName || part.kind == ExprKind::kNamespaceRef) visit(part.text, &part.at);
  });
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

  // The branches of an `if` from number i on.
  void conditional(const Stmt& s, size_t i) {
    load(*s.exprs[i]);
    Layer yes = branch([&] { body(s.blocks[i].body); });
    Layer elifs = branch([&] {
      for (size_t k = i + 1; i == 0 && k < s.exprs.size(); ++k) conditional(s, k);
    });
    Layer no = branch([&] {
      if (i == 0) body(s.blocks.back().body);
    });
    merge({&yes, &elifs, &no});
  }

  void statement(Stmt& s) {
    switch (s.kind) {
      case StmtKind::kIf:
        return conditional(s, 0);
      case StmtKind::kFor:
        return load(*s.exprs[0]);
      case StmtKind::kSetBlock:
        return store(*s.targets[0]);
      case StmtKind::kBlock:
      case StmtKind::kGeneration:
        return;
      default:
        for (const ExprPtr& e : s.exprs) load(*e);
        if (s.kind == StmtKind::kSet || s.kind == StmtKind::kMacro) store(*s.targets[0]);
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

// A block whose frame lies in `parent`, with a filter that is evaluated inside it, or null.
void bind_block(Block& block, Expr* filter, const Frame* parent, bool in_loop) {
  Analysis analysis(parent);
  analysis.body(block.body);
  if (filter != nullptr) analysis.load(*filter);
  const Frame inner = analysis.finish(&block.frame, in_loop);
  bind_body(block.body, inner);
  if (filter != nullptr) bind(*filter, inner);
}

void bind_for(Stmt& s, const Frame& frame) {
  Expr &target = *s.targets[0], *condition = s.exprs[1].get();
  bind(*s.exprs[0], frame);
  Analysis loop(&frame);
  loop.declare("loop");
  loop.declare_all(target);
  loop.body(s.blocks[0].body);
  const Frame body_frame = loop.finish(&s.blocks[0].frame, true);
  s.loop_slot = body_frame.find("loop").slot;
  bind_target(target, body_frame);
  bind_body(s.blocks[0].body, body_frame);
  bind_block(s.blocks[1], nullptr, &frame, true);
  if (condition == nullptr) return;
  Analysis analysis(&frame);
  analysis.declare_all(*s.targets[1]);
  analysis.load(*condition);
  const Frame condition_frame = analysis.finish(&s.blocks[2].frame, true);
  bind_target(*s.targets[1], condition_frame);
  bind(*condition, condition_frame);
}

// Those of caller, kwargs and varargs that are read anywhere in the body.
std::set<std::string> special_names(const Body& body) {
  std::set<std::string> used;
  visit_tree(body, [&](Expr& e) {
    const bool is_special = e.text == "caller" || e.text == "kwargs" || e.text == "varargs";
    if (e.kind == ExprKind::kName && is_special) used.insert(e.text);
  });
  return used;
}

void bind_macro(MacroCode& code, const Frame& frame, int line) {
  std::set<std::string> used = special_names(code.block.body);
  Analysis analysis(&frame);
  for (const ExprPtr& p : code.parameters) analysis.declare(p->text);
  for (const ExprPtr& e : code.defaults) analysis.load(*e);
  analysis.body(code.block.body);
  for (size_t i = 0; i < code.parameters.size(); ++i) {
    const std::string& name = code.parameters[i]->text;
    const bool has_default = i + code.defaults.size() >= code.parameters.size();
    if (name == "caller" && used.contains(name) && !has_default) {
      throw template_error("the special \"caller\" argument must be omitted or be given a default (line " +
                           std::to_string(line) + ")");
    }
    used.erase(name);
  }
  for (const std::string& name : used) analysis.declare(name);
  const Frame inner = analysis.finish(&code.block.frame, false);
  const auto slot_of = [&](const char* name) { return used.contains(name) ? inner.find(name).slot : -1; };
  code.caller_slot = slot_of("caller");
  code.kwargs_slot = slot_of("kwargs");
  code.varargs_slot = slot_of("varargs");
  for (const ExprPtr& p : code.parameters) bind_target(*p, inner);
  for (const ExprPtr& e : code.defaults) bind(*e, inner);
  bind_body(code.block.body, inner);
}

void bind_with(Stmt& s, const Frame& frame) {
  Analysis analysis(&frame);
  for (const ExprPtr& target : s.targets) analysis.declare_all(*target);
  analysis.body(s.blocks[0].body);
  const Frame inner = analysis.finish(&s.blocks[0].frame, frame.in_loop);
  for (const ExprPtr& target : s.targets) bind_target(*target, inner);
  for (const ExprPtr& value : s.exprs) bind(*value, frame);
  bind_body(s.blocks[0].body, inner);
}

void bind_statement(Stmt& s, const Frame& frame) {
  switch (s.kind) {
    case StmtKind::kFor:
      return bind_for(s, frame);
    case StmtKind::kWith:
      return bind_with(s, frame);
    case StmtKind::kSetBlock:
      bind_target(*s.targets[0], frame);
      return bind_block(s.blocks[0], s.exprs[0].get(), &frame, frame.in_loop);
    case StmtKind::kFilterBlock:
      return bind_block(s.blocks[0], s.exprs[0].get(), &frame, frame.in_loop);
    case StmtKind::kBlock:
      return bind_block(s.blocks[0], nullptr, nullptr, false);
    case StmtKind::kGeneration:
      return bind_block(s.blocks[0], nullptr, &frame, false);
    default:
      for (const ExprPtr& e : s.exprs) bind(*e, frame);
      for (const ExprPtr& target : s.targets) bind_target(*target, frame);
      if (s.code != nullptr) bind_macro(*s.code, frame, s.line);
      for (const Block& block : s.blocks) bind_body(block.body, frame);  // of an `if`
  }
}

void bind_body(const Body& body, const Frame& frame) {
  for (const StmtPtr& s : body) bind_statement(*s, frame);
}

}  // namespace

void resolve_names(Template* tmpl) { bind_block(tmpl->block, nullptr, nullptr, false); }

}  // namespace llmb::jinja
