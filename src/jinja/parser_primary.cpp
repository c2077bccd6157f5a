// ExpressionParser: literals, names, targets, and what may follow a value.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/parser_expr.h"

namespace llmb::jinja {

// ---- literals and names -------------------------------------------------------------------------

ExprPtr ExpressionParser::primary(bool with_namespace) {
  const Token& token = current();
  const int line = token.line;
  auto constant = std::make_unique<ConstExpr>(line);
  switch (token.kind) {
    case TokenKind::kName: {
      const std::string name = advance().value;
      if (name == "true" || name == "false" || name == "True" || name == "False") {
        constant->type = Type::kBool;
        constant->integer = name == "true" || name == "True";
        return constant;
      }
      if (name == "none" || name == "None") return constant;
      if (with_namespace && skip_operator(".")) {
        auto reference = std::make_unique<NamespaceRefExpr>(line);
        reference->name = name;
        if (!current().is(TokenKind::kName)) fail("expected token 'name', got '" + current().describe() + "'");
        reference->attribute = advance().value;
        return reference;
      }
      return std::make_unique<NameExpr>(line, name);
    }
    case TokenKind::kString:
      constant->type = Type::kString;
      while (current().is(TokenKind::kString)) constant->text += advance().value;
      constant->number = num_strings_++;
      return constant;
    case TokenKind::kInteger:
      constant->type = Type::kInt;
      constant->integer = advance().integer;
      return constant;
    case TokenKind::kFloat:
      constant->type = Type::kFloat;
      constant->real = advance().real;
      return constant;
    default:
      break;
  }
  if (skip_operator("(")) {
    ExprPtr e = tuple(true, {}, true);
    expect_operator(")");
    return e;
  }
  if (token.is_operator("[")) return list();
  if (token.is_operator("{")) return dict();
  fail("unexpected '" + token.describe() + "'");
}

ExprPtr ExpressionParser::list() {
  auto node = std::make_unique<ListExpr>(ExprKind::kList, advance().line);
  int depth = 0;
  while (!current().is_operator("]")) {
    if (!node->items.empty()) expect_operator(",");
    if (current().is_operator("]")) break;
    node->items.push_back(expression());
    depth = std::max(depth, node->items.back()->depth);
  }
  advance();
  check_depth(node.get(), depth);
  return node;
}

ExprPtr ExpressionParser::dict() {
  auto node = std::make_unique<DictExpr>(advance().line);
  int depth = 0;
  while (!current().is_operator("}")) {
    if (!node->items.empty()) expect_operator(",");
    if (current().is_operator("}")) break;
    ExprPtr key = expression();
    expect_operator(":");
    ExprPtr value = expression();
    depth = std::max({depth, key->depth, value->depth});
    node->items.emplace_back(std::move(key), std::move(value));
  }
  advance();
  check_depth(node.get(), depth);
  return node;
}

bool ExpressionParser::at_tuple_end(Ends ends) const {
  return current().is(TokenKind::kVariableEnd) || current().is(TokenKind::kBlockEnd) || current().is_operator(")") ||
         std::any_of(ends.begin(), ends.end(), [&](std::string_view n) { return current().is_name(n); });
}

ExprPtr ExpressionParser::tuple(bool with_conditional, Ends ends, bool in_parentheses) {
  auto node = std::make_unique<ListExpr>(ExprKind::kTuple, current().line);
  int depth = 0;
  bool is_tuple = false;
  while (!at_tuple_end(ends)) {
    node->items.push_back(expression(with_conditional));
    depth = std::max(depth, node->items.back()->depth);
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!node->items.empty()) return std::move(node->items.front());
    if (!in_parentheses) fail("Expected an expression, got '" + current().describe() + "'");
  }
  check_depth(node.get(), depth);
  return node;
}

ExprPtr ExpressionParser::assignment_target(Ends ends, bool with_namespace) {
  auto node = std::make_unique<ListExpr>(ExprKind::kTuple, current().line);
  bool is_tuple = false;
  while (!at_tuple_end(ends)) {
    // Only names, and tuples of them in parentheses, can be assigned to.
    if (skip_operator("(")) {
      const Nesting nesting(*this);
      node->items.push_back(assignment_target({}, false));
      expect_operator(")");
    } else {
      node->items.push_back(primary(with_namespace));
    }
    check_assignable(*node->items.back());
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return node;
  if (node->items.empty()) fail("Expected an expression, got '" + current().describe() + "'");
  return std::move(node->items.front());
}

void ExpressionParser::check_assignable(const Expr& target) const {
  const auto k = target.kind;
  if (k != ExprKind::kName && k != ExprKind::kTuple && k != ExprKind::kNamespaceRef) fail("can't assign to that");
}

std::unique_ptr<NameExpr> ExpressionParser::name_target() {
  if (!current().is(TokenKind::kName)) fail("expected token 'name', got '" + current().describe() + "'");
  const Token& token = advance();
  for (const char* reserved : {"true", "false", "none", "True", "False", "None"}) {
    if (token.value == reserved) fail("can't assign to '" + token.value + "'");
  }
  return std::make_unique<NameExpr>(token.line, token.value);
}

// ---- postfix ------------------------------------------------------------------------------------

ExprPtr ExpressionParser::postfix(ExprPtr e) {
  for (;;) {
    if (current().is_operator(".") || current().is_operator("[")) e = subscript_of(std::move(e));
    else if (current().is_operator("(")) e = call(std::move(e));
    else return e;
  }
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr e) {
  for (;;) {
    if (current().is_operator("|")) e = filters(std::move(e));
    else if (current().is_name("is")) e = test(std::move(e));
    else if (current().is_operator("(")) e = call(std::move(e));
    else return e;
  }
}

ExprPtr ExpressionParser::subscript_of(ExprPtr object) {
  const int line = current().line;
  const Expr* child = object.get();
  if (skip_operator(".")) {
    if (current().is(TokenKind::kName)) {
      auto node = std::make_unique<AttributeExpr>(line);
      node->object = std::move(object);
      node->name = advance().value;
      return finish(std::move(node), {child});
    }
    if (!current().is(TokenKind::kInteger)) fail("expected name or number");
    auto key = std::make_unique<ConstExpr>(line);
    key->type = Type::kInt;
    key->integer = advance().integer;
    auto node = std::make_unique<ItemExpr>(line);
    node->object = std::move(object);
    node->key = std::move(key);
    return finish(std::move(node), {child});
  }
  expect_operator("[");
  auto keys = std::make_unique<ListExpr>(ExprKind::kTuple, line);
  int depth = 0;
  while (!current().is_operator("]")) {
    if (!keys->items.empty()) expect_operator(",");
    keys->items.push_back(subscribed());
    depth = std::max(depth, keys->items.back()->depth);
  }
  advance();
  auto node = std::make_unique<ItemExpr>(line);
  node->object = std::move(object);
  if (keys->items.size() == 1) {
    node->key = std::move(keys->items.front());
  } else {
    for (const auto& key : keys->items) {
      if (key->kind == ExprKind::kSlice) fail("a slice among several subscripts is not supported");
    }
    check_depth(keys.get(), depth);
    node->key = std::move(keys);
  }
  const Expr* key = node->key.get();
  return finish(std::move(node), {child, key});
}

ExprPtr ExpressionParser::subscribed() {
  const int line = current().line;
  ExprPtr start;
  if (!current().is_operator(":")) {
    start = expression();
    if (!current().is_operator(":")) return start;
  }
  advance();
  auto node = std::make_unique<SliceExpr>(line);
  const auto at_end = [&] { return current().is_operator("]") || current().is_operator(","); };
  node->start = std::move(start);
  if (!current().is_operator(":") && !at_end()) node->stop = expression();
  if (skip_operator(":") && !at_end()) node->step = expression();
  const auto *a = node->start.get(), *b = node->stop.get(), *c = node->step.get();
  return finish(std::move(node), {a, b, c});
}

ExprPtr ExpressionParser::call(ExprPtr callee) {
  auto node = std::make_unique<CallExpr>(current().line);
  node->callee = std::move(callee);
  call_arguments(&node->arguments);
  check_depth(node.get(), std::max(node->callee->depth, depth_of(node->arguments)));
  return node;
}

void ExpressionParser::call_arguments(CallArguments* a) {
  expect_operator("(");
  const auto ensure = [&](bool good) {
    if (!good) fail("invalid syntax for function call expression");
  };
  for (bool first = true; !current().is_operator(")"); first = false) {
    if (!first) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    if (skip_operator("*")) {
      ensure(a->star == nullptr && a->double_star == nullptr);
      a->star = expression();
    } else if (skip_operator("**")) {
      ensure(a->double_star == nullptr);
      a->double_star = expression();
    } else if (current().is(TokenKind::kName) && next().is_operator("=")) {
      ensure(a->double_star == nullptr);
      const std::string name = advance().value;
      for (const auto& [other, value] : a->keyword) {
        if (other == name) fail("keyword argument repeated: " + name);
      }
      advance();
      a->keyword.emplace_back(name, expression());
    } else {
      ensure(a->star == nullptr && a->double_star == nullptr && a->keyword.empty());
      a->positional.push_back(expression());
    }
  }
  advance();
}

std::string ExpressionParser::dotted_name() {
  std::string name;
  do {
    if (!current().is(TokenKind::kName)) fail("expected token 'name', got '" + current().describe() + "'");
    name += (name.empty() ? "" : ".") + advance().value;
  } while (skip_operator("."));
  return name;
}

ExprPtr ExpressionParser::filters(ExprPtr e, bool first_without_bar) {
  while (first_without_bar || current().is_operator("|")) {
    if (!first_without_bar) advance();
    first_without_bar = false;
    auto node = std::make_unique<FilterExpr>(ExprKind::kFilter, current().line);
    node->operand = std::move(e);
    node->name = dotted_name();
    node->function = find_filter(node->name);
    if (node->function == nullptr) note_unknown("filter", node->name);
    if (current().is_operator("(")) call_arguments(&node->arguments);
    check_depth(node.get(), std::max(node->operand == nullptr ? 0 : node->operand->depth, depth_of(node->arguments)));
    e = std::move(node);
  }
  return e;
}

ExprPtr ExpressionParser::test(ExprPtr operand) {
  const int line = advance().line;  // is
  const bool negated = skip_name("not");
  auto node = std::make_unique<FilterExpr>(ExprKind::kTest, line);
  node->operand = std::move(operand);
  node->name = dotted_name();
  node->function = find_test(node->name);
  if (node->function == nullptr) note_unknown("test", node->name);
  const Token& t = current();
  const bool value_follows = t.is(TokenKind::kName) || t.is(TokenKind::kString) || t.is(TokenKind::kInteger) ||
                             t.is(TokenKind::kFloat) || t.is_operator("[") || t.is_operator("{");
  if (t.is_operator("(")) {
    call_arguments(&node->arguments);
  } else if (value_follows && !t.is_name("else") && !t.is_name("or") && !t.is_name("and")) {
    if (t.is_name("is")) fail("You cannot chain multiple tests with is");
    node->arguments.positional.push_back(postfix(primary()));
  }
  check_depth(node.get(), std::max(node->operand->depth, depth_of(node->arguments)));
  if (!negated) return node;
  const Expr* child = node.get();
  return finish(std::make_unique<UnaryExpr>(line, UnaryOp::kNot, std::move(node)), {child});
}

}  // namespace llmb::jinja
