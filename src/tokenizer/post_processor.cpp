#include "tokenizer/post_processor.h"

#include "base/log.h"
#include "tokenizer/tokenizer_file.h"

namespace llmb {

namespace {

using nlohmann::json;

constexpr size_t kMaxAddedIds = 64;

Result<TokenId> read_id(const json& value, TokenId vocab_size) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= vocab_size) {
    return data_loss("an id that is not in the vocabulary");
  }
  return value.get<TokenId>();
}

// {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [1]}}}
Status add_template(const json& spec, TokenId vocab_size, PostProcessor* out) {
  const json single = spec.value("single", json()), tokens = spec.value("special_tokens", json::object());
  if (!single.is_array() || !tokens.is_object()) return data_loss("TemplateProcessing without \"single\"");
  PostProcessor around;
  int num_sequences = 0;
  for (const json& piece : single) {
    if (piece.is_object() && piece.contains("Sequence")) {
      ++num_sequences;
      continue;
    }
    if (!piece.is_object() || !piece.contains("SpecialToken") || !piece["SpecialToken"].is_object()) {
      return data_loss("TemplateProcessing with an unknown piece");
    }
    LLMB_ASSIGN_OR_RETURN(const auto name, json_string(piece["SpecialToken"], "id", ""));
    const json token = tokens.value(name, json());
    if (!token.is_object() || !token.contains("ids") || !token["ids"].is_array()) {
      return data_loss("TemplateProcessing has no ids for \"" + escape_control(name) + "\"");
    }
    for (const json& value : token["ids"]) {
      const auto id = read_id(value, vocab_size);
      if (!id.ok()) return id.status().with_context("TemplateProcessing");
      (num_sequences == 0 ? around.before : around.after).push_back(*id);
    }
  }
  if (num_sequences != 1) return unsupported("TemplateProcessing whose \"single\" does not hold the text exactly once");
  out->before.insert(out->before.begin(), around.before.begin(), around.before.end());
  out->after.insert(out->after.end(), around.after.begin(), around.after.end());
  return {};
}

// {"cls": ["[CLS]", 101], "sep": ["[SEP]", 102]}
Status add_cls_sep(const json& spec, TokenId vocab_size, PostProcessor* out) {
  for (const char* key : {"cls", "sep"}) {
    const json pair = spec.value(key, json());
    if (!pair.is_array() || pair.size() != 2) return data_loss(std::string("post_processor without \"") + key + "\"");
    const auto id = read_id(pair[1], vocab_size);
    if (!id.ok()) return id.status().with_context(std::string("post_processor \"") + key + "\"");
    if (key[0] == 'c') out->before.insert(out->before.begin(), *id);
    else out->after.push_back(*id);
  }
  return {};
}

Status add(const json& spec, TokenId vocab_size, int depth, PostProcessor* out) {
  if (depth > 8) return unsupported("post-processors nest too deeply");
  if (!spec.is_object()) return data_loss("a post_processor is not an object");
  LLMB_ASSIGN_OR_RETURN(const auto type, json_string(spec, "type", ""));
  if (type == "ByteLevel") return {};  // changes offsets only
  if (type == "TemplateProcessing") return add_template(spec, vocab_size, out);
  if (type == "BertProcessing" || type == "RobertaProcessing") return add_cls_sep(spec, vocab_size, out);
  if (type != "Sequence") return unsupported("post_processor \"" + escape_control(type) + "\" is not supported");
  const json members = spec.value("processors", json());
  if (!members.is_array()) return data_loss("post_processor Sequence without an array of processors");
  for (const json& m : members) LLMB_RETURN_IF_ERROR(add(m, vocab_size, depth + 1, out));
  return {};
}

}  // namespace

Result<PostProcessor> PostProcessor::make(const json& spec, TokenId vocab_size) {
  PostProcessor result;
  if (spec.is_null()) return result;
  result.is_present = true;
  LLMB_RETURN_IF_ERROR(add(spec, vocab_size, 0, &result));
  if (result.before.size() + result.after.size() > kMaxAddedIds)
    return unsupported("post_processor that adds over 64 ids");
  return result;
}

}  // namespace llmb
