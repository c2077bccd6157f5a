#include "tokenizer/tokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "text/unicode.h"
#include "tokenizer/tokenizer_state.h"

namespace llmb {

namespace {

// Collects what leaves a decoder chain.
class TextSink final : public DecoderStep {
 public:
  void push(std::string_view fragment, bool) override { text += fragment; }
  std::string text;
};

constexpr size_t kKeepScratchBytes = size_t{1} << 20;

// Gives the scratch back however encoding ends; the large one of a large text is freed.
class BorrowedScratch {
 public:
  BorrowedScratch(ScratchPool& pool, size_t text_bytes)
      : pool_(pool), scratch_(pool.take()), keep_(text_bytes <= kKeepScratchBytes) {}
  ~BorrowedScratch() {
    if (keep_) pool_.give_back(std::move(scratch_));
  }
  BorrowedScratch(const BorrowedScratch&) = delete;
  BorrowedScratch& operator=(const BorrowedScratch&) = delete;
  EncodeScratch& operator*() const { return *scratch_; }

 private:
  ScratchPool& pool_;
  std::unique_ptr<EncodeScratch> scratch_;
  const bool keep_;
};

// Text between added tokens, before normalisation.
void encode_text(const Tokenizer::State& state, std::string_view text, bool at_start, EncodeScratch& scratch,
                 std::vector<TokenId>* out) {
  if (state.normalizer != nullptr) {
    scratch.text = text;
    at_start &= !state.normalizer->apply(&scratch.text, scratch.pre_tokenizer.regex);
    text = scratch.text;
  }
  const auto sink = [&](std::string_view piece) { state.model->tokenize(piece, scratch.model, out); };
  if (!state.added.has_normalized()) {
    state.pre_tokenizer.run(text, at_start, scratch.pre_tokenizer, sink);
    return;
  }
  state.added.split(text, true, &scratch.normalized_segments);
  for (const TextSegment& s : scratch.normalized_segments) {
    if (s.token >= 0) {
      out->push_back(s.token);
    } else {
      const bool starts = at_start && s.begin == 0;
      state.pre_tokenizer.run(text.substr(s.begin, s.end - s.begin), starts, scratch.pre_tokenizer, sink);
    }
  }
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& model_dir) {
  LLMB_ASSIGN_OR_RETURN(auto config, read_tokenizer_config(model_dir));
  LLMB_ASSIGN_OR_RETURN(auto file, read_tokenizer_files(model_dir, &config));
  auto state = std::make_unique<State>();
  const Status built = build_tokenizer(std::move(file), config, state.get());
  if (!built.ok()) return built.with_context(model_dir + ": tokenizer");
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(state)));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  LLMB_CHECK(text.size() < (size_t{1} << 31));
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = to_valid_utf8(text);
    text = repaired;
  }
  const BorrowedScratch borrowed(state_->scratches, text.size());
  EncodeScratch& scratch = *borrowed;
  std::vector<TokenId> out;
  out.reserve(text.size() / 3 + 8);
  const PostProcessor& around = state_->post_processor;
  if (add_special_tokens) out = around.before;
  state_->added.split(text, false, &scratch.segments);
  for (const TextSegment& s : scratch.segments) {
    if (s.token >= 0) out.push_back(s.token);
    else encode_text(*state_, text.substr(s.begin, s.end - s.begin), s.begin == 0, scratch, &out);
  }
  if (add_special_tokens) out.insert(out.end(), around.after.begin(), around.after.end());
  return out;
}

std::optional<TokenPair> Tokenizer::encode_pair(std::string_view first, std::string_view second, int64_t max_tokens,
                                                bool cuts_left) const {
  const PostProcessor& around = state_->post_processor;
  if (!around.joins_pairs) return std::nullopt;
  std::vector<TokenId> texts[2] = {encode(first, false), encode(second, false)};
  const auto num_added = static_cast<int64_t>(around.pair_before.size() + around.pair_between.size() + around.pair_after.size());
  const int64_t room = std::max<int64_t>(max_tokens - num_added, 0);
  int64_t sizes[2] = {static_cast<int64_t>(texts[0].size()), static_cast<int64_t>(texts[1].size())};
  TokenPair pair;
  if (sizes[0] + sizes[1] > room) {  // as tokenizers' "longest_first"
    const int longer = sizes[0] > sizes[1] ? 0 : 1, shorter = 1 - longer;
    const int64_t kept = std::min(sizes[shorter], room / 2);
    const int64_t sizes_kept[2] = {longer == 0 ? room - kept : kept, longer == 0 ? kept : room - kept};
    for (const int i : {0, 1}) {
      const auto cut = static_cast<std::ptrdiff_t>(sizes[i] - sizes_kept[i]);
      pair.num_cut += static_cast<int32_t>(cut);
      if (cuts_left) texts[i].erase(texts[i].begin(), texts[i].begin() + cut);
      else texts[i].resize(static_cast<size_t>(sizes_kept[i]));
    }
  }
  std::vector<TokenId>& out = pair.tokens;
  const auto add = [&](const std::vector<TokenId>& ids) { out.insert(out.end(), ids.begin(), ids.end()); };
  add(around.pair_before), add(texts[0]), add(around.pair_between);
  if (around.has_pair_types)
    pair.second_text = static_cast<int32_t>(out.size() - around.pair_between.size() + around.num_first_between);
  add(texts[1]), add(around.pair_after);
  return pair;
}

size_t Tokenizer::num_tokens_at_least(std::string_view text) const { return state_->bound.at_least(text); }

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  TextSink sink;
  const auto chain = state_->decoder.make_chain(&sink);
  for (const TokenId id : ids) {
    const auto piece = state_->piece(id);
    if (!piece || (skip_special_tokens && state_->is_special(id))) continue;
    chain.front()->push(*piece, true);
  }
  chain.front()->finish();
  return std::move(sink.text);
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  if (const auto id = state_->added.find_id(token)) return id;
  return state_->vocab.find(token);
}

std::string Tokenizer::token_text(TokenId id) const { return to_valid_utf8(token_bytes(id)); }

std::string Tokenizer::token_bytes(TokenId id, bool is_first) const {
  const auto piece = state_->piece(id);
  return piece ? state_->decoder.token_bytes(*piece, is_first) : "";
}

std::string Tokenizer::token_piece(TokenId id) const { return std::string(state_->piece(id).value_or("")); }
bool Tokenizer::is_special(TokenId id) const { return state_->is_special(id); }
std::string Tokenizer::kind() const { return state_->kind; }
int32_t Tokenizer::vocab_size() const { return state_->vocab_size; }
std::optional<TokenId> Tokenizer::bos_token_id() const { return state_->bos_id; }
std::optional<TokenId> Tokenizer::eos_token_id() const { return state_->eos_id; }

std::string Tokenizer::bos_token() const {
  const auto it = special_tokens().find("bos_token");
  return it == special_tokens().end() ? "" : it->second;
}

std::string Tokenizer::eos_token() const {
  const auto it = special_tokens().find("eos_token");
  return it == special_tokens().end() ? "" : it->second;
}

const std::map<std::string, std::string>& Tokenizer::special_tokens() const { return state_->special_tokens; }

}  // namespace llmb
