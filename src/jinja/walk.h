// Walking over the parsed template: the parts of an expression or a statement, the names in an expression.
#pragma once

#include <string>

#include "jinja/ast.h"

namespace llmb::jinja {

template <typename Visit>
void visit_arguments(const CallArguments& a, const Visit& visit) {
  for (const auto& e : a.positional) visit(*e);
  for (const auto& [name, e] : a.keyword) visit(*e);
  if (a.star != nullptr) visit(*a.star);
  if (a.double_star != nullptr) visit(*a.double_star);
}

// Calls visit for each expression right under e.
template <typename Visit>
void visit_children(Expr& e, const Visit& visit) {
  const auto maybe = [&](const ExprPtr& p) {
    if (p != nullptr) visit(*p);
  };
  switch (e.kind) {
    case ExprKind::kConst:
    case ExprKind::kName:
    case ExprKind::kNamespaceRef:
      return;
    case ExprKind::kTuple:
    case ExprKind::kList:
    case ExprKind::kConcat:
      for (const auto& item : static_cast<ListExpr&>(e).items) visit(*item);
      return;
    case ExprKind::kDict:
      for (const auto& [key, value] : static_cast<DictExpr&>(e).items) visit(*key), visit(*value);
      return;
    case ExprKind::kUnary:
      return visit(*static_cast<UnaryExpr&>(e).operand);
    case ExprKind::kBinary:
    case ExprKind::kAnd:
    case ExprKind::kOr:
      visit(*static_cast<BinaryExpr&>(e).left);
      return visit(*static_cast<BinaryExpr&>(e).right);
    case ExprKind::kCompare:
      visit(*static_cast<CompareExpr&>(e).first);
      for (const auto& [op, operand] : static_cast<CompareExpr&>(e).rest) visit(*operand);
      return;
    case ExprKind::kConditional: {
      auto& c = static_cast<ConditionalExpr&>(e);
      return maybe(c.condition), maybe(c.yes), maybe(c.no);
    }
    case ExprKind::kAttribute:
      return visit(*static_cast<AttributeExpr&>(e).object);
    case ExprKind::kItem:
      visit(*static_cast<ItemExpr&>(e).object);
      return visit(*static_cast<ItemExpr&>(e).key);
    case ExprKind::kSlice: {
      auto& s = static_cast<SliceExpr&>(e);
      return maybe(s.start), maybe(s.stop), maybe(s.step);
    }
    case ExprKind::kCall:
      visit(*static_cast<CallExpr&>(e).callee);
      return visit_arguments(static_cast<CallExpr&>(e).arguments, visit);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      maybe(static_cast<FilterExpr&>(e).operand);
      return visit_arguments(static_cast<FilterExpr&>(e).arguments, visit);
  }
}

// Calls visit(name, location) for each name in e.
template <typename Visit>
void visit_names(Expr& e, const Visit& visit) {
  if (e.kind == ExprKind::kName) return visit(static_cast<NameExpr&>(e).name, &static_cast<NameExpr&>(e).at);
  if (e.kind == ExprKind::kNamespaceRef) {
    return visit(static_cast<NamespaceRefExpr&>(e).name, &static_cast<NamespaceRefExpr&>(e).at);
  }
  visit_children(e, [&](Expr& child) { visit_names(child, visit); });
}

// Calls expr for each expression and body for each list of statements right under s, macros' defaults included.
template <typename OnExpr, typename OnBody>
void visit_parts(Stmt& s, const OnExpr& expr, const OnBody& body) {
  const auto code = [&](MacroCode& c) {
    for (const auto& e : c.defaults) expr(*e);
    body(c.body);
  };
  switch (s.kind) {
    case StmtKind::kOutput:
      for (const auto& e : static_cast<OutputStmt&>(s).items) expr(*e);
      return;
    case StmtKind::kIf:
      for (const auto& [condition, branch] : static_cast<IfStmt&>(s).branches) expr(*condition), body(branch);
      return body(static_cast<IfStmt&>(s).otherwise);
    case StmtKind::kFor: {
      auto& f = static_cast<ForStmt&>(s);
      expr(*f.iterable);
      if (f.condition != nullptr) expr(*f.condition);
      return body(f.body), body(f.otherwise);
    }
    case StmtKind::kSet:
      return expr(*static_cast<SetStmt&>(s).value);
    case StmtKind::kSetBlock:
      if (static_cast<SetBlockStmt&>(s).filter != nullptr) expr(*static_cast<SetBlockStmt&>(s).filter);
      return body(static_cast<SetBlockStmt&>(s).body);
    case StmtKind::kMacro:
      return code(static_cast<MacroStmt&>(s).code);
    case StmtKind::kCallBlock:
      expr(*static_cast<CallBlockStmt&>(s).call);
      return code(static_cast<CallBlockStmt&>(s).code);
    case StmtKind::kFilterBlock:
      expr(*static_cast<FilterBlockStmt&>(s).filter);
      return body(static_cast<FilterBlockStmt&>(s).body);
    case StmtKind::kWith:
      for (const auto& [target, value] : static_cast<WithStmt&>(s).assignments) expr(*value);
      return body(static_cast<WithStmt&>(s).body);
    case StmtKind::kBlock:
    case StmtKind::kGeneration:
      return body(static_cast<ScopedStmt&>(s).body);
    case StmtKind::kBreak:
    case StmtKind::kContinue:
      return;
  }
}

}  // namespace llmb::jinja
