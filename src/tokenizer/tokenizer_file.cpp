#include "tokenizer/tokenizer_file.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "text/unicode.h"

namespace llmb {

namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 40;
constexpr size_t kMaxValues = 300'000;  // outside vocab, merges and added_tokens
constexpr size_t kMaxStringBytes = size_t{8} << 20;
constexpr size_t kMaxAddedTokens = 131'072;
constexpr size_t kMaxMerges = size_t{1} << 21;

// A score as Hugging Face's JSON reader has it: the digits as one integer, rounded to double, divided by a power of ten
// and rounded again. Correct rounding differs in the last bit now and then, and then decides ties between segmentations
// otherwise. `exact` is taken for numbers that are not plain decimals of at most 19 digits.
double score_of(std::string_view text, double exact) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  uint64_t digits = 0;
  int num_digits = 0, after_point = 0;
  bool seen_point = false;
  for (const char c : text) {
    if (c == '.' && !seen_point) {
      seen_point = true;
      continue;
    }
    if (c < '0' || c > '9' || ++num_digits > 19) return exact;
    digits = digits * 10 + static_cast<uint64_t>(c - '0');
    after_point += seen_point;
  }
  double power = 1;  // exact up to 10^22
  for (int i = 0; i < after_point; ++i) power *= 10;
  const double value = static_cast<double>(digits) / power;
  return negative ? -value : value;
}

// Receives JSON events and builds a document; where `file` is given, model.vocab and model.merges go straight into it.
class JsonBuilder : public nlohmann::json_sax<json> {
 public:
  JsonBuilder(json* root, TokenizerFile* file) : root_(root), file_(file) {}

  Status status() const { return status_; }

  bool null() override { return value(json(nullptr)); }
  bool boolean(bool v) override { return value(json(v)); }
  bool number_integer(number_integer_t v) override { return number(json(v), static_cast<double>(v), v); }
  bool number_unsigned(number_unsigned_t v) override {
    return number(json(v), static_cast<double>(v), v > INT64_MAX ? INT64_MAX : static_cast<int64_t>(v));
  }
  bool number_float(number_float_t v, const string_t& text) override {
    return number(json(v), file_ == nullptr ? v : score_of(text, v), std::nullopt);
  }
  bool binary(binary_t&) override { return fail("binary value"); }

  bool string(string_t& v) override {
    if (section_ == kVocab && path_.size() == 4 && !has_token_ && pair_size_ == 0) {  // ["token", score]
      token_ = v;
      has_token_ = true;
      return true;
    }
    if (section_ == kMerges && path_.size() == 3) return keep(file_->add_merge_line(v));
    if (section_ == kMerges && path_.size() == 4 && pair_size_ < 2) {
      (pair_size_++ == 0 ? token_ : pair_right_) = v;
      return true;
    }
    return value(json(std::move(v)));
  }

  bool key(string_t& v) override {
    if (section_ == kVocab && path_.size() == 3) {
      token_ = v;
      has_token_ = true;
      return true;
    }
    if (path_.back()->contains(v)) return fail("key \"" + escape_control(v) + "\" is given twice");
    key_ = v;
    return true;
  }

  bool start_object(size_t) override { return open(json::object(), false); }
  bool start_array(size_t) override { return open(json::array(), true); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    if (!status_.ok()) return false;
    const std::string what = e.what();
    const size_t detail = what.find("] ");
    return fail("not valid JSON at byte " + std::to_string(position) + ": " +
                escape_control(to_valid_utf8(detail == std::string::npos ? what : what.substr(detail + 2))));
  }

 private:
  enum Section { kDocument, kVocab, kMerges };

  bool fail(const std::string& message) {
    status_ = data_loss(message);
    return false;
  }

  bool keep(Status status) {
    status_ = std::move(status);
    return status_.ok();
  }

  bool number(json v, double as_double, std::optional<int64_t> as_int) {
    if (section_ == kVocab && path_.size() == 3 && has_token_) {  // "token": id
      has_token_ = false;
      if (!as_int) return fail("the vocabulary id of \"" + escape_control(token_) + "\" is not an integer");
      return keep(file_->vocab.add(token_, *as_int));
    }
    if (section_ == kVocab && path_.size() == 4 && has_token_) {
      has_token_ = false;
      if (!std::isfinite(as_double)) return fail("the score of \"" + escape_control(token_) + "\" is not finite");
      file_->scores.push_back(as_double);
      pair_size_ = 2;
      return keep(file_->vocab.add(token_, static_cast<int64_t>(file_->scores.size()) - 1));
    }
    return value(std::move(v));
  }

  // Stores a value in the innermost open container.
  bool value(json v) {
    if (section_ != kDocument)
      return fail(section_ == kVocab ? "model.vocab has an unexpected value" : "model.merges has an unexpected value");
    if (++num_values_ > kMaxValues) return fail("too many values");
    if (path_.empty()) {
      *root_ = std::move(v);
    } else if (path_.back()->is_array()) {
      path_.back()->push_back(std::move(v));
    } else {
      (*path_.back())[key_] = std::move(v);
    }
    return true;
  }

  bool open(json container, bool is_array) {
    if (path_.size() >= kMaxDepth) return fail("nested too deeply");
    if (section_ != kDocument) {  // the pairs of an array
      if (path_.size() != 3 || !is_array) return fail("model.vocab or model.merges has an unexpected value");
      pair_size_ = 0;
      has_token_ = false;
      path_.push_back(&ignored_);
      return true;
    }
    const bool in_model = file_ != nullptr && path_.size() == 2 && path_.back() == model_;
    if (in_model && (key_ == "vocab" || (key_ == "merges" && is_array))) {
      section_ = key_ == "vocab" ? kVocab : kMerges;
      if (section_ == kMerges) file_->has_merges = true;
      path_.push_back(&ignored_);
      return true;
    }
    const bool is_model = file_ != nullptr && path_.size() == 1 && key_ == "model";
    if (!value(std::move(container))) return false;
    json* opened = path_.empty() ? root_ : path_.back()->is_array() ? &path_.back()->back() : &(*path_.back())[key_];
    path_.push_back(opened);
    if (is_model) model_ = opened;
    if (file_ != nullptr && path_.size() == 2 && key_ == "added_tokens" && is_array) added_tokens_ = opened;
    return true;
  }

  bool close() {
    path_.pop_back();
    if (section_ == kDocument) return path_.empty() || path_.back() != added_tokens_ || take_added_token();
    if (path_.size() == 2) {
      section_ = kDocument;
    } else if (pair_size_ != 2) {
      return fail("model.vocab or model.merges has a pair that is not two values");
    } else if (section_ == kMerges) {
      return keep(file_->add_merge(token_, pair_right_));
    }
    return true;
  }

  // Moves the object that was read from the document's array to the file's list.
  bool take_added_token() {
    if (file_->added_tokens.size() >= kMaxAddedTokens) return fail("too many added tokens");
    auto token = read_added_token(added_tokens_->back());
    if (!token.ok()) return keep(token.status().with_context("added_tokens"));
    num_values_ -= std::min(num_values_, added_tokens_->back().size() + 1);
    file_->added_tokens.push_back(std::move(*token));
    added_tokens_->clear();
    return true;
  }

  json* root_;
  TokenizerFile* file_;
  json ignored_;
  std::vector<json*> path_;  // open containers; inside vocab and merges only their number counts
  json* model_ = nullptr;
  json* added_tokens_ = nullptr;
  std::string key_;
  Section section_ = kDocument;
  std::string token_, pair_right_;
  bool has_token_ = false;
  int pair_size_ = 0;
  size_t num_values_ = 0;
  Status status_;
};

// The parser holds each string in memory before anyone can look at its size: this looks first.
bool has_huge_string(std::string_view text) {
  for (size_t begin = text.find('"'); begin != std::string_view::npos; begin = text.find('"', begin)) {
    size_t end = begin + 1;
    while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
    if (end - begin > kMaxStringBytes) return true;
    begin = end + 1;
  }
  return false;
}

Status parse_json(std::string_view text, json* root, TokenizerFile* file) {
  if (has_huge_string(text)) return data_loss("a string is longer than 8 MiB");
  JsonBuilder builder(root, file);
  if (json::sax_parse(text.begin(), text.end(), &builder)) return {};
  return builder.status().ok() ? data_loss("not valid JSON") : builder.status();
}

json take(json& root, const char* key) {
  const auto it = root.find(key);
  return it == root.end() ? json() : std::move(*it);
}

}  // namespace

Status TokenizerFile::add_merge(std::string_view left, std::string_view right) {
  if (merges.size() >= kMaxMerges) return data_loss("more than " + std::to_string(kMaxMerges) + " merges");
  if (left.empty() || right.empty()) return data_loss("merge " + std::to_string(merges.size()) + " has an empty part");
  if (merge_bytes.size() + left.size() + right.size() > UINT32_MAX) return resource_exhausted("merges exceed 4 GiB");
  merges.push_back({static_cast<uint32_t>(merge_bytes.size()), static_cast<uint32_t>(left.size() + right.size()),
                    static_cast<uint32_t>(left.size())});
  merge_bytes += left;
  merge_bytes += right;
  return {};
}

Status TokenizerFile::add_merge_line(std::string_view line) {
  if (line.starts_with("#version")) return {};
  if (!is_valid_utf8(line)) return data_loss("merge " + std::to_string(merges.size()) + " is not UTF-8");
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return data_loss("merge " + std::to_string(merges.size()) + " has no space");
  if (line.find(' ', space + 1) == std::string_view::npos)
    return add_merge(line.substr(0, space), line.substr(space + 1));
  if (merges.size() >= kMaxMerges) return data_loss("more than " + std::to_string(kMaxMerges) + " merges");
  merges.push_back({static_cast<uint32_t>(merge_bytes.size()), static_cast<uint32_t>(line.size()), 0});
  merge_bytes += line;
  return {};
}

Result<TokenizerFile> parse_tokenizer_json(std::string_view text) {
  TokenizerFile file;
  json root;
  LLMB_RETURN_IF_ERROR(parse_json(text, &root, &file));
  if (!root.is_object()) return data_loss("expected a JSON object");
  file.normalizer = take(root, "normalizer");
  file.pre_tokenizer = take(root, "pre_tokenizer");
  file.post_processor = take(root, "post_processor");
  file.decoder = take(root, "decoder");
  file.model = take(root, "model");
  if (!file.model.is_object()) return data_loss("expected an object under \"model\"");
  const json added = take(root, "added_tokens");
  if (!added.is_null() && !added.is_array()) return data_loss("expected an array under \"added_tokens\"");
  if (!added.empty()) return data_loss("expected objects under \"added_tokens\"");
  return file;
}

Result<json> parse_small_json(std::string_view text) {
  json root;
  LLMB_RETURN_IF_ERROR(parse_json(text, &root, nullptr));
  return root;
}

Result<AddedToken> read_added_token(const json& value) {
  if (!value.is_object()) return data_loss("expected an object");
  AddedToken token;
  LLMB_ASSIGN_OR_RETURN(const auto content, json_string(value, "content", ""));
  LLMB_ASSIGN_OR_RETURN(const auto id, json_int(value, "id", -1));
  token.content = content;
  token.id = id;
  const std::pair<const char*, bool*> flags[] = {{"special", &token.special},
                                                 {"normalized", &token.normalized},
                                                 {"single_word", &token.single_word},
                                                 {"lstrip", &token.lstrip},
                                                 {"rstrip", &token.rstrip}};
  for (const auto& [key, flag] : flags) {
    LLMB_ASSIGN_OR_RETURN(const auto read, json_bool(value, key, *flag));
    *flag = read;
  }
  if (token.content.size() > kMaxAddedTokenBytes) return data_loss("an added token is longer than 1024 bytes");
  return token;
}

Result<bool> json_bool(const json& object, const char* key, bool default_value) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return default_value;
  if (!it->is_boolean()) return invalid_argument(std::string("\"") + key + "\" is not true or false");
  return it->get<bool>();
}

Result<std::string> json_string(const json& object, const char* key, const std::string& default_value) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return default_value;
  if (!it->is_string()) return invalid_argument(std::string("\"") + key + "\" is not a string");
  return it->get<std::string>();
}

Result<int64_t> json_int(const json& object, const char* key, int64_t default_value) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return default_value;
  if (!it->is_number_integer()) return invalid_argument(std::string("\"") + key + "\" is not an integer");
  if (it->is_number_unsigned() && it->get<uint64_t>() > INT64_MAX)
    return invalid_argument(std::string("\"") + key + "\" is out of range");
  return it->get<int64_t>();
}

}  // namespace llmb
