// tiktoken's ranks: lines of a token's bytes in base64, a space, and its rank, which is its id and the order of
// merging.
#include <algorithm>
#include <charconv>

#include "text/unicode.h"
#include "base/base64.h"
#include "tokenizer/slow_formats.h"
#include "tokenizer/word_splits.h"

namespace llmb {

namespace {

using nlohmann::json;

constexpr size_t kMaxTiktokenBytes = 4096;  // of one token

// The token as GPT-2's characters, or "" where the line is not base64, a space and a number.
std::string read_line(std::string_view line, int64_t* rank) {
  const size_t space = line.find(' ');
  std::string bytes;
  if (space == std::string_view::npos || !decode_base64(line.substr(0, space), &bytes)) return "";
  const std::string_view number = line.substr(space + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), *rank);
  if (error != std::errc() || end != number.data() + number.size()) return "";
  std::string token;
  for (const char b : bytes) append_utf8(&token, byte_level_char(static_cast<uint8_t>(b)));
  return token;
}

struct RankedMerge {
  TokenId left, right, result;
};

// Every way to put a token together from two others, in the order of the result's rank.
Status add_merges(TokenizerFile* file) {
  std::vector<RankedMerge> merges;
  size_t work = 0;
  for (TokenId id = 0; id < file->vocab.size(); ++id) {
    const std::string_view text = file->vocab.text(id);
    work += text.size() * text.size();
    if (text.size() > kMaxTiktokenBytes || work > kMaxMergeWork) return data_loss("the tokens are too long");
    const size_t first = merges.size();
    for (size_t cut = text.empty() ? 0 : utf8_length(text[0]); cut < text.size(); cut += utf8_length(text[cut])) {
      const auto left = file->vocab.find(text.substr(0, cut)), right = file->vocab.find(text.substr(cut));
      if (left && right) merges.push_back({*left, *right, id});
    }
    std::sort(merges.begin() + static_cast<ptrdiff_t>(first), merges.end(),
              [](const RankedMerge& a, const RankedMerge& b) {
                return std::pair(a.left, a.right) < std::pair(b.left, b.right);
              });
  }
  for (const RankedMerge& m : merges) {
    LLMB_RETURN_IF_ERROR(file->add_merge(file->vocab.text(m.left), file->vocab.text(m.right)));
  }
  file->has_merges = true;
  return {};
}

// tokenizer_config.json names the special tokens; ids between them that it does not name are reserved.
void add_special_tokens(const TokenizerConfig& config, TokenizerFile* file) {
  int64_t next = file->vocab.size();
  for (const AddedToken& token : config.added_tokens) {
    for (; token.id > next && token.id < static_cast<int64_t>(kMaxVocabEntries); ++next) {
      AddedToken reserved;
      reserved.content = "<|reserved_token_" + std::to_string(next) + "|>";
      reserved.id = next;
      reserved.special = true;
      reserved.normalized = false;
      file->added_tokens.push_back(std::move(reserved));
    }
    if (token.id < next) continue;
    file->added_tokens.push_back(token);
    ++next;
  }
}

// How the text is split into words: ranks do not say it.
Result<WordSplit> split_of(const std::string& tokenizer_class, const Vocab& vocab) {
  if (tokenizer_class == "QWenTokenizer") return *find_word_split("qwen2");
  if (tokenizer_class == "TikTokenTokenizer") return *find_word_split("kimi-k2");
  std::vector<std::string_view> tokens;
  for (TokenId id = 0; id < vocab.size(); ++id) tokens.push_back(vocab.text(id));
  LLMB_ASSIGN_OR_RETURN(const auto guess, guess_word_split(tokens, "the file of tiktoken ranks", "llama-bpe"));
  return *find_word_split(guess);
}

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) {
  int64_t rank = -1;
  return !read_line(bytes.substr(0, std::min<size_t>(bytes.find('\n'), 4096)), &rank).empty();
}

Result<TokenizerFile> read_tiktoken(std::string_view bytes, TokenizerConfig* config) {
  TokenizerFile file;
  for (size_t line_number = 1; !bytes.empty(); ++line_number) {
    const size_t end = bytes.find('\n');
    std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    int64_t rank = -1;
    const std::string token = read_line(line, &rank);
    if (token.empty()) return data_loss("line " + std::to_string(line_number) + " is not a token and its rank");
    LLMB_RETURN_IF_ERROR(file.vocab.add(token, rank));
  }
  LLMB_RETURN_IF_ERROR(add_merges(&file));
  add_special_tokens(*config, &file);
  LLMB_ASSIGN_OR_RETURN(const auto name, json_string(config->values, "tokenizer_class", ""));
  LLMB_ASSIGN_OR_RETURN(const auto split, split_of(name, file.vocab));
  if (split.nfc) file.normalizer = {{"type", "NFC"}};
  file.pre_tokenizer = pre_tokenizer_of(split);
  file.decoder = {{"type", "ByteLevel"}};
  file.model = {{"type", "BPE"}, {"ignore_merges", true}};
  return file;
}

}  // namespace llmb
