// Byte-pair encoding: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", ACL 2016.
// A piece starts as one symbol per character (or byte); the adjacent pair with the lowest rank is merged, the leftmost
// of equals first, until no pair has a rank. Short runs scan for the minimum; long ones keep a queue: O(n log n) at
// worst.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/check.h"
#include "base/log.h"
#include "text/unicode.h"
#include "tokenizer/bpe_tables.h"
#include "tokenizer/model.h"

namespace llmb {

namespace {

constexpr uint32_t kEnd = UINT32_MAX;
constexpr size_t kScanLimit = 40;  // symbols; above it the queue is faster

struct BpeSettings {
  std::string prefix, suffix;  // continuing_subword_prefix, end_of_word_suffix
  TokenId unk = -1;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

class Bpe final : public Model {
 public:
  Bpe(const Vocab& vocab, BpeSettings settings, MergeTable merges, CharPairSet joints, bool can_cut)
      : vocab_(vocab), settings_(std::move(settings)), merges_(std::move(merges)), joints_(std::move(joints)) {
    byte_tokens_ = byte_token_ids(vocab);
    const bool all_byte_tokens = std::count(byte_tokens_.begin(), byte_tokens_.end(), -1) == 0;
    can_cut_ = can_cut && settings_.byte_fallback && all_byte_tokens;
    can_take_bytes_ = settings_.prefix.empty() && settings_.suffix.empty();
    for (int b = 0; b < 256; ++b) {
      std::string name;
      append_utf8(&name, byte_level_char(static_cast<uint8_t>(b)));
      byte_symbols_[b] = vocab.find(name).value_or(-1);
      can_take_bytes_ &= byte_symbols_[b] >= 0;
      if (b < 128) ascii_symbols_[b] = vocab.find(std::string(1, static_cast<char>(b))).value_or(-1);
    }
  }

  bool can_take_bytes() const override { return can_take_bytes_; }

  void take_bytes() override {
    takes_bytes_ = true;
    if (!settings_.ignore_merges) return;
    for (TokenId id = 0; id < vocab_.size(); ++id) {
      if (!vocab_.contains(id)) continue;
      std::string bytes;
      const std::string_view text = vocab_.text(id);
      size_t pos = 0;
      while (pos < text.size()) {
        const int byte = byte_level_byte(next_char(text, &pos));
        if (byte < 0) break;
        bytes += static_cast<char>(byte);
        if (pos == text.size()) whole_pieces_.emplace(std::move(bytes), id);
      }
    }
  }

  void tokenize(std::string_view piece, ModelScratch& scratch, std::vector<TokenId>* out) const override {
    if (!can_cut_ || settings_.ignore_merges) {
      tokenize_run(piece, scratch, out);
      return;
    }
    size_t begin = 0;
    char32_t previous = 0;
    for (size_t pos = 0; pos < piece.size();) {
      const size_t start = pos;
      const char32_t c = next_char(piece, &pos);
      if (start > begin && !joints_.contains(previous, c)) {
        tokenize_run(piece.substr(begin, start - begin), scratch, out);
        begin = start;
      }
      previous = c;
    }
    if (begin < piece.size()) tokenize_run(piece.substr(begin), scratch, out);
  }

 private:
  void tokenize_run(std::string_view run, ModelScratch& scratch, std::vector<TokenId>* out) const {
    const bool cacheable = run.size() <= PieceCache::kMaxKeyBytes;
    const uint64_t hash = cacheable ? hash_bytes(run) : 0;
    if (cacheable && scratch.cache.find(run, hash, out)) return;
    const size_t before = out->size();
    if (settings_.ignore_merges) {
      const TokenId id = find_whole(run);
      if (id >= 0) out->push_back(id);
    }
    if (out->size() == before) merge(run, scratch, out);
    if (cacheable) scratch.cache.insert(run, hash, out->data() + before, out->size() - before);
  }

  TokenId find_whole(std::string_view piece) const {
    if (!takes_bytes_) return vocab_.find(piece).value_or(-1);
    const auto it = whole_pieces_.find(std::string(piece));
    return it == whole_pieces_.end() ? -1 : it->second;
  }

  void merge(std::string_view run, ModelScratch& scratch, std::vector<TokenId>* out) const {
    std::vector<TokenId>& symbols = scratch.symbols;
    symbols.clear();
    if (takes_bytes_) {
      for (const char c : run) symbols.push_back(byte_symbols_[static_cast<uint8_t>(c)]);
    } else {
      read_symbols(run, &symbols);
    }
    if (symbols.size() <= kScanLimit) merge_by_scan(scratch);
    else merge_by_rank(scratch);
    out->insert(out->end(), symbols.begin(), symbols.end());
  }

  // One symbol per character, or byte tokens, or the unknown token, or nothing.
  void read_symbols(std::string_view run, std::vector<TokenId>* symbols) const {
    TokenId pending_unk = -1;
    for (size_t pos = 0; pos < run.size();) {
      const size_t start = pos;
      pos += utf8_length(run[pos]);
      const std::string_view c = run.substr(start, pos - start);
      std::string decorated;
      const TokenId id = find_symbol(c, start == 0, pos == run.size(), &decorated);
      if (id >= 0) {
        if (pending_unk >= 0) symbols->push_back(pending_unk);
        pending_unk = -1;
        symbols->push_back(id);
        continue;
      }
      if (settings_.byte_fallback && push_byte_tokens(decorated.empty() ? c : decorated, symbols)) continue;
      if (settings_.unk < 0) continue;
      if (pending_unk >= 0 && !settings_.fuse_unk) symbols->push_back(pending_unk);
      pending_unk = settings_.unk;
    }
    if (pending_unk >= 0) symbols->push_back(pending_unk);
  }

  TokenId find_symbol(std::string_view c, bool is_first, bool is_last, std::string* decorated) const {
    const bool has_prefix = !is_first && !settings_.prefix.empty();
    const bool has_suffix = is_last && !settings_.suffix.empty();
    if (!has_prefix && !has_suffix) {
      return c.size() == 1 ? ascii_symbols_[static_cast<uint8_t>(c[0])] : vocab_.find(c).value_or(-1);
    }
    if (has_prefix) *decorated += settings_.prefix;
    *decorated += c;
    if (has_suffix) *decorated += settings_.suffix;
    return vocab_.find(*decorated).value_or(-1);
  }

  bool push_byte_tokens(std::string_view bytes, std::vector<TokenId>* symbols) const {
    for (const char b : bytes) {
      if (byte_tokens_[static_cast<uint8_t>(b)] < 0) return false;
    }
    for (const char b : bytes) symbols->push_back(byte_tokens_[static_cast<uint8_t>(b)]);
    return true;
  }

  void merge_by_scan(ModelScratch& scratch) const {
    std::vector<TokenId>& s = scratch.symbols;
    std::vector<uint32_t>& ranks = scratch.ranks;
    size_t n = s.size();
    if (n < 2) return;
    ranks.resize(n);
    for (size_t i = 0; i + 1 < n; ++i) ranks[i] = merges_.find(s[i], s[i + 1]).rank;
    while (n > 1) {
      const size_t at = std::min_element(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(n - 1)) - ranks.begin();
      if (ranks[at] == kNoRank) break;
      s[at] = merges_.find(s[at], s[at + 1]).result;
      std::copy(s.begin() + at + 2, s.begin() + n, s.begin() + at + 1);
      std::copy(ranks.begin() + at + 1, ranks.begin() + n - 1, ranks.begin() + at);
      --n;
      if (at + 1 < n) ranks[at] = merges_.find(s[at], s[at + 1]).rank;
      if (at > 0) ranks[at - 1] = merges_.find(s[at - 1], s[at]).rank;
    }
    s.resize(n);
  }

  // As merge_by_scan, for long runs: the positions of each rank wait in a list of their own, and a heap holds the
  // ranks. Lists fill from left to right nearly always, so that a run of one character takes linear time.
  void merge_by_rank(ModelScratch& scratch) const {
    std::vector<TokenId>& s = scratch.symbols;
    std::vector<uint32_t>&ranks = scratch.ranks, &previous = scratch.previous, &next = scratch.next;
    LLMB_CHECK(s.size() < kEnd);
    const auto n = static_cast<uint32_t>(s.size());
    ranks.resize(n);
    previous.resize(n);
    next.resize(n);
    for (uint32_t i = 0; i < n; ++i) {
      previous[i] = i == 0 ? kEnd : i - 1;
      next[i] = i + 1 == n ? kEnd : i + 1;
    }
    RankQueue& queue = scratch.queue;
    const auto update = [&](uint32_t at) {  // an entry of the queue counts while its position still has that rank
      ranks[at] = next[at] == kEnd ? kNoRank : merges_.find(s[at], s[next[at]]).rank;
      if (ranks[at] != kNoRank) queue.push(ranks[at], at);
    };
    for (uint32_t i = 0; i < n; ++i) update(i);
    uint32_t rank = 0, at = 0;
    while (queue.pop(&rank, &at)) {
      if (ranks[at] != rank) continue;
      const uint32_t right = next[at];
      s[at] = merges_.find(s[at], s[right]).result;
      ranks[right] = kNoRank;
      s[right] = -1;
      next[at] = next[right];
      if (next[at] != kEnd) previous[next[at]] = at;
      if (previous[at] != kEnd) update(previous[at]);
      update(at);
    }
    s.erase(std::remove(s.begin(), s.end(), -1), s.end());
  }

  const Vocab& vocab_;
  BpeSettings settings_;
  MergeTable merges_;
  CharPairSet joints_;
  std::vector<TokenId> byte_tokens_;
  TokenId byte_symbols_[256];
  TokenId ascii_symbols_[128];
  bool can_cut_ = false;
  bool can_take_bytes_ = false;
  bool takes_bytes_ = false;
  std::unordered_map<std::string, TokenId> whole_pieces_;  // by bytes, where takes_bytes_ and ignore_merges
};

Result<BpeSettings> read_settings(const nlohmann::json& model, const Vocab& vocab) {
  BpeSettings settings;
  LLMB_ASSIGN_OR_RETURN(const auto unk, json_string(model, "unk_token", ""));
  LLMB_ASSIGN_OR_RETURN(const auto prefix, json_string(model, "continuing_subword_prefix", ""));
  LLMB_ASSIGN_OR_RETURN(const auto suffix, json_string(model, "end_of_word_suffix", ""));
  if (prefix.size() > 64 || suffix.size() > 64) return unsupported("a subword prefix or suffix longer than 64 bytes");
  settings.unk = unk.empty() ? -1 : vocab.find(unk).value_or(-1);
  settings.prefix = prefix;
  settings.suffix = suffix;
  const std::pair<const char*, bool*> flags[] = {{"fuse_unk", &settings.fuse_unk},
                                                 {"byte_fallback", &settings.byte_fallback},
                                                 {"ignore_merges", &settings.ignore_merges}};
  for (const auto& [key, flag] : flags) {
    LLMB_ASSIGN_OR_RETURN(const auto value, json_bool(model, key, false));
    *flag = value;
  }
  return settings;
}

// Where "left right" with several spaces is split: at the one place that gives two entries and a third for their join.
bool split_merge(std::string_view line, size_t prefix_size, const Vocab& vocab, std::string_view* left,
                 std::string_view* right) {
  int found = 0;
  for (size_t space = line.find(' ', 1); space != std::string_view::npos && space + 1 < line.size();
       space = line.find(' ', space + 1)) {
    const std::string_view l = line.substr(0, space), r = line.substr(space + 1);
    if (r.size() < prefix_size || !vocab.find(l) || !vocab.find(r)) continue;
    if (!vocab.find(std::string(l) + std::string(r.substr(prefix_size)))) continue;
    *left = l;
    *right = r;
    ++found;
  }
  return found == 1;
}

}  // namespace

Result<std::unique_ptr<Model>> make_bpe(TokenizerFile* file, const Vocab& vocab) {
  auto settings = read_settings(file->model, vocab);
  if (!settings.ok()) return settings.status().with_context("model BPE");
  std::vector<bool> stands_alone(static_cast<size_t>(vocab.size()));  // symbols that are not the text's own characters
  for (const TokenId id : byte_token_ids(vocab)) {
    if (id >= 0) stands_alone[id] = true;
  }
  if (settings->unk >= 0) stands_alone[settings->unk] = true;
  MergeTable merges(file->merges.size());
  CharPairSet joints;
  bool can_cut = settings->prefix.empty() && settings->suffix.empty();
  for (size_t rank = 0; rank < file->merges.size(); ++rank) {
    const MergeRule& rule = file->merges[rank];
    const std::string_view text = std::string_view(file->merge_bytes).substr(rule.offset, rule.length);
    std::string_view left = text.substr(0, rule.left_length), right = text.substr(rule.left_length);
    const auto where = [&] {
      return "merge " + std::to_string(rank) + " \"" + escape_control(text.substr(0, 80)) + "\"";
    };
    if (rule.left_length == 0 && !split_merge(text, settings->prefix.size(), vocab, &left, &right)) {
      return data_loss("model BPE: " + where() + " is not two entries of the vocabulary");
    }
    const auto left_id = vocab.find(left), right_id = vocab.find(right);
    if (!left_id || !right_id) return data_loss("model BPE: a part of " + where() + " is not in the vocabulary");
    if (right.size() < settings->prefix.size()) return data_loss("model BPE: " + where() + " lacks the subword prefix");
    const auto result = vocab.find(std::string(left) + std::string(right.substr(settings->prefix.size())));
    if (!result) return data_loss("model BPE: the result of " + where() + " is not in the vocabulary");
    if (*result == *left_id || *result == *right_id)
      return data_loss("model BPE: " + where() + " results in its own part");
    merges.insert(*left_id, *right_id, {static_cast<uint32_t>(rank), *result});
    size_t last = last_char_start(left), first = 0;
    joints.insert(next_char(left, &last), next_char(right, &first));
    can_cut = can_cut && !stands_alone[*left_id] && !stands_alone[*right_id];
  }
  file->merges = {};
  file->merge_bytes = {};
  return std::unique_ptr<Model>(
      std::make_unique<Bpe>(vocab, std::move(*settings), std::move(merges), std::move(joints), can_cut));
}

}  // namespace llmb
