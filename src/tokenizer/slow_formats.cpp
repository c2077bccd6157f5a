#include "tokenizer/slow_formats.h"


#include "base/directory.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "tokenizer/patterns.h"
#include "tokenizer/word_splits.h"

namespace llmb {

namespace {

using nlohmann::json;

Status read_vocab(const std::string& path, TokenizerFile* out) {
  LLMB_ASSIGN_OR_RETURN(const auto vocab, read_whole_file(path, kMaxTextFileBytes));
  std::string text = "{\"model\":{\"vocab\":";  // the same content as that part of tokenizer.json
  text += vocab;
  text += "}}";
  auto parsed = parse_tokenizer_json(text);
  if (!parsed.ok()) return parsed.status().with_context(path);
  *out = std::move(*parsed);
  return {};
}

Status read_merges(const std::string& path, TokenizerFile* out) {
  LLMB_ASSIGN_OR_RETURN(const auto merges, read_whole_file(path, kMaxTextFileBytes));
  std::string_view text = merges;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const Status status = out->add_merge_line(line);
    if (!status.ok()) return status.with_context(path);
  }
  out->has_merges = true;
  return {};
}

void set_default(const char* name, const char* content, TokenizerConfig* config) {
  if (config->values.contains(name)) return;  // null there means none
  AddedToken token;
  token.content = content;
  token.special = true;
  token.normalized = false;
  config->special_tokens.try_emplace(name, token);
}

json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"use_regex", use_regex}};
}

// For a directory without a tokenizer_class.
Result<WordSplit> guessed_split(const Vocab& vocab) {
  std::vector<std::string_view> tokens;
  for (TokenId id = 0; id < vocab.size(); ++id) tokens.push_back(vocab.text(id));
  LLMB_ASSIGN_OR_RETURN(const auto recognised, recognise_word_split(tokens));
  if (recognised == "gpt-2") return *find_word_split("gpt-2");  // the usual one: nothing to warn of
  LLMB_ASSIGN_OR_RETURN(const auto guess,
                        guess_word_split(tokens, "the directory of vocab.json (tokenizer_class)", "gpt-2"));
  return *find_word_split(guess);
}

Status set_pipeline(TokenizerConfig* config, TokenizerFile* file) {
  LLMB_ASSIGN_OR_RETURN(const auto tokenizer_class, json_string(config->values, "tokenizer_class", "GPT2Tokenizer"));
  LLMB_ASSIGN_OR_RETURN(const auto prefix_space, json_bool(config->values, "add_prefix_space", false));
  std::string name = tokenizer_class;
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  file->model["type"] = "BPE";
  file->decoder = byte_level(false, true);
  if (name == "Qwen2Tokenizer") {
    file->normalizer = {{"type", "NFC"}};
    const json split = {{"type", "Split"}, {"pattern", {{"Regex", kQwen2Pattern}}}, {"behavior", "Isolated"}};
    file->pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(prefix_space, false)}}};
    for (const char* token : {"eos_token", "pad_token", "unk_token"}) set_default(token, "<|endoftext|>", config);
  } else if (name == "GPT2Tokenizer" || name == "CodeGenTokenizer") {
    file->pre_tokenizer = byte_level(prefix_space, true);
    if (!config->values.contains("tokenizer_class") && !prefix_space) {
      LLMB_ASSIGN_OR_RETURN(const auto split, guessed_split(file->vocab));
      file->pre_tokenizer = pre_tokenizer_of(split);
      if (split.nfc) file->normalizer = {{"type", "NFC"}};
      file->model["ignore_merges"] = split.ignore_merges;
    }
    for (const char* token : {"bos_token", "eos_token", "unk_token"}) set_default(token, "<|endoftext|>", config);
  } else {
    return unsupported("tokenizer_class \"" + escape_control(tokenizer_class) +
                       "\" without a tokenizer.json is not supported; save the tokenizer with transformers to get one");
  }
  return {};
}

// tokenizer.model (sentencepiece, or Llama 3's ranks under the same name), tiktoken.model, or the first *.tiktoken.
std::string find_model_file(const std::string& model_dir) {
  for (const char* name : {"tokenizer.model", "tiktoken.model"}) {
    if (file_exists(model_dir + "/" + name)) return model_dir + "/" + name;
  }
  const Result<std::vector<std::string>> names = directory_names(model_dir);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>())
    if (name.ends_with(".tiktoken")) return model_dir + "/" + name;
  return "";
}

}  // namespace

Result<TokenizerFile> read_slow_format(const std::string& model_dir, TokenizerConfig* config) {
  for (const auto& [vocab, merges] : {std::pair("vocab.json", "merges.txt"), std::pair("encoder.json", "vocab.bpe")}) {
    const std::string vocab_path = model_dir + "/" + vocab, merges_path = model_dir + "/" + merges;
    if (!file_exists(vocab_path) || !file_exists(merges_path)) continue;
    TokenizerFile file;
    LLMB_RETURN_IF_ERROR(read_vocab(vocab_path, &file));
    LLMB_RETURN_IF_ERROR(read_merges(merges_path, &file));
    const Status status = set_pipeline(config, &file);
    if (!status.ok()) return status.with_context(model_dir);
    return file;
  }
  const std::string path = find_model_file(model_dir);
  if (path.empty()) {
    return not_found(model_dir + ": no tokenizer.json, vocab.json with merges.txt, tokenizer.model or *.tiktoken; " +
                     "a model directory needs one of them, or --tokenizer takes one from elsewhere");
  }
  LLMB_ASSIGN_OR_RETURN(const auto bytes, read_whole_file(path, kMaxTextFileBytes));
  auto read = looks_like_tiktoken(bytes) ? read_tiktoken(bytes, config) : read_sentencepiece(bytes, config);
  if (!read.ok()) return read.status().with_context(path);
  return read;
}

}  // namespace llmb
