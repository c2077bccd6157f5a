// A model directory to a tokenizer: which files there are, what tokenizer_config.json adds, and putting the parts
// together.
#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "base/utf8.h"
#include "base/whole_file.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/slow_formats.h"
#include "tokenizer/tokenizer_state.h"

namespace llmb {

namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{64} << 20;
constexpr const char* kSpecialTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                              "pad_token", "cls_token", "mask_token"};

Result<json> read_small_json(const std::string& path) {
  LLMB_ASSIGN_OR_RETURN(const auto text, read_whole_file(path, kMaxConfigBytes));
  auto value = parse_small_json(text);
  if (!value.ok()) return value.status().with_context(path);
  if (!value->is_object()) return data_loss(path + ": expected a JSON object");
  return value;
}

// A special token is a string or an object like those of added_tokens_decoder; null and other types mean none.
Status read_special_tokens(const json& values, std::map<std::string, AddedToken>* tokens) {
  for (const char* name : kSpecialTokenNames) {
    const auto it = values.find(name);
    if (it == values.end() || tokens->contains(name)) continue;
    AddedToken token;
    if (it->is_string()) {
      token.content = it->get<std::string>();
      token.normalized = false;
    } else if (it->is_object()) {
      auto read = read_added_token(*it);
      if (!read.ok()) return read.status().with_context(name);
      token = std::move(*read);
    } else {
      continue;
    }
    token.special = true;
    if (!token.content.empty()) (*tokens)[name] = std::move(token);
  }
  return {};
}

Status read_added_tokens_decoder(const json& values, std::vector<AddedToken>* tokens) {
  const auto it = values.find("added_tokens_decoder");
  if (it == values.end() || !it->is_object()) return {};
  for (const auto& [key, value] : it->items()) {
    if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos) {
      return data_loss("added_tokens_decoder: \"" + escape_control(key) + "\" is not a token id");
    }
    auto token = read_added_token(value);
    if (!token.ok()) return token.status().with_context("added_tokens_decoder");
    token->id = std::stol(key);
    tokens->push_back(std::move(*token));
  }
  std::sort(tokens->begin(), tokens->end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return {};
}

std::optional<bool> flag(const json& values, const char* key) {
  const auto it = values.find(key);
  return it == values.end() || !it->is_boolean() ? std::nullopt : std::optional(it->get<bool>());
}

// Tokens of tokenizer_config.json: those the tokenizer has take the flags given here; a new one needs the next free id.
void add_config_tokens(const TokenizerConfig& config, const Vocab& vocab, AddedVocabulary* added) {
  for (const AddedToken& token : config.added_tokens) {
    const Status status = added->add(token, vocab);
    if (!status.ok()) log_warning("tokenizer_config.json: ignored: " + status.message());
  }
  for (const auto& [name, token] : config.special_tokens) {
    if (added->find_id(token.content) || !vocab.find(token.content)) continue;
    const Status status = added->add(token, vocab);
    if (!status.ok()) log_warning("tokenizer_config.json: ignored: " + status.message());
  }
}

// add_bos_token and add_eos_token, where given, decide over the post-processor.
void apply_bos_eos_flags(const TokenizerConfig& config, const Tokenizer::State& state, PostProcessor* around) {
  const auto apply = [](std::optional<bool> wanted, std::optional<TokenId> id, std::vector<TokenId>* ids) {
    if (!wanted) return;
    ids->clear();
    if (*wanted && id) ids->push_back(*id);
  };
  apply(config.add_bos_token, state.bos_id, &around->before);
  apply(config.add_eos_token, state.eos_id, &around->after);
}

// Every id below vocab_size has a token.
Status check_no_gap(const Tokenizer::State& state) {
  for (TokenId id = 0; id < state.vocab_size; ++id) {
    if (!state.piece(id)) {
      return data_loss("no token has id " + std::to_string(id) + ", though ids go up to " +
                       std::to_string(state.vocab_size - 1));
    }
  }
  return {};
}

}  // namespace

Result<TokenizerConfig> read_tokenizer_config(const std::string& model_dir) {
  TokenizerConfig config;
  const std::string path = model_dir + "/tokenizer_config.json", map_path = model_dir + "/special_tokens_map.json";
  if (file_exists(path)) {
    LLMB_ASSIGN_OR_RETURN(config.values, read_small_json(path));
    Status status = read_special_tokens(config.values, &config.special_tokens);
    if (status.ok()) status = read_added_tokens_decoder(config.values, &config.added_tokens);
    if (!status.ok()) return status.with_context(path);
    config.add_bos_token = flag(config.values, "add_bos_token");
    config.add_eos_token = flag(config.values, "add_eos_token");
  }
  if (file_exists(map_path)) {
    LLMB_ASSIGN_OR_RETURN(const auto values, read_small_json(map_path));
    const Status status = read_special_tokens(values, &config.special_tokens);
    if (!status.ok()) return status.with_context(map_path);
  }
  return config;
}

Result<TokenizerFile> read_tokenizer_files(const std::string& model_dir, TokenizerConfig* config) {
  std::error_code error;
  if (std::filesystem::is_regular_file(model_dir, error)) {
    LLMB_ASSIGN_OR_RETURN(const auto gguf, GgufFile::open(model_dir));
    auto read = read_gguf_tokenizer(gguf, config);
    LLMB_RETURN_IF_ERROR(gguf.still_readable());
    if (!read.ok()) return read.status().with_context(model_dir);
    return read;
  }
  const std::string path = model_dir + "/tokenizer.json";
  if (!file_exists(path)) return read_slow_format(model_dir, config);
  LLMB_ASSIGN_OR_RETURN(const auto text, read_whole_file(path, kMaxTextFileBytes));
  auto parsed = parse_tokenizer_json(text);
  if (!parsed.ok()) return parsed.status().with_context(path);
  return parsed;
}

Status build_tokenizer(TokenizerFile file, const TokenizerConfig& config, Tokenizer::State* state) {
  const auto kind = json_string(file.model, "type", "BPE");  // the oldest files do not say
  if (kind.ok()) state->kind = *kind;
  state->vocab = std::move(file.vocab);
  LLMB_ASSIGN_OR_RETURN(state->model, make_model(&file, state->vocab));
  LLMB_ASSIGN_OR_RETURN(state->normalizer, make_normalizer(file.normalizer));
  LLMB_ASSIGN_OR_RETURN(state->pre_tokenizer, PreTokenizer::make(file.pre_tokenizer));
  if (state->pre_tokenizer.ends_in_byte_mapping()) state->kind += " (byte-level)";
  if (state->pre_tokenizer.ends_in_byte_mapping() && state->model->can_take_bytes()) {
    state->pre_tokenizer.drop_byte_mapping();
    state->model->take_bytes();
  }
  LLMB_ASSIGN_OR_RETURN(state->decoder, Decoder::make(file.decoder));

  for (const AddedToken& token : file.added_tokens) LLMB_RETURN_IF_ERROR(state->added.add(token, state->vocab));
  add_config_tokens(config, state->vocab, &state->added);
  state->added.finish(state->normalizer.get());
  state->bound = TokenBound::make(file, state->vocab, state->added);
  state->vocab_size = std::max(state->vocab.size(), state->added.end_id());
  LLMB_RETURN_IF_ERROR(check_no_gap(*state));

  for (const auto& [name, token] : config.special_tokens) state->special_tokens[name] = token.content;
  const auto id_of = [&](const char* name) -> std::optional<TokenId> {
    const auto it = state->special_tokens.find(name);
    if (it == state->special_tokens.end()) return std::nullopt;
    const auto added = state->added.find_id(it->second);
    return added ? added : state->vocab.find(it->second);
  };
  state->bos_id = id_of("bos_token");
  state->eos_id = id_of("eos_token");
  LLMB_ASSIGN_OR_RETURN(state->post_processor, PostProcessor::make(file.post_processor, state->vocab_size));
  apply_bos_eos_flags(config, *state, &state->post_processor);
  return {};
}

}  // namespace llmb
