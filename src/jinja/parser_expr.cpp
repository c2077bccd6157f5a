#include "jinja/parser_expr.h"

#include <algorithm>

#include "jinja/text.h"

namespace llmb::jinja {

// ---- tokens -------------------------------------------------------------------------------------

void ExpressionParser::fail(const std::string& message) const {
  throw template_error(message + " (line " + std::to_string(current().line) + ")");
}

void ExpressionParser::note_unknown(const char* kind, const std::string& name) {
  unknown_.push_back("No " + std::string(kind) + " named " + repr_text(name) + ". (line " +
                     std::to_string(current().line) + ")");
}

void ExpressionParser::refuse_unknown() const {
  if (!unknown_.empty()) throw template_error(unknown_.front());
}

bool ExpressionParser::skip_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  advance();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  advance();
  return true;
}

void ExpressionParser::expect(TokenKind kind, const char* what) {
  if (!current().is(kind)) fail("expected token '" + std::string(what) + "', got '" + current().describe() + "'");
  advance();
}

void ExpressionParser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) fail("expected token '" + std::string(op) + "', got '" + current().describe() + "'");
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail("expected token '" + std::string(name) + "', got '" + current().describe() + "'");
}

// ---- depth --------------------------------------------------------------------------------------

void ExpressionParser::check_depth(Expr* node, int depth) const {
  node->depth = depth + 1;
  if (node->depth > kMaxDepth) fail("an expression is nested too deeply");
}

int ExpressionParser::depth_of(const CallArguments& arguments) const {
  int depth = 0;
  const auto take = [&](const ExprPtr& e) { depth = std::max(depth, e == nullptr ? 0 : e->depth); };
  for (const auto& e : arguments.positional) take(e);
  for (const auto& [name, e] : arguments.keyword) take(e);
  take(arguments.star);
  take(arguments.double_star);
  return depth;
}

// ---- operators ----------------------------------------------------------------------------------

ExprPtr ExpressionParser::expression(bool with_conditional) { return with_conditional ? conditional() : disjunction(); }

ExprPtr ExpressionParser::conditional() {
  const Nesting nesting(*this);
  const int line = current().line;
  const size_t num_unknown = unknown_.size();
  ExprPtr e = disjunction();
  while (skip_name("if")) {
    auto node = std::make_unique<ConditionalExpr>(line);
    node->yes = std::move(e);
    node->condition = disjunction();
    if (skip_name("else")) node->no = conditional();
    const auto *yes = node->yes.get(), *condition = node->condition.get(), *no = node->no.get();
    e = finish(std::move(node), {yes, condition, no});
    unknown_.resize(num_unknown);
  }
  return e;
}

namespace {

std::unique_ptr<BinaryExpr> join(ExprKind kind, ExprPtr left, ExprPtr right) {
  auto node = std::make_unique<BinaryExpr>(kind, left->line);
  node->left = std::move(left);
  node->right = std::move(right);
  node->depth = 1 + std::max(node->left->depth, node->right->depth);
  return node;
}

}  // namespace

ExprPtr ExpressionParser::disjunction() {
  ExprPtr left = conjunction();
  while (skip_name("or")) left = finish(join(ExprKind::kOr, std::move(left), conjunction()), {});
  return left;
}

ExprPtr ExpressionParser::conjunction() {
  ExprPtr left = negation();
  while (skip_name("and")) left = finish(join(ExprKind::kAnd, std::move(left), negation()), {});
  return left;
}

ExprPtr ExpressionParser::negation() {
  if (!current().is_name("not")) return comparison();
  const Nesting nesting(*this);
  const int line = advance().line;
  ExprPtr operand = negation();
  const Expr* child = operand.get();
  return finish(std::make_unique<UnaryExpr>(line, UnaryOp::kNot, std::move(operand)), {child});
}

ExprPtr ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {{"==", CompareOp::kEq}, {"!=", CompareOp::kNe},
                                                                    {"<", CompareOp::kLt},  {"<=", CompareOp::kLe},
                                                                    {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
  const int line = current().line;
  ExprPtr first = sum();
  auto node = std::make_unique<CompareExpr>(line);
  int depth = first->depth;
  for (;;) {
    const auto* op =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return current().is_operator(o.first); });
    CompareOp kind;
    if (op != std::end(kOps)) {
      kind = op->second;
    } else if (current().is_name("in")) {
      kind = CompareOp::kIn;
    } else if (current().is_name("not") && next().is_name("in")) {
      kind = CompareOp::kNotIn;
      advance();
    } else {
      break;
    }
    advance();
    node->rest.emplace_back(kind, sum());
    depth = std::max(depth, node->rest.back().second->depth);
  }
  if (node->rest.empty()) return first;
  node->first = std::move(first);
  check_depth(node.get(), depth);
  return node;
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concatenation();
  while (current().is_operator("+") || current().is_operator("-")) {
    const BinaryOp op = advance().value == "+" ? BinaryOp::kAdd : BinaryOp::kSub;
    auto node = join(ExprKind::kBinary, std::move(left), concatenation());
    node->op = op;
    left = finish(std::move(node), {});
  }
  return left;
}

ExprPtr ExpressionParser::concatenation() {
  const int line = current().line;
  ExprPtr first = product();
  if (!current().is_operator("~")) return first;
  auto node = std::make_unique<ListExpr>(ExprKind::kConcat, line);
  int depth = first->depth;
  node->items.push_back(std::move(first));
  while (skip_operator("~")) {
    node->items.push_back(product());
    depth = std::max(depth, node->items.back()->depth);
  }
  check_depth(node.get(), depth);
  return node;
}

ExprPtr ExpressionParser::product() {
  ExprPtr left = power();
  for (;;) {
    BinaryOp op;
    if (current().is_operator("*")) op = BinaryOp::kMul;
    else if (current().is_operator("/")) op = BinaryOp::kDiv;
    else if (current().is_operator("//")) op = BinaryOp::kFloorDiv;
    else if (current().is_operator("%")) op = BinaryOp::kMod;
    else return left;
    advance();
    auto node = join(ExprKind::kBinary, std::move(left), power());
    node->op = op;
    left = finish(std::move(node), {});
  }
}

ExprPtr ExpressionParser::power() {
  ExprPtr left = unary();
  while (skip_operator("**")) {
    auto node = join(ExprKind::kBinary, std::move(left), unary());
    node->op = BinaryOp::kPow;
    left = finish(std::move(node), {});
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const Nesting nesting(*this);
  ExprPtr e;
  if (current().is_operator("-") || current().is_operator("+")) {
    const int line = current().line;
    const UnaryOp op = advance().value == "-" ? UnaryOp::kNegate : UnaryOp::kPlus;
    ExprPtr operand = unary(false);
    const Expr* child = operand.get();
    e = finish(std::make_unique<UnaryExpr>(line, op, std::move(operand)), {child});
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filters ? filters_and_tests(std::move(e)) : std::move(e);
}

}  // namespace llmb::jinja
