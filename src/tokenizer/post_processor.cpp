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

// "pair", with the same pieces, of which each has a "type_id". One that does not hold both texts once and in order, or
// whose types fall, joins no pairs.
void add_pair_template(const json& spec, TokenId vocab_size, PostProcessor* out) {
  const json pieces = spec.value("pair", json()), tokens = spec.value("special_tokens", json::object());
  const bool is_second = out->joins_pairs && (!out->pair_before.empty() || !out->pair_after.empty());
  out->joins_pairs = false;
  if (!pieces.is_array() || is_second) return;
  size_t num_texts = 0;
  bool was_second_type = false;
  for (const json& piece : pieces) {
    if (!piece.is_object() || piece.size() != 1 || !piece.begin()->is_object()) return;
    const json &body = *piece.begin(), id = body.value("id", json()), type = body.value("type_id", json(0));
    if (!id.is_string() || (type != 0 && type != 1) || (type == 0 && was_second_type)) return;
    const bool turns = type == 1 && !was_second_type;
    if (turns && num_texts == 0) return;
    was_second_type = type == 1;
    if (piece.contains("Sequence")) {
      if (num_texts == 2 || id != (num_texts == 0 ? "A" : "B")) return;
      if (turns) out->has_pair_types = true, out->num_first_between = out->pair_between.size();
      ++num_texts;
      continue;
    }
    const json token = tokens.value(id.get<std::string>(), json());
    if (!piece.contains("SpecialToken") || !token.is_object() || !token.contains("ids") || !token["ids"].is_array())
      return;
    std::vector<TokenId>& to = num_texts == 0 ? out->pair_before : num_texts == 1 ? out->pair_between : out->pair_after;
    if (turns && num_texts == 2) return;
    if (turns) out->has_pair_types = true, out->num_first_between = to.size();
    for (const json& value : token["ids"]) {
      const auto read = read_id(value, vocab_size);
      if (!read.ok()) return;
      to.push_back(*read);
    }
  }
  out->joins_pairs = num_texts == 2;
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
    if (key[0] == 'c') out->pair_before.push_back(*id);
    else out->pair_between.push_back(*id), out->pair_after.push_back(*id);
  }
  // RoBERTa's texts have one type, and two separators between them.
  const bool is_bert = spec.value("type", json()) == "BertProcessing";
  out->has_pair_types = is_bert;
  out->num_first_between = 1;
  if (!is_bert) out->pair_between.push_back(out->pair_between.back());
  return {};
}

Status add(const json& spec, TokenId vocab_size, int depth, PostProcessor* out) {
  if (depth > 8) return unsupported("post-processors nest too deeply");
  if (!spec.is_object()) return data_loss("a post_processor is not an object");
  LLMB_ASSIGN_OR_RETURN(const auto type, json_string(spec, "type", ""));
  if (type == "ByteLevel") return {};  // changes offsets only
  if (type == "TemplateProcessing") {
    add_pair_template(spec, vocab_size, out);
    return add_template(spec, vocab_size, out);
  }
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
