#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <new>

#include "base/log.h"
#include "text/unicode.h"

namespace llmb {

namespace {

constexpr size_t kMaxPatternBytes = 65536;
constexpr uint32_t kMatchLimit = 20'000'000;  // steps of one search
constexpr uint32_t kHeapLimitKib = 65536;
constexpr size_t kJitStackBytes = 1024 * 1024;

template <auto kFree>
struct Freed {
  void operator()(auto* thing) const { kFree(thing); }
};

// The library answers null where there is no memory.
template <typename T>
T* must_have(T* thing) {
  if (thing == nullptr) throw std::bad_alloc();
  return thing;
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct RegexScratch::State {
  std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>> match_data{
      must_have(pcre2_match_data_create(1, nullptr))};
  std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>> context{
      must_have(pcre2_match_context_create(nullptr))};
  std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack_free>> jit_stack{
      must_have(pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr))};

  State() {
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    pcre2_jit_stack_assign(context.get(), nullptr, jit_stack.get());
  }
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view oniguruma_pattern) {
  const std::string quoted = "pattern \"" + escape_control(to_valid_utf8(oniguruma_pattern.substr(0, 200))) + "\"";
  if (oniguruma_pattern.size() > kMaxPatternBytes) return unsupported(quoted + " is too long");
  if (!is_valid_utf8(oniguruma_pattern)) return invalid_argument(quoted + " is not valid UTF-8");
  auto translated = translate_oniguruma(oniguruma_pattern);
  if (!translated.ok()) return translated.status().with_context(quoted);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  const std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context_free>> context(
      must_have(pcre2_compile_context_create(nullptr)));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
  if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  if (code->code == nullptr) return unsupported(quoted + " does not compile: " + pcre2_message(error));
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // without it pcre2_match interprets: slower, same result
  return Regex(std::move(code));
}

Result<Regex> Regex::compile_literal(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (is_punctuation(static_cast<unsigned char>(c)) && static_cast<unsigned char>(c) < 0x80) escaped += '\\';
    escaped += c;
  }
  return compile(escaped);
}

void Regex::find_all(std::string_view text, RegexScratch& scratch, std::vector<Span>* spans) const {
  spans->clear();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  RegexScratch::State& s = *scratch.state_;
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(s.match_data.get());
  size_t done = 0;  // everything before is in *spans
  size_t from = 0;  // where the next search starts
  bool had_match = false;
  while (from <= text.size() && !text.empty()) {
    const int found =
        pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, s.match_data.get(), s.context.get());
    if (found == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (found < 0) break;  // no match, or a limit was reached
    const size_t begin = bounds[0], end = bounds[1];
    if (end <= begin && had_match && end == done) {
      from = end < text.size() ? end + utf8_length(text[end]) : end + 1;
      if (begin < from && from <= text.size()) continue;
      break;
    }
    if (end < begin || begin < done) break;  // \K in a lookaround
    if (done != begin) spans->push_back({done, begin, false});
    spans->push_back({begin, end, true});
    done = end;
    from = end;
    had_match = true;
  }
  if (done != text.size()) spans->push_back({done, text.size(), false});
}

}  // namespace llmb
