// The parsed template. Immutable once resolve_names (jinja_scope.h) has run; shared by all renders.
// Invariant: no node is nested deeper than kMaxDepth, so walking and freeing it needs a bounded stack.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/ops.h"
#include "jinja/value.h"

namespace llmb::jinja {

inline constexpr int kMaxDepth = 100;  // of expressions within expressions and statements within statements

// ---- variables ----------------------------------------------------------------------------------

// What a variable of a frame holds when the frame is entered.
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

enum class ExprKind : uint8_t {
  kConst,
  kName,
  kTuple,
  kList,
  kDict,
  kConcat,
  kUnary,
  kBinary,
  kCompare,
  kAnd,
  kOr,
  kConditional,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kNamespaceRef,
};

struct Expr {
  Expr(ExprKind k, int l) : kind(k), line(l) {}
  virtual ~Expr() = default;
  ExprKind kind;
  int line;
  int depth = 1;
};
using ExprPtr = std::unique_ptr<Expr>;

struct ConstExpr : Expr {
  ConstExpr(int l) : Expr(ExprKind::kConst, l) {}
  Type type = Type::kNone;  // kNone, kBool, kInt, kFloat or kString
  int64_t integer = 0;
  double real = 0;
  std::string text;
  int number = -1;  // of the template's string constants
};

struct NameExpr : Expr {  // also a target of an assignment
  NameExpr(int l, std::string n) : Expr(ExprKind::kName, l), name(std::move(n)) {}
  std::string name;
  Location at;
};

struct NamespaceRefExpr : Expr {  // the target ns.attribute
  NamespaceRefExpr(int l) : Expr(ExprKind::kNamespaceRef, l) {}
  std::string name, attribute;
  Location at;
};

struct ListExpr : Expr {  // kTuple, kList, kConcat
  using Expr::Expr;
  std::vector<ExprPtr> items;
};

struct DictExpr : Expr {
  DictExpr(int l) : Expr(ExprKind::kDict, l) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};

enum class UnaryOp : uint8_t { kNot, kNegate, kPlus };

struct UnaryExpr : Expr {
  UnaryExpr(int l, UnaryOp o, ExprPtr e) : Expr(ExprKind::kUnary, l), op(o), operand(std::move(e)) {}
  UnaryOp op;
  ExprPtr operand;
};

struct BinaryExpr : Expr {  // kBinary, kAnd, kOr
  using Expr::Expr;
  BinaryOp op = BinaryOp::kAdd;
  ExprPtr left, right;
};

struct CompareExpr : Expr {
  CompareExpr(int l) : Expr(ExprKind::kCompare, l) {}
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};

struct ConditionalExpr : Expr {
  ConditionalExpr(int l) : Expr(ExprKind::kConditional, l) {}
  ExprPtr condition, yes, no;  // no: may be null
};

struct AttributeExpr : Expr {
  AttributeExpr(int l) : Expr(ExprKind::kAttribute, l) {}
  ExprPtr object;
  std::string name;
};

struct ItemExpr : Expr {
  ItemExpr(int l) : Expr(ExprKind::kItem, l) {}
  ExprPtr object, key;
};

struct SliceExpr : Expr {  // only as an ItemExpr's key
  SliceExpr(int l) : Expr(ExprKind::kSlice, l) {}
  ExprPtr start, stop, step;  // each may be null
};

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star, double_star;  // each may be null
};

struct CallExpr : Expr {
  CallExpr(int l) : Expr(ExprKind::kCall, l) {}
  ExprPtr callee;
  CallArguments arguments;
};

struct FilterExpr : Expr {  // kFilter, kTest
  using Expr::Expr;
  ExprPtr operand;  // null: the text of a block
  std::string name;
  const Builtin* function = nullptr;   // null: no filter or test has this name; an error where it is reached
  CallArguments arguments;
};

// ---- statements ---------------------------------------------------------------------------------

enum class StmtKind : uint8_t {
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kBlock,
  kGeneration,
  kBreak,
  kContinue,
};

struct Stmt {
  Stmt(StmtKind k, int l) : kind(k), line(l) {}
  virtual ~Stmt() = default;
  StmtKind kind;
  int line;
};
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct OutputStmt : Stmt {
  OutputStmt(int l) : Stmt(StmtKind::kOutput, l) {}
  std::vector<ExprPtr> items;  // a string constant is text of the template
};

struct IfStmt : Stmt {
  IfStmt(int l) : Stmt(StmtKind::kIf, l) {}
  std::vector<std::pair<ExprPtr, Body>> branches;  // if, elif, …
  Body otherwise;
};

struct ForStmt : Stmt {
  ForStmt(int l) : Stmt(StmtKind::kFor, l) {}
  ExprPtr target, iterable, condition;  // condition: may be null
  ExprPtr condition_target;             // the target again, as a name of the condition's frame; null without condition
  bool recursive = false;
  Body body, otherwise;
  FrameInfo body_frame, condition_frame, otherwise_frame;
  int loop_slot = -1;  // of `loop` in body_frame; -1: the body does not use it
};

struct SetStmt : Stmt {
  SetStmt(int l) : Stmt(StmtKind::kSet, l) {}
  ExprPtr target, value;
};

struct SetBlockStmt : Stmt {
  SetBlockStmt(int l) : Stmt(StmtKind::kSetBlock, l) {}
  ExprPtr target, filter;  // filter: may be null
  Body body;
  FrameInfo frame;
};

// The code of a macro, or of a call block's body.
struct MacroCode {
  std::string name;
  std::vector<std::unique_ptr<NameExpr>> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
  FrameInfo frame;
  int caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;  // -1: not used
  bool explicit_caller = false;                               // caller is among the parameters
  bool anonymous = false;
};

struct MacroStmt : Stmt {
  MacroStmt(int l) : Stmt(StmtKind::kMacro, l) {}
  NameExpr target{0, ""};
  MacroCode code;
};

struct CallBlockStmt : Stmt {
  CallBlockStmt(int l) : Stmt(StmtKind::kCallBlock, l) {}
  ExprPtr call;  // a CallExpr
  MacroCode code;
};

struct FilterBlockStmt : Stmt {
  FilterBlockStmt(int l) : Stmt(StmtKind::kFilterBlock, l) {}
  ExprPtr filter;
  Body body;
  FrameInfo frame;
};

struct WithStmt : Stmt {
  WithStmt(int l) : Stmt(StmtKind::kWith, l) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;  // target, value
  Body body;
  FrameInfo frame;
};

struct ScopedStmt : Stmt {  // kBlock, kGeneration: a body with variables of its own
  using Stmt::Stmt;
  Body body;
  FrameInfo frame;
};

struct Template {
  Body body;
  FrameInfo frame;
  int num_strings = 0;  // string constants that evaluate to values
};

}  // namespace llmb::jinja
