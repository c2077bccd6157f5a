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
  bool skip_operator(std::string_view op) { return current().is_operator(op) && (advance(), true); }
  bool skip_name(std::string_view name) { return current().is_name(name) && (advance(), true); }
  void expect(bool is_there, std::string_view what);  // throws where it is not
  void expect(TokenKind kind, std::string_view what);
  void expect_operator(std::string_view op) { expect(skip_operator(op), op); }
  void expect_name(std::string_view name) { expect(skip_name(name), name); }
  const std::string& expect_any_name();
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
  void refuse_unknown() const {  // throws if one was met outside all conditions
    if (!unknown_.empty()) throw template_error(unknown_.front());
  }

  // ---- expressions
  using Ends = std::initializer_list<std::string_view>;  // names that end a tuple
  ExprPtr expression(bool with_conditional = true) { return with_conditional ? conditional() : binary(0); }
  ExprPtr tuple(bool with_conditional = true, Ends ends = {}, bool in_parentheses = false);
  ExprPtr filters(ExprPtr operand, bool first_without_bar = false);
  ExprPtr assignment_target(Ends ends, bool with_namespace);
  ExprPtr name_target();
  bool at_any_name(Ends names) const {
    return std::any_of(names.begin(), names.end(), [&](std::string_view n) { return current().is_name(n); });
  }

 private:
  ExprPtr conditional();
  ExprPtr binary(int level);
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr unary(bool with_filters = true);
  ExprPtr primary(bool with_namespace = false);
  ExprPtr literal();
  ExprPtr sequence(ExprKind kind, std::string_view close);
  ExprPtr postfix(ExprPtr e);
  ExprPtr subscript_of(ExprPtr object);
  ExprPtr subscribed();
  ExprPtr call(ExprPtr callee);
  ExprPtr test(ExprPtr operand);
  void arguments(Expr* node);
  bool at_tuple_end(Ends ends) const;
  ExprPtr sealed(ExprPtr node) const;  // with its depth, from those of its parts
  template <typename... Parts>
  ExprPtr make(ExprKind kind, int line, Parts... parts) const;
  void find_function(Expr* node);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  std::vector<std::string> unknown_;  // messages on filters and tests that do not exist
  int num_strings_ = 0;
};

}  // namespace llmb::jinja
