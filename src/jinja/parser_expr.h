// The token stream and the expressions of the template language, by precedence as in jinja2's parser.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace llmb::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  int num_strings() const { return num_strings_; }

  // ---- tokens
  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& advance() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }  // the one passed
  size_t position() const { return at_; }
  void rewind(size_t position) { at_ = position; }
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  void expect(TokenKind kind, const char* what);
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);
  [[noreturn]] void fail(const std::string& message) const;

  // Counts levels of nesting while it lives.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& p) : parser_(p) {
      if (++p.nesting_ > kMaxDepth) p.fail("nested too deeply");
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    ExpressionParser& parser_;
  };

  // Unknown filters and tests that were met while it lived are errors of the render instead of the template.
  class Conditional {
   public:
    explicit Conditional(ExpressionParser& p) : parser_(p), num_before_(p.unknown_.size()) {}
    ~Conditional() { parser_.unknown_.resize(num_before_); }

   private:
    ExpressionParser& parser_;
    size_t num_before_;
  };
  void refuse_unknown() const;  // throws if one was met outside all conditions

  // ---- expressions
  using Ends = std::initializer_list<std::string_view>;  // names that end a tuple
  ExprPtr expression(bool with_conditional = true);
  ExprPtr tuple(bool with_conditional = true, Ends ends = {}, bool in_parentheses = false);
  ExprPtr filters(ExprPtr operand, bool first_without_bar = false);
  ExprPtr assignment_target(Ends ends, bool with_namespace);
  std::unique_ptr<NameExpr> name_target();

 private:
  ExprPtr conditional();
  ExprPtr disjunction();
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters = true);
  ExprPtr primary(bool with_namespace = false);
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr e);
  ExprPtr filters_and_tests(ExprPtr e);
  ExprPtr subscript_of(ExprPtr object);
  ExprPtr subscribed();
  ExprPtr call(ExprPtr callee);
  ExprPtr test(ExprPtr operand);
  void call_arguments(CallArguments* arguments);
  std::string dotted_name();
  bool at_tuple_end(Ends ends) const;
  void check_assignable(const Expr& target) const;

  // Sets the depth of a new node from those of its children.
  template <typename Node>
  ExprPtr finish(std::unique_ptr<Node> node, std::initializer_list<const Expr*> children);
  int depth_of(const CallArguments& arguments) const;
  void note_unknown(const char* kind, const std::string& name);
  void check_depth(Expr* node, int depth) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  std::vector<std::string> unknown_;  // messages on filters and tests that do not exist
  int num_strings_ = 0;
};

template <typename Node>
ExprPtr ExpressionParser::finish(std::unique_ptr<Node> node, std::initializer_list<const Expr*> children) {
  int depth = node->depth - 1;
  for (const Expr* child : children) depth = std::max(depth, child == nullptr ? 0 : child->depth);
  check_depth(node.get(), depth);
  return node;
}

}  // namespace llmb::jinja
