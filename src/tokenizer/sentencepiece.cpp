// sentencepiece's tokenizer.model: a protocol buffer with the pieces, their scores and kinds, how the text is prepared,
// and which of the two models it is. Field numbers are those of sentencepiece_model.proto.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "text/unicode.h"
#include "base/base64.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/slow_formats.h"

namespace llmb {

namespace {

using nlohmann::json;

constexpr const char* kSpaceMark = "\xE2\x96\x81";  // ▁

// Walks the fields of one message. Wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : bytes_(bytes) {}

  // False at the end or at damage; failed() tells which.
  bool next() {
    if (pos_ >= bytes_.size() || failed_) return false;
    uint64_t tag = 0;
    if (!read_varint(&tag)) return false;
    field_ = tag >> 3;
    type_ = tag & 7;
    switch (type_) {
      case 0:
        return read_varint(&number_);
      case 1:
        return take(8);
      case 2:
        return read_varint(&number_) && take(number_);
      case 5:
        return take(4);
      default:
        failed_ = true;
        return false;
    }
  }
  bool failed() const { return failed_; }
  bool is(uint64_t field, uint64_t type) const { return field_ == field && type_ == type; }
  uint64_t number() const { return number_; }
  std::string_view bytes() const { return value_; }
  float as_float() const {
    float f = 0;
    std::memcpy(&f, value_.data(), 4);
    return f;
  }

 private:
  bool read_varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && pos_ < bytes_.size(); shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes_[pos_++]);
      *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    failed_ = true;
    return false;
  }
  bool take(uint64_t size) {
    if (size > bytes_.size() - pos_) {
      failed_ = true;
      return false;
    }
    value_ = bytes_.substr(pos_, size);
    pos_ += size;
    return true;
  }

  std::string_view bytes_, value_;
  size_t pos_ = 0;
  uint64_t field_ = 0, type_ = 0, number_ = 0;
  bool failed_ = false;
};

bool read_piece(std::string_view bytes, Piece* piece) {
  ProtoReader reader(bytes);
  while (reader.next()) {
    if (reader.is(1, 2)) piece->text = reader.bytes();
    else if (reader.is(2, 5)) piece->score = reader.as_float();
    else if (reader.is(3, 0)) piece->kind = reader.number();
  }
  return !reader.failed();
}

bool read_trainer_spec(std::string_view bytes, SpmModel* model) {
  ProtoReader reader(bytes);
  while (reader.next()) {
    if (reader.is(3, 0)) model->model_type = reader.number();
    else if (reader.is(35, 0)) model->byte_fallback = reader.number() != 0;
    else if (reader.is(40, 0)) model->unk_id = static_cast<int32_t>(reader.number());
    else if (reader.is(41, 0)) model->bos_id = static_cast<int32_t>(reader.number());
    else if (reader.is(42, 0)) model->eos_id = static_cast<int32_t>(reader.number());
    else if (reader.is(43, 0)) model->pad_id = static_cast<int32_t>(reader.number());
  }
  return !reader.failed();
}

bool read_normalizer_spec(std::string_view bytes, SpmModel* model) {
  ProtoReader reader(bytes);
  while (reader.next()) {
    if (reader.is(2, 2)) model->charsmap = reader.bytes();
    else if (reader.is(3, 0)) model->add_dummy_prefix = reader.number() != 0;
    else if (reader.is(4, 0)) model->remove_extra_whitespaces = reader.number() != 0;
  }
  return !reader.failed();
}

Result<SpmModel> read_model(std::string_view bytes) {
  SpmModel model;
  ProtoReader reader(bytes);
  bool ok = true;
  while (ok && reader.next()) {
    if (reader.is(1, 2)) {
      if (model.pieces.size() >= kMaxVocabEntries) return data_loss("too many pieces");
      model.pieces.emplace_back();
      ok = read_piece(reader.bytes(), &model.pieces.back());
    } else if (reader.is(2, 2)) {
      ok = read_trainer_spec(reader.bytes(), &model);
    } else if (reader.is(3, 2)) {
      ok = read_normalizer_spec(reader.bytes(), &model);
    }
  }
  if (!ok || reader.failed() || model.pieces.empty()) return data_loss("not a sentencepiece model, or a damaged one");
  return model;
}

json replace(const char* kind, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

// sentencepiece's own normalizer: its character map, its notion of extra white space, and ▁ for spaces.
void set_normalizer(const SpmModel& model, TokenizerFile* file) {
  json normalizers = json::array();
  if (!model.charsmap.empty()) {
    normalizers.push_back({{"type", kSentencepieceMapType}, {"precompiled_charsmap", encode_base64(model.charsmap)}});
  }
  if (model.remove_extra_whitespaces) normalizers.push_back({{"type", kSentencepieceSpacesType}});
  if (model.add_dummy_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
  normalizers.push_back(replace("String", " ", kSpaceMark));
  file->normalizer = {{"type", "Sequence"}, {"normalizers", normalizers}};
}

// A whole text is one piece: BPE, and unigram models that keep white space.
void set_whole_text_pipeline(const SpmModel& model, TokenizerFile* file) {
  json decoders = json::array({replace("String", kSpaceMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (model.add_dummy_prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  file->decoder = {{"type", "Sequence"}, {"decoders", decoders}};
}

// The pipeline of words that Hugging Face gives other unigram models: each begins with its ▁.
void set_word_pipeline(const SpmModel& model, TokenizerFile* file) {
  const auto metaspace = [](bool prepends) {
    return json{{"type", "Metaspace"},
                {"replacement", kSpaceMark},
                {"prepend_scheme", prepends ? "always" : "never"}};
  };
  file->pre_tokenizer = metaspace(false);  // the normalizer has done it
  file->decoder = metaspace(model.add_dummy_prefix);
}

struct ScoredMerge {
  uint32_t left_chars, right_chars;
  TokenId left, right;
  float score;
};

// Every way to put a piece together from two others is a rule; the higher the piece's score the earlier it applies.
Status add_merges(const SpmModel& model, TokenizerFile* file) {
  std::vector<ScoredMerge> merges;
  size_t work = 0;
  const auto can_merge = [&](TokenId id) {
    return model.pieces[id].kind == kNormal || model.pieces[id].kind == kUserDefined;
  };
  for (TokenId id = 0; id < file->vocab.size(); ++id) {
    if (!can_merge(id)) continue;
    const std::string_view text = file->vocab.text(id);
    work += text.size() * text.size();
    if (work > kMaxMergeWork) return data_loss("the pieces are too long");
    const size_t first = merges.size();
    uint32_t num_chars = 0;
    for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) ++num_chars;
    uint32_t left_chars = 0;
    for (size_t cut = utf8_length(text[0]); cut < text.size(); cut += utf8_length(text[cut])) {
      ++left_chars;
      const auto left = file->vocab.find(text.substr(0, cut)), right = file->vocab.find(text.substr(cut));
      if (left && right && can_merge(*left) && can_merge(*right)) {
        merges.push_back({left_chars, num_chars - left_chars, *left, *right, model.pieces[id].score});
      }
    }
    std::sort(merges.begin() + static_cast<ptrdiff_t>(first), merges.end(),
              [](const ScoredMerge& a, const ScoredMerge& b) {
                return std::pair(a.left, a.right) < std::pair(b.left, b.right);
              });
  }
  std::stable_sort(merges.begin(), merges.end(), [](const ScoredMerge& a, const ScoredMerge& b) {
    return std::tuple(a.score, a.left_chars, a.right_chars) > std::tuple(b.score, b.left_chars, b.right_chars);
  });
  for (const ScoredMerge& m : merges) {
    LLMB_RETURN_IF_ERROR(file->add_merge(file->vocab.text(m.left), file->vocab.text(m.right)));
  }
  file->has_merges = true;
  return {};
}

void set_special_tokens(const SpmModel& model, TokenizerConfig* config) {
  const std::pair<const char*, int64_t> named[] = {{"unk_token", model.unk_id},
                                                   {"bos_token", model.bos_id},
                                                   {"eos_token", model.eos_id},
                                                   {"pad_token", model.pad_id}};
  for (const auto& [name, id] : named) {
    if (id < 0 || id >= static_cast<int64_t>(model.pieces.size()) || config->values.contains(name)) continue;
    AddedToken token;
    token.content = model.pieces[id].text;
    token.special = true;
    token.normalized = false;
    config->special_tokens.try_emplace(name, token);
  }
  const auto name = json_string(config->values, "tokenizer_class", "");
  const bool is_t5 = name.ok() && name->find("T5") != std::string::npos;
  if (!config->add_bos_token) config->add_bos_token = !is_t5;
  if (!config->add_eos_token) config->add_eos_token = is_t5;
}

}  // namespace

Result<TokenizerFile> read_sentencepiece(std::string_view bytes, TokenizerConfig* config) {
  LLMB_ASSIGN_OR_RETURN(const auto model, read_model(bytes));
  return build_sentencepiece(model, config);
}

Result<TokenizerFile> build_sentencepiece(const SpmModel& model, TokenizerConfig* config) {
  if (model.model_type != 1 && model.model_type != 2) {
    return unsupported("sentencepiece model type " + std::to_string(model.model_type) + " is not supported");
  }
  const bool is_bpe = model.model_type == 2;
  TokenizerFile file;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.text.empty()) return data_loss("piece " + std::to_string(id) + " is empty");
    if (!std::isfinite(piece.score))
      return data_loss("piece " + std::to_string(id) + " has a score that is not finite");
    LLMB_RETURN_IF_ERROR(file.vocab.add(piece.text, static_cast<int64_t>(id)));
    if (!is_bpe) file.scores.push_back(piece.score);
    if (piece.kind != kControl && piece.kind != kUserDefined) continue;
    if (piece.text.size() > kMaxAddedTokenBytes) return data_loss("piece " + std::to_string(id) + " is too long");
    AddedToken token;
    token.content = piece.text;
    token.id = static_cast<int64_t>(id);
    token.special = piece.kind == kControl;
    token.normalized = false;
    file.added_tokens.push_back(std::move(token));
  }
  if (model.unk_id < 0 || model.unk_id >= file.vocab.size()) return data_loss("unk_id is not a piece");
  file.model = {{"type", is_bpe ? "BPE" : "Unigram"}, {"byte_fallback", model.byte_fallback}};
  if (is_bpe) {
    file.model["unk_token"] = std::string(model.pieces[model.unk_id].text);
    file.model["fuse_unk"] = true;
    LLMB_RETURN_IF_ERROR(add_merges(model, &file));
  } else {
    file.model["unk_id"] = model.unk_id;
  }
  set_normalizer(model, &file);
  if (is_bpe || !model.remove_extra_whitespaces) set_whole_text_pipeline(model, &file);
  else set_word_pipeline(model, &file);
  set_special_tokens(model, config);
  return file;
}

}  // namespace llmb
