#include "tokenizer/decoder.h"

#include "base/log.h"
#include "tokenizer/decoder_steps.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/tokenizer_file.h"

namespace llmb {

namespace {

using nlohmann::json;

constexpr size_t kMaxSteps = 32;

using Specs = std::vector<std::unique_ptr<DecoderSpec>>;

Status add_replace(const json& spec, Specs* specs) {
  LLMB_ASSIGN_OR_RETURN(const auto content, json_string(spec, "content", ""));
  const json pattern = spec.value("pattern", json());
  if (pattern.is_object() && pattern.contains("String") && pattern["String"].is_string()) {
    const auto from = pattern["String"].get<std::string>();
    if (from.empty()) return data_loss("decoder Replace with an empty pattern");
    specs->push_back(make_replace_decoder(from, content));
    return {};
  }
  auto regex = make_pattern(pattern);
  if (!regex.ok()) return regex.status().with_context("decoder Replace");
  specs->push_back(make_replace_decoder(std::move(*regex), content));
  return {};
}

Status add_strip(const json& spec, Specs* specs) {
  LLMB_ASSIGN_OR_RETURN(const auto content, json_string(spec, "content", " "));
  LLMB_ASSIGN_OR_RETURN(const auto start, json_int(spec, "start", 0));
  LLMB_ASSIGN_OR_RETURN(const auto stop, json_int(spec, "stop", 0));
  if (content.empty() || start < 0 || stop < 0 || start > 1024 || stop > 1024) {
    return data_loss("decoder Strip with values out of range");
  }
  specs->push_back(make_strip_decoder(content, static_cast<size_t>(start), static_cast<size_t>(stop)));
  return {};
}

Status add_metaspace(const json& spec, Specs* specs) {
  LLMB_ASSIGN_OR_RETURN(const auto replacement, json_string(spec, "replacement", "\xE2\x96\x81"));
  LLMB_ASSIGN_OR_RETURN(const auto scheme, json_string(spec, "prepend_scheme", "always"));
  LLMB_ASSIGN_OR_RETURN(const auto prefix_space, json_bool(spec, "add_prefix_space", true));
  if (replacement.empty()) return data_loss("decoder Metaspace without a replacement");
  specs->push_back(make_metaspace_decoder(replacement, prefix_space && scheme != "never"));
  return {};
}

Status add_word_piece(const json& spec, Specs* specs) {
  LLMB_ASSIGN_OR_RETURN(const auto prefix, json_string(spec, "prefix", "##"));
  LLMB_ASSIGN_OR_RETURN(const auto cleanup, json_bool(spec, "cleanup", true));
  specs->push_back(make_word_piece_decoder(prefix, cleanup));
  return {};
}

Status add(const json& spec, int depth, Specs* specs) {
  if (depth > 8 || specs->size() >= kMaxSteps) return unsupported("too many decoders");
  if (!spec.is_object()) return data_loss("a decoder is not an object");
  LLMB_ASSIGN_OR_RETURN(const auto type, json_string(spec, "type", ""));
  if (type == "Replace") return add_replace(spec, specs);
  if (type == "Strip") return add_strip(spec, specs);
  if (type == "Metaspace") return add_metaspace(spec, specs);
  if (type == "WordPiece") return add_word_piece(spec, specs);
  if (type == "ByteLevel") {
    specs->push_back(make_byte_level_decoder());
  } else if (type == "ByteFallback") {
    specs->push_back(make_byte_fallback_decoder());
  } else if (type == "Fuse") {
    specs->push_back(make_fuse_decoder());
  } else if (type == "BPEDecoder") {
    LLMB_ASSIGN_OR_RETURN(const auto suffix, json_string(spec, "suffix", "</w>"));
    if (suffix.empty()) return data_loss("decoder BPEDecoder without a suffix");
    specs->push_back(make_bpe_decoder(suffix));
  } else if (type == "Sequence") {
    const json members = spec.value("decoders", json());
    if (!members.is_array()) return data_loss("decoder Sequence without an array of decoders");
    for (const json& m : members) LLMB_RETURN_IF_ERROR(add(m, depth + 1, specs));
  } else {
    return unsupported("decoder \"" + escape_control(type) + "\" is not supported");
  }
  return {};
}

}  // namespace

Result<Decoder> Decoder::make(const json& spec) {
  Decoder decoder;
  if (spec.is_null()) {
    decoder.specs_.push_back(make_join_decoder());
    return decoder;
  }
  LLMB_RETURN_IF_ERROR(add(spec, 0, &decoder.specs_));
  return decoder;
}

std::vector<std::unique_ptr<DecoderStep>> Decoder::make_chain(DecoderStep* out) const {
  std::vector<std::unique_ptr<DecoderStep>> steps;
  for (const auto& spec : specs_) {
    steps.push_back(spec->make_step());
    if (steps.size() > 1) steps[steps.size() - 2]->set_next(steps.back().get());
  }
  if (!steps.empty()) steps.back()->set_next(out);
  return steps;
}

std::string Decoder::token_bytes(std::string_view token, bool is_first) const {
  std::string bytes(token);
  for (const auto& spec : specs_) bytes = spec->token_bytes(std::move(bytes), is_first);
  return bytes;
}

}  // namespace llmb
