// Runs a parsed template over a context of variables, within the limits of its heap.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "jinja/value.h"

namespace llmb::jinja {

// The variables of an entered frame.
struct Scope : Object {
  void drop_references() override {
    slots.clear();
    parent = Value();
  }
  std::vector<Value> slots;
  Value parent;  // a scope, or missing
};

struct Macro : Object {
  Macro(const MacroCode* c, Value s) : code(c), scope(std::move(s)) {}
  void drop_references() override { scope = Value(); }
  const MacroCode* code;
  Value scope;  // where it was defined
};

// The `loop` variable.
struct Loop : Object {
  void drop_references() override;
  const Value& peek(Interpreter& interpreter);  // the next element; missing at the end
  int64_t length(Interpreter& interpreter);
  bool step(Interpreter& interpreter);  // moves to the next element: false at the end

  Value iterable, iterator;
  Value previous, current, after, last_changed;  // missing where there is none
  int64_t index0 = -1;
  int64_t known_length = -1;
  int64_t depth0 = 0;
  const Stmt* recursive = nullptr;  // the loop that loop(…) runs again; null: not marked so
  Value scope;                      // around it
};

// One render. Not thread-safe.
class Interpreter {
 public:
  Interpreter(const Template& tmpl, Heap& heap);

  void set_variable(const std::string& name, Value value) { variables_[name] = std::move(value); }
  // Printing an undefined value becomes an error, as with Jinja's StrictUndefined; by default it prints nothing.
  void refuse_undefined_output() { prints_undefined_ = false; }
  std::string run();  // the output; throws jinja::Error

  Heap& heap() { return heap_; }
  Value call(const Value& callee, Arguments& arguments);
  Value eval(const Expr& e);
  void assign(const Expr& target, Value value);
  // Runs body with `scope` as the current one.
  template <typename Body>
  auto within(const Value& scope, const Body& body) {
    const Value before = std::move(scope_);
    scope_ = scope;
    struct Restore {
      Value& place;
      const Value& value;
      ~Restore() { place = value; }
    } restore{scope_, before};
    return body();
  }

 private:
  friend class DepthGuard;
  enum class Flow { kNormal, kBreak, kContinue };

  Flow exec_body(const Body& body);
  Flow exec(const Stmt& s);
  Flow exec_block(const Block& block);
  void exec_output(const Stmt& s);
  Flow exec_if(const Stmt& s);
  Flow run_loop(const Stmt& s, const Value& iterable, int64_t depth0);
  Flow exec_with(const Stmt& s);
  Flow exec_filtered(const Stmt& s);

  Value eval_const(const Expr& e);
  Value eval_items(const Expr& e, Type type);
  Value eval_dict(const Expr& e);
  Value eval_compare(const Expr& e);
  Value eval_conditional(const Expr& e);
  Value eval_item(const Expr& e);
  Value eval_call(const Expr& e, const Value* caller);
  Value eval_filter(const Expr& e, const Value* block_text);
  Arguments eval_arguments(const Expr& e);

  Value call_macro(const Macro& macro, Arguments& arguments);
  void bind_parameters(const MacroCode& code, Scope& scope, Arguments& arguments);
  Value call_loop(Loop& loop, Arguments& arguments);

  Value enter(const FrameInfo& frame, const Value& parent);
  void load_variables(const FrameInfo& frame, Scope& scope);
  Value resolve(const std::string& name);
  Scope& scope_at(int hops);
  void check_output() const;
  void print(const Value& v);

  const Template& template_;
  Heap& heap_;
  std::map<std::string, Value> variables_;
  std::vector<Value> strings_;  // the template's string constants, made when first needed
  Value root_scope_, scope_;
  TextBuilder* out_ = nullptr;
  int depth_ = 0;
  int call_depth_ = 0;
  int block_depth_ = 0;
  bool prints_undefined_ = true;
};

// Counts nested evaluation while it lives; throws where it is too deep.
class DepthGuard {
 public:
  explicit DepthGuard(Interpreter& in) : in_(in) {
    in.heap_.spend(1);
    if (in.depth_ >= in.heap_.limits().max_eval_depth) throw budget_error("the chat template recurses too deeply");
    ++in.depth_;
  }
  ~DepthGuard() { --in_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& in_;
};

// Sends output to another builder while it lives.
class Redirect {
 public:
  Redirect(TextBuilder** place, TextBuilder* to) : place_(place), before_(*place) { *place = to; }
  ~Redirect() { *place_ = before_; }
  Redirect(const Redirect&) = delete;
  Redirect& operator=(const Redirect&) = delete;

 private:
  TextBuilder** place_;
  TextBuilder* before_;
};

// Throws for a name that a namespace may not hold.
void check_namespace_attribute(std::string_view name);

std::string macro_repr(const Value& macro);
bool find_macro_property(Interpreter& interpreter, const Value& macro, std::string_view name, Value* out);

}  // namespace llmb::jinja
