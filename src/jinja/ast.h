// The parsed template. Immutable once resolve_names (scope.h) has run; shared by all renders.
// Invariant: no node is nested deeper than kMaxDepth, so walking and freeing it needs a bounded stack.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "jinja/ops.h"
#include "jinja/value.h"

namespace llmb::jinja {

inline constexpr int kMaxDepth = 100;  // of expressions within expressions and statements within statements

// ---- variables ----------------------------------------------------------------------------------

// The value of a frame's variable when the frame is entered.
enum class Load : uint8_t { kParameter, kResolve, kAlias, kUndefined };

// Where a name lives: `hops` frames outwards, then `slot`.
struct Location {
  int hops = -1;  // -1: not resolved
  int slot = -1;
};

struct Variable {
  std::string name;
  Load load = Load::kUndefined;
  Location outer;  // kAlias: seen from the frame around this one
};

// The variables of one scope: the template, a loop body, a macro body, …
struct FrameInfo {
  std::vector<Variable> variables;
};

// ---- expressions --------------------------------------------------------------------------------

// Each with its parts, and what else of Expr it uses. "arguments" stands for the positional ones, those by keyword
// (`names`), then those behind * and **, each of these two null where it is not given.
enum class ExprKind : uint8_t {
  kConst,         // type, integer, real, text, number
  kName,          // text, at; also a target of an assignment
  kNamespaceRef,  // the target text.names[0]; at
  kTuple,         // items
  kList,          // items
  kDict,          // key, value, key, value, …
  kConcat,        // items
  kNot,           // operand
  kNegate,        // operand
  kPlus,          // operand
  kBinary,        // left, right; binary_op
  kCompare,       // operands, one more than compare_ops
  kAnd,           // left, right
  kOr,            // left, right
  kConditional,   // condition, yes, no (may be null)
  kAttribute,     // object; text
  kItem,          // object, key
  kSlice,         // start, stop, step (each may be null); only as an item's key
  kCall,          // callee, arguments
  kFilter,        // operand (null: the text of a block), arguments; text, function
  kTest,          // operand, arguments; text, function
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  Expr(ExprKind k, int l) : kind(k), line(l) {}
  ExprKind kind;
  int line;
  int depth = 1;
  std::vector<ExprPtr> parts;
  std::string text;
  std::vector<std::string> names;
  Location at;
  BinaryOp binary_op = BinaryOp::kAdd;
  std::vector<CompareOp> compare_ops;
  const Builtin* function = nullptr;  // null: no filter or test has this name; an error where it is reached
  Type type = Type::kNone;            // kNone, kBool, kInt, kFloat or kString
  int64_t integer = 0;
  double real = 0;
  int number = -1;  // of the template's string constants

  const Expr& part(size_t i) const { return *parts[i]; }
};

// ---- statements ---------------------------------------------------------------------------------

// Each with its targets, expressions and blocks.
enum class StmtKind : uint8_t {
  kOutput,       // items; a string constant is text of the template
  kIf,           // conditions; a block each, and one for else
  kFor,          // target, and again as the condition's (null without one); iterable, condition (may be null);
                 // body, else, condition (a frame only)
  kSet,          // target; value
  kSetBlock,     // target; filter (may be null); body
  kMacro,        // target; code
  kCallBlock,    // call; code
  kFilterBlock,  // filter; body
  kWith,         // targets; values; body
  kBlock,        // body
  kGeneration,   // body
  kBreak,
  kContinue,
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

// Statements with variables of their own; those of an `if` have none.
struct Block {
  Body body;
  FrameInfo frame;
};

// The code of a macro, or of a call block's body.
struct MacroCode {
  std::string name;                 // "": a call block
  std::vector<ExprPtr> parameters;  // kName
  std::vector<ExprPtr> defaults;    // of the last parameters
  Block block;
  int caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;  // -1: not used
};

struct Stmt {
  Stmt(StmtKind k, int l) : kind(k), line(l) {}
  StmtKind kind;
  int line;
  std::vector<ExprPtr> targets, exprs;
  std::vector<Block> blocks;
  std::unique_ptr<MacroCode> code;
  bool recursive = false;  // of a loop
  int loop_slot = -1;      // of `loop` in a loop's body
};
using StmtPtr = std::unique_ptr<Stmt>;

struct Template {
  Block block;
  int num_strings = 0;  // string constants that evaluate to values
};

// ---- walking ------------------------------------------------------------------------------------

// Calls visit(expression) for e and all under it.
template <typename Visit>
void visit_tree(Expr& e, const Visit& visit) {
  visit(e);
  for (const ExprPtr& part : e.parts)
    if (part != nullptr) visit_tree(*part, visit);
}

// The same for all expressions of the statements but targets; macros' defaults included.
template <typename Visit>
void visit_tree(const Body& body, const Visit& visit) {
  const auto all = [&](const std::vector<ExprPtr>& exprs) {
    for (const ExprPtr& e : exprs)
      if (e != nullptr) visit_tree(*e, visit);
  };
  for (const StmtPtr& s : body) {
    all(s->exprs);
    for (const Block& block : s->blocks) visit_tree(block.body, visit);
    if (s->code == nullptr) continue;
    all(s->code->defaults);
    visit_tree(s->code->block.body, visit);
  }
}

}  // namespace llmb::jinja
