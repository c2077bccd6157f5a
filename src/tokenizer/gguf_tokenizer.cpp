#include "tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/utf8.h"
#include "formats/gguf_special_tokens.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/word_splits.h"

namespace llmb {

namespace {

using nlohmann::json;

constexpr const char* kModelKey = "tokenizer.ggml.model";

// The array under `key`; nullptr where there is none of that kind with an element for each token.
const GgufValue* find_array(const GgufFile& file, const char* key, uint64_t min_count, bool is_text) {
  const GgufValue* value = file.find(key);
  if (value == nullptr || !value->is_array || value->count < min_count) return nullptr;
  const bool is_string = value->type == GgufValueType::kString;
  const bool is_number = is_gguf_integer(value->type) || is_gguf_float(value->type);
  return (is_text ? is_string : is_number) ? value : nullptr;
}

// Every token's text, score and kind. Empty tokens get a name, as they have in llama.cpp.
struct TokenTable {
  std::vector<Piece> pieces;
  std::vector<std::string> made_up;
};

Result<TokenTable> read_tokens(const GgufFile& file) {
  const GgufValue* tokens = find_array(file, "tokenizer.ggml.tokens", 1, true);
  if (tokens == nullptr) return data_loss("\"tokenizer.ggml.tokens\" is no array of strings");
  if (tokens->count > kMaxVocabEntries) return data_loss(std::to_string(tokens->count) + " tokens are too many");
  for (const char* key : {"tokenizer.ggml.token_type", "tokenizer.ggml.scores"})
    if (file.find(key) != nullptr && find_array(file, key, tokens->count, false) == nullptr)
      return data_loss(std::string("\"") + key + "\" is not a number for each token");
  const GgufValue* types = file.find("tokenizer.ggml.token_type");
  const GgufValue* scores = file.find("tokenizer.ggml.scores");
  TokenTable table;
  table.pieces.reserve(tokens->count);
  GgufStrings strings(*tokens);
  std::string_view text;
  for (uint64_t id = 0; strings.next(&text); ++id) {
    Piece& piece = table.pieces.emplace_back();
    piece.text = text;
    piece.kind = types != nullptr ? static_cast<uint64_t>(gguf_integer(*types, id)) : uint64_t{kNormal};
    piece.score = scores != nullptr ? static_cast<float>(gguf_number(*scores, id)) : 0;
    if (!is_valid_utf8(text)) return data_loss("token " + std::to_string(id) + " is not UTF-8");
    if (text.empty()) table.made_up.push_back("[EMPTY_" + std::to_string(id) + "]");
  }
  auto name = table.made_up.begin();
  for (Piece& piece : table.pieces)
    if (piece.text.empty()) piece.text = *name++;
  return table;
}

AddedToken special_token(std::string_view text) {
  AddedToken token;
  token.content = text;
  token.special = true;
  token.normalized = false;
  return token;
}

// Chooses among splits that cut alike by the model's other properties.
std::string_view name_for(std::string_view recognised, const GgufFile& file, const Vocab& vocab) {
  const std::string_view architecture = file.text("general.architecture").value_or("");
  if (recognised == "llama-bpe" && !vocab.find("<|begin_of_text|>")) return "dbrx";
  if (recognised == "gpt-2" && (architecture == "gptneox" || architecture == "mpt" || architecture.starts_with("olmo")))
    return "olmo";
  return recognised;
}

// How text is split into words. Files made before April 2024 do not say it; "default" is what converters wrote for a
// tokenizer that they did not know.
Result<WordSplit> split_of(const GgufFile& file, const TokenTable& table, const Vocab& vocab) {
  const std::string name(file.text("tokenizer.ggml.pre").value_or(""));
  if (!name.empty() && name != "default") {
    const auto split = find_word_split(name);
    if (split) return *split;
    return unsupported("tokenizer.ggml.pre \"" + escape_control(name.substr(0, 60)) +
                       "\" is not supported; --tokenizer takes the tokenizer of the original model");
  }
  std::vector<std::string_view> made_by_training;
  for (const Piece& piece : table.pieces)
    if (piece.kind == kNormal) made_by_training.push_back(piece.text);
  LLMB_ASSIGN_OR_RETURN(const auto guess,
                        guess_word_split(made_by_training, "the GGUF file (tokenizer.ggml.pre)", "default"));
  return *find_word_split(name_for(guess, file, vocab));
}

// The id under the first of `keys` that the file has, and that is a token's.
std::optional<int64_t> token_under(const GgufFile& file, const TokenTable& table,
                                   std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto id = file.integer(key); id && *id >= 0 && *id < static_cast<int64_t>(table.pieces.size())) return id;
  return std::nullopt;
}

// Around the text of an encoder stand the tokens that begin and part texts, whatever the flags say. RoBERTa's kind puts
// two between two texts.
Status add_processor(const GgufFile& file, const TokenTable& table, const char* kind, TokenizerFile* out,
                     TokenizerConfig* config) {
  const auto cls = token_under(file, table, {"tokenizer.ggml.cls_token_id", "tokenizer.ggml.bos_token_id"});
  const auto sep = token_under(file, table, {"tokenizer.ggml.seperator_token_id", "tokenizer.ggml.eos_token_id"});
  if (!cls || !sep)
    return data_loss("\"tokenizer.ggml.cls_token_id\" and \"tokenizer.ggml.seperator_token_id\" are not both tokens");
  const auto token = [&](int64_t id) { return json::array({std::string(table.pieces[id].text), id}); };
  out->post_processor = {{"type", kind}, {"cls", token(*cls)}, {"sep", token(*sep)}};
  config->add_bos_token = config->add_eos_token = std::nullopt;
  return {};
}

Result<TokenizerFile> read_byte_level_bpe(const GgufFile& file, const TokenTable& table, TokenizerConfig* config) {
  TokenizerFile out;
  for (size_t id = 0; id < table.pieces.size(); ++id) {
    const Piece& piece = table.pieces[id];
    LLMB_RETURN_IF_ERROR(out.vocab.add(piece.text, static_cast<int64_t>(id)));
    if (piece.kind != kControl && piece.kind != kUserDefined) continue;
    AddedToken token = special_token(piece.text);
    token.id = static_cast<int64_t>(id);
    token.special = piece.kind == kControl;
    if (token.content.size() > kMaxAddedTokenBytes) return data_loss("token " + std::to_string(id) + " is too long");
    out.added_tokens.push_back(std::move(token));
  }
  const GgufValue* merges = find_array(file, "tokenizer.ggml.merges", 0, true);
  if (merges == nullptr) return data_loss("\"tokenizer.ggml.merges\" is no array of strings");
  GgufStrings rules(*merges);
  for (std::string_view rule; rules.next(&rule);) {
    if (!is_valid_utf8(rule)) return data_loss("a rule of \"tokenizer.ggml.merges\" is not UTF-8");
    LLMB_RETURN_IF_ERROR(out.add_merge_line(rule));
  }
  out.has_merges = true;
  LLMB_ASSIGN_OR_RETURN(const auto split, split_of(file, table, out.vocab));
  out.model = {{"type", "BPE"}, {"ignore_merges", split.ignore_merges}};
  if (split.nfc) out.normalizer = {{"type", "NFC"}};
  out.pre_tokenizer = pre_tokenizer_of(split);
  out.decoder = {{"type", "ByteLevel"}};
  const std::string_view architecture = file.text("general.architecture").value_or("");
  if (architecture == "bert" || architecture == "modern-bert")
    LLMB_RETURN_IF_ERROR(
        add_processor(file, table, architecture == "bert" ? "RobertaProcessing" : "BertProcessing", &out, config));
  else if (!config->add_bos_token) config->add_bos_token = split.add_bos;
  return out;
}

Result<TokenizerFile> read_spm(const GgufFile& file, TokenTable& table, TokenizerConfig* config) {
  SpmModel model;
  model.model_type = 2;
  model.pieces = table.pieces;
  model.byte_fallback =
      std::any_of(table.pieces.begin(), table.pieces.end(), [](const Piece& p) { return p.kind == kByte; });
  model.add_dummy_prefix = file.boolean("tokenizer.ggml.add_space_prefix").value_or(true);
  model.remove_extra_whitespaces = file.boolean("tokenizer.ggml.remove_extra_whitespaces").value_or(false);
  const auto id = [&](const char* key, int64_t otherwise) { return file.integer(key).value_or(otherwise); };
  model.unk_id = id("tokenizer.ggml.unknown_token_id", 0);
  model.bos_id = id("tokenizer.ggml.bos_token_id", 1);
  model.eos_id = id("tokenizer.ggml.eos_token_id", 2);
  model.pad_id = id("tokenizer.ggml.padding_token_id", -1);
  return build_sentencepiece(model, config);
}

// Byte-wise pairs of an SPM vocabulary, by the file's own rules: Gemma 4.
Result<TokenizerFile> read_gemma4(const GgufFile& file, TokenTable& table, TokenizerConfig* config) {
  const GgufValue* merges = find_array(file, "tokenizer.ggml.merges", 0, true);
  if (merges == nullptr) return data_loss("\"tokenizer.ggml.merges\" is no array of strings");
  for (Piece& piece : table.pieces) piece.score = 0;  // they say nothing here
  LLMB_ASSIGN_OR_RETURN(TokenizerFile out, read_spm(file, table, config));
  out.merges.clear();
  out.merge_bytes.clear();
  GgufStrings rules(*merges);
  for (std::string_view rule; rules.next(&rule);) {
    if (!is_valid_utf8(rule)) return data_loss("a rule of \"tokenizer.ggml.merges\" is not UTF-8");
    LLMB_RETURN_IF_ERROR(out.add_merge_line(rule));
  }
  out.has_merges = true;
  return out;
}

// BERT's WordPiece. A token that begins a word is written with SPM's space, one that goes on without "##".
Result<TokenizerFile> read_word_piece(const GgufFile& file, const TokenTable& table, TokenizerConfig* config) {
  constexpr std::string_view kSpace = "\xe2\x96\x81", kPrefix = "##";
  const auto unknown = token_under(file, table, {"tokenizer.ggml.unknown_token_id"});
  if (!unknown) return data_loss("\"tokenizer.ggml.unknown_token_id\" is no token");
  TokenizerFile out;
  for (size_t id = 0; id < table.pieces.size(); ++id) {
    const Piece& piece = table.pieces[id];
    const bool is_control = piece.kind == kControl;
    const bool begins = piece.text.starts_with(kSpace);
    const std::string text = is_control || piece.kind == kUnused ? std::string(piece.text)
                             : begins                            ? std::string(piece.text.substr(kSpace.size()))
                                                                 : std::string(kPrefix) + std::string(piece.text);
    if (text.empty()) return data_loss("token " + std::to_string(id) + " is only a space");
    LLMB_RETURN_IF_ERROR(out.vocab.add(text, static_cast<int64_t>(id)));
    if (!is_control) continue;
    if (text.size() > kMaxAddedTokenBytes) return data_loss("token " + std::to_string(id) + " is too long");
    AddedToken token = special_token(text);
    token.id = static_cast<int64_t>(id);
    out.added_tokens.push_back(std::move(token));
  }
  const std::string_view unknown_text = table.pieces[*unknown].text;
  out.model = {
      {"type", "WordPiece"},
      {"unk_token", std::string(unknown_text.starts_with(kSpace) ? unknown_text.substr(kSpace.size()) : unknown_text)},
      {"continuing_subword_prefix", kPrefix},
      {"max_input_chars_per_word", 100}};
  const bool lowers = file.boolean("tokenizer.ggml.normalizer.lowercase").value_or(true);
  out.normalizer = {{"type", "BertNormalizer"},
                    {"clean_text", true},
                    {"handle_chinese_chars", true},
                    {"strip_accents", nullptr},
                    {"lowercase", lowers}};
  if (const auto strips = file.boolean("tokenizer.ggml.normalizer.strip_accents"); strips)
    out.normalizer["strip_accents"] = *strips;
  out.pre_tokenizer = {{"type", "BertPreTokenizer"}};
  out.decoder = {{"type", "WordPiece"}, {"prefix", kPrefix}, {"cleanup", true}};
  LLMB_RETURN_IF_ERROR(add_processor(file, table, "BertProcessing", &out, config));
  return out;
}

// XLM-RoBERTa's and T5's Unigram.
Result<TokenizerFile> read_unigram(const GgufFile& file, const TokenTable& table, TokenizerConfig* config) {
  SpmModel model;
  model.pieces = table.pieces;
  model.byte_fallback =
      std::any_of(table.pieces.begin(), table.pieces.end(), [](const Piece& p) { return p.kind == kByte; });
  model.add_dummy_prefix = file.boolean("tokenizer.ggml.add_space_prefix").value_or(true);
  model.remove_extra_whitespaces = file.boolean("tokenizer.ggml.remove_extra_whitespaces").value_or(true);
  const auto id = [&](const char* key, int64_t otherwise) { return file.integer(key).value_or(otherwise); };
  model.unk_id = id("tokenizer.ggml.unknown_token_id", 2);
  model.bos_id = id("tokenizer.ggml.bos_token_id", -1);
  model.eos_id = id("tokenizer.ggml.eos_token_id", 1);
  model.pad_id = id("tokenizer.ggml.padding_token_id", -1);
  if (const GgufValue* map = file.find("tokenizer.ggml.precompiled_charsmap"); map != nullptr) {
    if (!map->is_array || (map->type != GgufValueType::kUint8 && map->type != GgufValueType::kInt8))
      return data_loss("\"tokenizer.ggml.precompiled_charsmap\" is no array of bytes");
    model.charsmap = map->bytes;
  }
  if (!config->add_bos_token) config->add_bos_token = false;
  LLMB_ASSIGN_OR_RETURN(TokenizerFile out, build_sentencepiece(model, config));
  if (!*config->add_bos_token || !config->add_eos_token.value_or(true)) return out;
  LLMB_RETURN_IF_ERROR(add_processor(file, table, "RobertaProcessing", &out, config));
  return out;
}

}  // namespace

Result<TokenizerFile> read_gguf_tokenizer(const GgufFile& file, TokenizerConfig* config) {
  const auto model = file.text(kModelKey);
  if (!model || *model == "no_vocab" || *model == "none")
    return not_found("the GGUF file has no tokenizer (tokenizer.ggml.model); --tokenizer takes one from elsewhere");
  LLMB_ASSIGN_OR_RETURN(TokenTable table, read_tokens(file));
  for (const auto& [name, text] : gguf_special_tokens(file))
    config->special_tokens.try_emplace(name, special_token(text));
  if (!config->add_bos_token) config->add_bos_token = file.boolean("tokenizer.ggml.add_bos_token");
  if (!config->add_eos_token)
    config->add_eos_token = file.boolean("tokenizer.ggml.add_eos_token").value_or(*model == "t5");
  if (*model == "gpt2") return read_byte_level_bpe(file, table, config);
  if (*model == "llama") return read_spm(file, table, config);
  if (*model == "gemma4") return read_gemma4(file, table, config);
  if (*model == "bert") return read_word_piece(file, table, config);
  if (*model == "t5") return read_unigram(file, table, config);
  return unsupported("tokenizer.ggml.model \"" + escape_control(model->substr(0, 60)) +
                     "\" is not supported; supported: gpt2, llama, bert, t5, gemma4; --tokenizer takes the tokenizer "
                     "of the original model");
}

}  // namespace llmb
