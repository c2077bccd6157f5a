#include "jinja/parser.h"

#include "jinja/parser_expr.h"
#include "jinja/scope.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

class Parser : ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  std::unique_ptr<Template> run() {
    auto tmpl = std::make_unique<Template>();
    tmpl->block.body = statements_until({});
    refuse_unknown();
    tmpl->num_strings = num_strings();
    return tmpl;
  }

 private:
  // Statements up to a tag that begins with one of `ends`, whose name is then the current token.
  Body statements_until(Ends ends) {
    const Nesting nesting(*this);
    Body body;
    while (!current().is(TokenKind::kEnd)) {
      if (!current().is(TokenKind::kBlockBegin)) {
        body.push_back(output());
        continue;
      }
      advance();
      if (at_any_name(ends)) return body;
      body.push_back(statement(ends));
      expect(TokenKind::kBlockEnd, "end of statement block");
    }
    if (ends.size() > 0)
      fail("Unexpected end of template. It was looking for '" + std::string(*(ends.end() - 1)) + "'");
    return body;
  }

  // Text and print statements up to a tag of a statement.
  StmtPtr output() {
    auto node = std::make_unique<Stmt>(StmtKind::kOutput, current().line);
    for (;;) {
      if (current().is(TokenKind::kData)) {
        auto text = std::make_unique<Expr>(ExprKind::kConst, current().line);
        text->type = Type::kString;
        text->text = advance().value;
        node->exprs.push_back(std::move(text));
      } else if (current().is(TokenKind::kVariableBegin)) {
        advance();
        node->exprs.push_back(tuple());
        expect(TokenKind::kVariableEnd, "end of print statement");
      } else {
        return node;
      }
    }
  }

  // The body of a statement: from the end of its tag to one of `ends`.
  Block block_until(Ends ends) {
    skip_operator(":");
    expect(TokenKind::kBlockEnd, "end of statement block");
    Block block;
    block.body = statements_until(ends);
    return block;
  }

  Block block_to(std::string_view end) {
    Block block = block_until({end});
    advance();
    return block;
  }

  StmtPtr statement(Ends ends) {
    static constexpr std::pair<std::string_view, StmtPtr (Parser::*)(int)> kTags[] = {
        {"if", &Parser::if_statement},   {"for", &Parser::for_statement},
        {"set", &Parser::set_statement}, {"macro", &Parser::macro},
        {"call", &Parser::call_block},   {"filter", &Parser::filter_block},
        {"with", &Parser::with},         {"print", &Parser::print},
        {"block", &Parser::block},       {"generation", &Parser::generation}};
    if (!current().is(TokenKind::kName)) fail("tag name expected");
    const std::string tag = current().value;
    const int line = current().line;
    for (const auto& [name, parse] : kTags)
      if (tag == name) return advance(), (this->*parse)(line);
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail("'" + tag + "' outside loop");
      advance();
      return std::make_unique<Stmt>(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
    }
    if (at_any_name({"include", "import", "from", "extends", "autoescape"}))
      fail("{% " + tag + " %} is not available in chat templates");
    std::string message = "Encountered unknown tag " + repr_text(tag) + ".";
    if (ends.size() > 0) message += " It was looking for '" + std::string(*(ends.end() - 1)) + "'.";
    fail(message);
  }

  // Each is called behind its tag's name, which is on `line`.
  StmtPtr if_statement(int line) {
    auto node = std::make_unique<Stmt>(StmtKind::kIf, line);
    const Conditional conditional(*this);
    do {
      node->exprs.push_back(tuple(false));
      node->blocks.push_back(block_until({"elif", "else", "endif"}));
    } while (skip_name("elif"));
    node->blocks.push_back(advance().is_name("else") ? block_to("endif") : Block());
    return node;
  }

  StmtPtr for_statement(int line) {
    auto node = std::make_unique<Stmt>(StmtKind::kFor, line);
    const size_t target_begin = position();
    node->targets.push_back(assignment_target({"in"}, false));
    node->targets.emplace_back();
    expect_name("in");
    node->exprs.push_back(tuple(false, {"recursive"}));
    node->exprs.push_back(skip_name("if") ? expression() : nullptr);
    if (node->exprs[1] != nullptr) {
      const size_t resume = position();
      rewind(target_begin);
      node->targets[1] = assignment_target({"in"}, false);
      rewind(resume);
    }
    node->recursive = skip_name("recursive");
    ++loops_;
    node->blocks.push_back(block_until({"endfor", "else"}));
    --loops_;
    node->blocks.push_back(advance().is_name("else") ? block_to("endfor") : Block());
    node->blocks.emplace_back();
    return node;
  }

  StmtPtr set_statement(int line) {
    auto node = std::make_unique<Stmt>(StmtKind::kSet, line);
    node->targets.push_back(assignment_target({}, true));
    if (skip_operator("=")) {
      node->exprs.push_back(tuple());
      return node;
    }
    node->kind = StmtKind::kSetBlock;
    node->exprs.push_back(current().is_operator("|") ? filters(nullptr) : nullptr);
    node->blocks.push_back(block_to("endset"));
    return node;
  }

  // (a, b=1, …)
  void signature(MacroCode* code) {
    expect_operator("(");
    while (!current().is_operator(")")) {
      if (!code->parameters.empty()) expect_operator(",");
      code->parameters.push_back(name_target());
      if (skip_operator("=")) code->defaults.push_back(expression());
      else if (!code->defaults.empty()) fail("non-default argument follows default argument");
    }
    advance();
  }

  StmtPtr macro(int line) {
    auto node = std::make_unique<Stmt>(StmtKind::kMacro, line);
    node->targets.push_back(name_target());
    node->code = std::make_unique<MacroCode>();
    node->code->name = node->targets[0]->text;
    signature(node->code.get());
    const LoopBarrier barrier(*this);
    node->code->block = block_to("endmacro");
    return node;
  }

  StmtPtr call_block(int line) {
    auto node = std::make_unique<Stmt>(StmtKind::kCallBlock, line);
    node->code = std::make_unique<MacroCode>();
    if (current().is_operator("(")) signature(node->code.get());
    node->exprs.push_back(expression());
    if (node->exprs[0]->kind != ExprKind::kCall) fail("expected call");
    const LoopBarrier barrier(*this);
    node->code->block = block_to("endcall");
    return node;
  }

  StmtPtr filter_block(int line) {
    auto node = std::make_unique<Stmt>(StmtKind::kFilterBlock, line);
    node->exprs.push_back(filters(nullptr, true));
    node->blocks.push_back(block_to("endfilter"));
    return node;
  }

  StmtPtr with(int line) {
    auto node = std::make_unique<Stmt>(StmtKind::kWith, line);
    while (!current().is(TokenKind::kBlockEnd)) {
      if (!node->targets.empty()) expect_operator(",");
      node->targets.push_back(assignment_target({}, false));
      expect_operator("=");
      node->exprs.push_back(expression());
    }
    node->blocks.push_back(block_to("endwith"));
    return node;
  }

  StmtPtr print(int line) {
    auto node = std::make_unique<Stmt>(StmtKind::kOutput, line);
    while (!current().is(TokenKind::kBlockEnd)) {
      if (!node->exprs.empty()) expect_operator(",");
      node->exprs.push_back(expression());
    }
    return node;
  }

  StmtPtr block(int line) {
    auto node = std::make_unique<Stmt>(StmtKind::kBlock, line);
    const std::string name = name_target()->text;
    skip_name("scoped");
    skip_name("required");
    const LoopBarrier barrier(*this);
    node->blocks.push_back(block_to("endblock"));
    skip_name(name);
    return node;
  }

  StmtPtr generation(int line) {
    auto node = std::make_unique<Stmt>(StmtKind::kGeneration, line);
    const LoopBarrier barrier(*this);
    node->blocks.push_back(block_to("endgeneration"));
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
