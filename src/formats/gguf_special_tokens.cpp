#include "formats/gguf_special_tokens.h"

#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace llmb {

namespace {

constexpr size_t kMaxTokenBytes = 1024;

constexpr std::pair<const char*, const char*> kNamesAndKeys[] = {
    {"bos_token", "tokenizer.ggml.bos_token_id"},       {"eos_token", "tokenizer.ggml.eos_token_id"},
    {"unk_token", "tokenizer.ggml.unknown_token_id"},   {"pad_token", "tokenizer.ggml.padding_token_id"},
    {"sep_token", "tokenizer.ggml.seperator_token_id"}, {"mask_token", "tokenizer.ggml.mask_token_id"}};

}  // namespace

std::map<std::string, std::string> gguf_special_tokens(const GgufFile& file) {
  std::map<int64_t, std::vector<const char*>> names;
  for (const auto& [name, key] : kNamesAndKeys)
    if (const auto id = file.integer(key); id && *id >= 0) names[*id].push_back(name);
  std::map<std::string, std::string> found;
  const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
  if (tokens == nullptr || !tokens->is_array || tokens->type != GgufValueType::kString) return found;
  GgufStrings strings(*tokens);
  std::string_view text;
  for (int64_t id = 0; !names.empty() && id <= names.rbegin()->first && strings.next(&text); ++id)
    if (const auto it = names.find(id);
        it != names.end() && !text.empty() && text.size() <= kMaxTokenBytes && is_valid_utf8(text))
      for (const char* name : it->second) found[name] = text;
  return found;
}

}  // namespace llmb
