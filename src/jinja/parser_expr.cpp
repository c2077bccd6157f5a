#include "jinja/parser_expr.h"

#include "jinja/builtins.h"
#include "jinja/text.h"

namespace llmb::jinja {

// ---- tokens -------------------------------------------------------------------------------------

void ExpressionParser::fail(const std::string& message) const {
  throw template_error(message + " (line " + std::to_string(current().line) + ")");
}

void ExpressionParser::expect(bool is_there, std::string_view what) {
  if (!is_there) fail("expected token '" + std::string(what) + "', got '" + current().describe() + "'");
}

void ExpressionParser::expect(TokenKind kind, std::string_view what) {
  expect(current().is(kind), what);
  advance();
}

const std::string& ExpressionParser::expect_any_name() {
  expect(current().is(TokenKind::kName), "name");
  return advance().value;
}

// ---- nodes --------------------------------------------------------------------------------------

ExprPtr ExpressionParser::sealed(ExprPtr node) const {
  for (const ExprPtr& part : node->parts)
    if (part != nullptr) node->depth = std::max(node->depth, part->depth + 1);
  if (node->depth > kMaxDepth) fail("an expression is nested too deeply");
  return node;
}

template <typename... Parts>
ExprPtr ExpressionParser::make(ExprKind kind, int line, Parts... parts) const {
  auto node = std::make_unique<Expr>(kind, line);
  (node->parts.push_back(std::move(parts)), ...);
  return sealed(std::move(node));
}

// ---- operators ----------------------------------------------------------------------------------

ExprPtr ExpressionParser::conditional() {
  const Nesting nesting(*this);
  const int line = current().line;
  const size_t num_unknown = unknown_.size();
  ExprPtr e = binary(0);
  while (skip_name("if")) {
    ExprPtr condition = binary(0);
    ExprPtr no = skip_name("else") ? conditional() : nullptr;
    e = make(ExprKind::kConditional, line, std::move(condition), std::move(e), std::move(no));
    unknown_.resize(num_unknown);
  }
  return e;
}

namespace {

// Operators with two sides, from the loosest. Negations and comparisons stand between them, at a level of their own.
struct Operator {
  int level;
  std::string_view token;
  ExprKind kind;
  BinaryOp op;
};
constexpr int kNegations = 2, kConcat = 4, kUnary = 7;
constexpr Operator kOperators[] = {
    {0, "or", ExprKind::kOr, {}},
    {1, "and", ExprKind::kAnd, {}},
    {3, "+", ExprKind::kBinary, BinaryOp::kAdd},
    {3, "-", ExprKind::kBinary, BinaryOp::kSub},
    {kConcat, "~", ExprKind::kConcat, {}},
    {5, "*", ExprKind::kBinary, BinaryOp::kMul},
    {5, "/", ExprKind::kBinary, BinaryOp::kDiv},
    {5, "//", ExprKind::kBinary, BinaryOp::kFloorDiv},
    {5, "%", ExprKind::kBinary, BinaryOp::kMod},
    {6, "**", ExprKind::kBinary, BinaryOp::kPow},
};

}  // namespace

ExprPtr ExpressionParser::binary(int level) {
  if (level == kNegations) return negation();
  if (level == kUnary) return unary();
  const int line = current().line;
  ExprPtr left = binary(level + 1);
  for (;;) {
    const auto* op = std::find_if(std::begin(kOperators), std::end(kOperators), [&](const Operator& o) {
      return o.level == level && (current().is_operator(o.token) || (level < kNegations && current().is_name(o.token)));
    });
    if (op == std::end(kOperators)) return left;
    advance();
    auto node = std::make_unique<Expr>(op->kind, level == kConcat ? line : left->line);
    node->binary_op = op->op;
    node->parts.push_back(std::move(left));
    do node->parts.push_back(binary(level + 1));
    while (level == kConcat && skip_operator("~"));  // a ~ b ~ c is one node
    left = sealed(std::move(node));
  }
}

ExprPtr ExpressionParser::negation() {
  if (!current().is_name("not")) return comparison();
  const Nesting nesting(*this);
  const int line = advance().line;
  return make(ExprKind::kNot, line, negation());
}

ExprPtr ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {{"==", CompareOp::kEq}, {"!=", CompareOp::kNe},
                                                                    {"<", CompareOp::kLt},  {"<=", CompareOp::kLe},
                                                                    {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
  auto node = std::make_unique<Expr>(ExprKind::kCompare, current().line);
  node->parts.push_back(binary(kNegations + 1));
  for (;;) {
    const auto* op =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return current().is_operator(o.first); });
    if (op != std::end(kOps)) {
      node->compare_ops.push_back(op->second);
    } else if (current().is_name("in")) {
      node->compare_ops.push_back(CompareOp::kIn);
    } else if (current().is_name("not") && next().is_name("in")) {
      node->compare_ops.push_back(CompareOp::kNotIn);
      advance();
    } else {
      break;
    }
    advance();
    node->parts.push_back(binary(kNegations + 1));
  }
  if (node->compare_ops.empty()) return std::move(node->parts.front());
  return sealed(std::move(node));
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const Nesting nesting(*this);
  ExprPtr e;
  if (current().is_operator("-") || current().is_operator("+")) {
    const int line = current().line;
    const ExprKind kind = advance().value == "-" ? ExprKind::kNegate : ExprKind::kPlus;
    e = make(kind, line, unary(false));
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  while (with_filters) {
    if (current().is_operator("|")) e = filters(std::move(e));
    else if (current().is_name("is")) e = test(std::move(e));
    else if (current().is_operator("(")) e = call(std::move(e));
    else break;
  }
  return e;
}

// ---- literals and names -------------------------------------------------------------------------

// A string, a number, true, false or none; null where there is none of them.
ExprPtr ExpressionParser::literal() {
  const Token& token = current();
  auto e = std::make_unique<Expr>(ExprKind::kConst, token.line);
  if (token.is(TokenKind::kString)) {
    e->type = Type::kString;
    while (current().is(TokenKind::kString)) e->text += advance().value;
    e->number = num_strings_++;
    return e;
  }
  if (token.is(TokenKind::kInteger)) e->type = Type::kInt, e->integer = token.integer;
  else if (token.is(TokenKind::kFloat)) e->type = Type::kFloat, e->real = token.real;
  else if (at_any_name({"true", "True"})) e->type = Type::kBool, e->integer = 1;
  else if (at_any_name({"false", "False"})) e->type = Type::kBool;
  else if (!at_any_name({"none", "None"})) return nullptr;
  advance();
  return e;
}

ExprPtr ExpressionParser::primary(bool with_namespace) {
  if (ExprPtr e = literal()) return e;
  const int line = current().line;
  if (current().is(TokenKind::kName)) {
    auto e = std::make_unique<Expr>(ExprKind::kName, line);
    e->text = advance().value;
    if (!with_namespace || !skip_operator(".")) return e;
    e->kind = ExprKind::kNamespaceRef;
    e->names.push_back(expect_any_name());
    return e;
  }
  if (skip_operator("(")) {
    ExprPtr e = tuple(true, {}, true);
    expect_operator(")");
    return e;
  }
  if (current().is_operator("[")) return sequence(ExprKind::kList, "]");
  if (current().is_operator("{")) return sequence(ExprKind::kDict, "}");
  fail("unexpected '" + current().describe() + "'");
}

// A list, or a dict's keys and values, from its opening bracket.
ExprPtr ExpressionParser::sequence(ExprKind kind, std::string_view close) {
  auto node = std::make_unique<Expr>(kind, advance().line);
  while (!current().is_operator(close)) {
    if (!node->parts.empty()) expect_operator(",");
    if (current().is_operator(close)) break;
    node->parts.push_back(expression());
    if (kind == ExprKind::kList) continue;
    expect_operator(":");
    node->parts.push_back(expression());
  }
  advance();
  return sealed(std::move(node));
}

bool ExpressionParser::at_tuple_end(Ends ends) const {
  return current().is(TokenKind::kVariableEnd) || current().is(TokenKind::kBlockEnd) || current().is_operator(")") ||
         at_any_name(ends);
}

ExprPtr ExpressionParser::tuple(bool with_conditional, Ends ends, bool in_parentheses) {
  auto node = std::make_unique<Expr>(ExprKind::kTuple, current().line);
  bool is_tuple = false;
  while (!at_tuple_end(ends)) {
    node->parts.push_back(expression(with_conditional));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!node->parts.empty()) return std::move(node->parts.front());
    if (!in_parentheses) fail("Expected an expression, got '" + current().describe() + "'");
  }
  return sealed(std::move(node));
}

ExprPtr ExpressionParser::assignment_target(Ends ends, bool with_namespace) {
  auto node = std::make_unique<Expr>(ExprKind::kTuple, current().line);
  bool is_tuple = false;
  while (!at_tuple_end(ends)) {
    // Only names, and tuples of them in parentheses, can be assigned to.
    if (skip_operator("(")) {
      const Nesting nesting(*this);
      node->parts.push_back(assignment_target({}, false));
      expect_operator(")");
    } else {
      node->parts.push_back(primary(with_namespace));
    }
    const ExprKind kind = node->parts.back()->kind;
    if (kind != ExprKind::kName && kind != ExprKind::kTuple && kind != ExprKind::kNamespaceRef)
      fail("can't assign to that");
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return node;
  if (node->parts.empty()) fail("Expected an expression, got '" + current().describe() + "'");
  return std::move(node->parts.front());
}

ExprPtr ExpressionParser::name_target() {
  auto e = std::make_unique<Expr>(ExprKind::kName, current().line);
  const bool is_reserved = at_any_name({"true", "false", "none", "True", "False", "None"});
  e->text = expect_any_name();
  if (is_reserved) fail("can't assign to '" + e->text + "'");
  return e;
}

// ---- what may follow a value --------------------------------------------------------------------

ExprPtr ExpressionParser::postfix(ExprPtr e) {
  for (;;) {
    if (current().is_operator(".") || current().is_operator("[")) e = subscript_of(std::move(e));
    else if (current().is_operator("(")) e = call(std::move(e));
    else return e;
  }
}

ExprPtr ExpressionParser::subscript_of(ExprPtr object) {
  const int line = current().line;
  if (skip_operator(".")) {
    if (current().is(TokenKind::kName)) {
      ExprPtr node = make(ExprKind::kAttribute, line, std::move(object));
      node->text = advance().value;
      return node;
    }
    if (!current().is(TokenKind::kInteger)) fail("expected name or number");
    return make(ExprKind::kItem, line, std::move(object), literal());
  }
  expect_operator("[");
  auto keys = std::make_unique<Expr>(ExprKind::kTuple, line);
  while (!current().is_operator("]")) {
    if (!keys->parts.empty()) expect_operator(",");
    keys->parts.push_back(subscribed());
  }
  advance();
  if (keys->parts.size() == 1) return make(ExprKind::kItem, line, std::move(object), std::move(keys->parts.front()));
  for (const ExprPtr& key : keys->parts)
    if (key->kind == ExprKind::kSlice) fail("a slice among several subscripts is not supported");
  return make(ExprKind::kItem, line, std::move(object), sealed(std::move(keys)));
}

ExprPtr ExpressionParser::subscribed() {
  const int line = current().line;
  const auto bound = [&] {
    const bool is_open = current().is_operator(":") || current().is_operator("]") || current().is_operator(",");
    return is_open ? nullptr : expression();
  };
  ExprPtr start = current().is_operator(":") ? nullptr : expression();
  if (!skip_operator(":")) return start;
  ExprPtr stop = bound();
  return make(ExprKind::kSlice, line, std::move(start), std::move(stop), skip_operator(":") ? bound() : nullptr);
}

ExprPtr ExpressionParser::call(ExprPtr callee) {
  auto node = std::make_unique<Expr>(ExprKind::kCall, current().line);
  node->parts.push_back(std::move(callee));
  arguments(node.get());
  return sealed(std::move(node));
}

// Puts what is in parentheses, or nothing, behind the node's first part.
void ExpressionParser::arguments(Expr* node) {
  std::vector<ExprPtr> by_keyword;
  ExprPtr star, double_star;
  const auto ensure = [&](bool is_good) {
    if (!is_good) fail("invalid syntax for function call expression");
  };
  const bool has_any = skip_operator("(");
  for (bool is_first = true; has_any && !current().is_operator(")"); is_first = false) {
    if (!is_first) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    if (skip_operator("*")) {
      ensure(star == nullptr && double_star == nullptr);
      star = expression();
    } else if (skip_operator("**")) {
      ensure(double_star == nullptr);
      double_star = expression();
    } else if (current().is(TokenKind::kName) && next().is_operator("=")) {
      ensure(double_star == nullptr);
      node->names.push_back(advance().value);
      if (std::count(node->names.begin(), node->names.end(), node->names.back()) > 1)
        fail("keyword argument repeated: " + node->names.back());
      advance();
      by_keyword.push_back(expression());
    } else {
      ensure(star == nullptr && double_star == nullptr && by_keyword.empty());
      node->parts.push_back(expression());
    }
  }
  if (has_any) advance();
  std::move(by_keyword.begin(), by_keyword.end(), std::back_inserter(node->parts));
  node->parts.push_back(std::move(star));
  node->parts.push_back(std::move(double_star));
}

// Reads a filter's or test's name, which may have dots, and finds it.
void ExpressionParser::find_function(Expr* node) {
  do node->text += (node->text.empty() ? "" : ".") + expect_any_name();
  while (skip_operator("."));
  const bool is_filter = node->kind == ExprKind::kFilter;
  node->function = is_filter ? find_filter(node->text) : find_test(node->text);
  if (node->function == nullptr)
    unknown_.push_back(std::string(is_filter ? "No filter" : "No test") + " named " + repr_text(node->text) +
                       ". (line " + std::to_string(current().line) + ")");
}

ExprPtr ExpressionParser::filters(ExprPtr e, bool first_without_bar) {
  while (first_without_bar || current().is_operator("|")) {
    if (!first_without_bar) advance();
    first_without_bar = false;
    auto node = std::make_unique<Expr>(ExprKind::kFilter, current().line);
    node->parts.push_back(std::move(e));
    find_function(node.get());
    arguments(node.get());
    e = sealed(std::move(node));
  }
  return e;
}

ExprPtr ExpressionParser::test(ExprPtr operand) {
  const int line = advance().line;  // is
  const bool is_negated = skip_name("not");
  auto node = std::make_unique<Expr>(ExprKind::kTest, line);
  node->parts.push_back(std::move(operand));
  find_function(node.get());
  const Token& t = current();
  const bool value_follows = t.is(TokenKind::kName) || t.is(TokenKind::kString) || t.is(TokenKind::kInteger) ||
                             t.is(TokenKind::kFloat) || t.is_operator("[") || t.is_operator("{");
  if (value_follows && !at_any_name({"else", "or", "and"})) {
    if (t.is_name("is")) fail("You cannot chain multiple tests with is");
    node->parts.push_back(postfix(primary()));
    node->parts.resize(node->parts.size() + 2);  // neither * nor **
  } else {
    arguments(node.get());
  }
  ExprPtr e = sealed(std::move(node));
  return is_negated ? make(ExprKind::kNot, line, std::move(e)) : std::move(e);
}

}  // namespace llmb::jinja
