#include "jinja/parser.h"

#include <algorithm>

#include "jinja/parser_expr.h"
#include "jinja/scope.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

using Names = std::initializer_list<std::string_view>;

class Parser : ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  std::unique_ptr<Template> run() {
    auto tmpl = std::make_unique<Template>();
    tmpl->body = statements_until({});
    refuse_unknown();
    tmpl->num_strings = num_strings();
    return tmpl;
  }

 private:
  bool at_any_name(Names names) const {
    return std::any_of(names.begin(), names.end(), [&](std::string_view n) { return current().is_name(n); });
  }

  // Statements up to a tag that begins with one of `ends`, whose name is then the current token.
  Body statements_until(Names ends) {
    const Nesting nesting(*this);
    Body body;
    std::unique_ptr<OutputStmt> output;
    const auto flush = [&] {
      if (output != nullptr) body.push_back(std::move(output));
    };
    const auto print = [&]() -> OutputStmt& {
      if (output == nullptr) output = std::make_unique<OutputStmt>(current().line);
      return *output;
    };
    while (!current().is(TokenKind::kEnd)) {
      if (current().is(TokenKind::kData)) {
        auto text = std::make_unique<ConstExpr>(current().line);
        text->type = Type::kString;
        text->text = advance().value;
        print().items.push_back(std::move(text));
      } else if (current().is(TokenKind::kVariableBegin)) {
        advance();
        ExprPtr value = tuple();
        print().items.push_back(std::move(value));
        expect(TokenKind::kVariableEnd, "end of print statement");
      } else {
        flush();
        expect(TokenKind::kBlockBegin, "begin of statement block");
        if (at_any_name(ends)) return body;
        body.push_back(statement(ends));
        expect(TokenKind::kBlockEnd, "end of statement block");
      }
    }
    flush();
    if (ends.size() > 0)
      fail("Unexpected end of template. It was looking for '" + std::string(*(ends.end() - 1)) + "'");
    return body;
  }

  // The body of a statement: from the end of its tag to one of `ends`.
  Body body_until(Names ends) {
    skip_operator(":");
    expect(TokenKind::kBlockEnd, "end of statement block");
    return statements_until(ends);
  }

  Body body_to(std::string_view end) {
    Body body = body_until({end});
    advance();
    return body;
  }

  StmtPtr statement(Names ends) {
    if (!current().is(TokenKind::kName)) fail("tag name expected");
    const std::string tag = current().value;
    const int line = current().line;
    if (tag == "if") return if_statement();
    if (tag == "for") return for_statement();
    if (tag == "set") return set_statement();
    if (tag == "macro") return macro();
    if (tag == "call") return call_block();
    if (tag == "filter") return filter_block();
    if (tag == "with") return with();
    if (tag == "print") return print_statement();
    if (tag == "block") return block();
    if (tag == "generation") {
      advance();
      const LoopBarrier barrier(*this);
      auto generation = std::make_unique<ScopedStmt>(StmtKind::kGeneration, line);
      generation->body = body_to("endgeneration");
      return generation;
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail("'" + tag + "' outside loop");
      advance();
      return std::make_unique<Stmt>(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
    }
    for (const char* refused : {"include", "import", "from", "extends", "autoescape"}) {
      if (tag == refused) fail("{% " + tag + " %} is not available in chat templates");
    }
    std::string message = "Encountered unknown tag " + repr_text(tag) + ".";
    if (ends.size() > 0) message += " It was looking for '" + std::string(*(ends.end() - 1)) + "'.";
    fail(message);
  }

  StmtPtr if_statement() {
    auto node = std::make_unique<IfStmt>(current().line);
    const Conditional conditional(*this);
    for (;;) {
      advance();  // if or elif
      ExprPtr condition = tuple(false);
      Body body = body_until({"elif", "else", "endif"});
      node->branches.emplace_back(std::move(condition), std::move(body));
      if (!current().is_name("elif")) break;
    }
    if (advance().is_name("else")) node->otherwise = body_to("endif");
    return node;
  }

  StmtPtr for_statement() {
    auto node = std::make_unique<ForStmt>(advance().line);
    const size_t target_begin = position();
    node->target = assignment_target({"in"}, false);
    expect_name("in");
    node->iterable = tuple(false, {"recursive"});
    if (skip_name("if")) {
      node->condition = expression();
      const size_t resume = position();
      rewind(target_begin);
      node->condition_target = assignment_target({"in"}, false);
      rewind(resume);
    }
    node->recursive = skip_name("recursive");
    ++loops_;
    node->body = body_until({"endfor", "else"});
    --loops_;
    if (advance().is_name("else")) node->otherwise = body_to("endfor");
    return node;
  }

  StmtPtr set_statement() {
    const int line = advance().line;
    ExprPtr target = assignment_target({}, true);
    if (skip_operator("=")) {
      auto node = std::make_unique<SetStmt>(line);
      node->target = std::move(target);
      node->value = tuple();
      return node;
    }
    auto node = std::make_unique<SetBlockStmt>(line);
    node->target = std::move(target);
    if (current().is_operator("|")) node->filter = filters(nullptr);
    node->body = body_to("endset");
    return node;
  }

  void signature(MacroCode* code) {
    expect_operator("(");
    while (!current().is_operator(")")) {
      if (!code->parameters.empty()) expect_operator(",");
      code->parameters.push_back(name_target());
      if (code->parameters.back()->name == "caller") code->explicit_caller = true;
      if (skip_operator("=")) code->defaults.push_back(expression());
      else if (!code->defaults.empty()) fail("non-default argument follows default argument");
    }
    advance();
  }

  StmtPtr macro() {
    auto node = std::make_unique<MacroStmt>(advance().line);
    node->target.name = name_target()->name;
    node->code.name = node->target.name;
    signature(&node->code);
    const LoopBarrier barrier(*this);
    node->code.body = body_to("endmacro");
    return node;
  }

  StmtPtr call_block() {
    auto node = std::make_unique<CallBlockStmt>(advance().line);
    node->code.anonymous = true;
    if (current().is_operator("(")) signature(&node->code);
    node->call = expression();
    if (node->call->kind != ExprKind::kCall) fail("expected call");
    const LoopBarrier barrier(*this);
    node->code.body = body_to("endcall");
    return node;
  }

  StmtPtr filter_block() {
    auto node = std::make_unique<FilterBlockStmt>(advance().line);
    node->filter = filters(nullptr, true);
    node->body = body_to("endfilter");
    return node;
  }

  StmtPtr with() {
    auto node = std::make_unique<WithStmt>(advance().line);
    while (!current().is(TokenKind::kBlockEnd)) {
      if (!node->assignments.empty()) expect_operator(",");
      ExprPtr target = assignment_target({}, false);
      expect_operator("=");
      node->assignments.emplace_back(std::move(target), expression());
    }
    node->body = body_to("endwith");
    return node;
  }

  StmtPtr print_statement() {
    auto node = std::make_unique<OutputStmt>(advance().line);
    while (!current().is(TokenKind::kBlockEnd)) {
      if (!node->items.empty()) expect_operator(",");
      node->items.push_back(expression());
    }
    return node;
  }

  StmtPtr block() {
    auto node = std::make_unique<ScopedStmt>(StmtKind::kBlock, advance().line);
    const std::string name = name_target()->name;
    skip_name("scoped");
    skip_name("required");
    const LoopBarrier barrier(*this);
    node->body = body_to("endblock");
    skip_name(name);
    return node;
  }

  // break and continue do not reach out of a macro, block or generation.
  class LoopBarrier {
   public:
    explicit LoopBarrier(Parser& p) : parser_(p), loops_(p.loops_) { p.loops_ = 0; }
    ~LoopBarrier() { parser_.loops_ = loops_; }

   private:
    Parser& parser_;
    int loops_;
  };

  int loops_ = 0;
};

}  // namespace

std::unique_ptr<Template> parse_template(std::string_view source) {
  auto tmpl = Parser(tokenize(source)).run();
  resolve_names(tmpl.get());
  return tmpl;
}

}  // namespace llmb::jinja
