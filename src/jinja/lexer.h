// Template source to tokens, with trim_blocks and lstrip_blocks on, as jinja2's lexer makes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmb::jinja {

enum class TokenKind : uint8_t {
  kData,  // text between tags; value
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,      // value
  kString,    // value, unescaped
  kInteger,   // integer
  kFloat,     // real
  kOperator,  // value: + - / // * % ** ~ [ ] ( ) { } == != > >= < <= = . : | , ;
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string value;
  int64_t integer = 0;
  double real = 0;

  bool is(TokenKind k) const { return kind == k; }
  bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && value == op; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && value == name; }
  std::string describe() const;  // for messages
};

inline constexpr size_t kMaxSourceBytes = size_t{256} << 10;
inline constexpr size_t kMaxTokens = 60'000;

// The tokens, ended by one of kind kEnd. Throws jinja::Error with the line for what is not a template.
std::vector<Token> tokenize(std::string_view source);

}  // namespace llmb::jinja
