#include "tokenizer/model.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/log.h"

namespace llmb {

bool PieceCache::find(std::string_view piece, uint64_t hash, std::vector<TokenId>* out) const {
  if (slots_.empty()) return false;
  const Slot& slot = slots_[hash & (kNumSlots - 1)];
  if (slot.check != static_cast<uint32_t>(hash >> 32) || slot.key_size != piece.size() ||
      std::memcmp(slot.key, piece.data(), piece.size()) != 0) {
    return false;
  }
  out->insert(out->end(), slot.ids, slot.ids + slot.num_ids);
  return true;
}

void PieceCache::insert(std::string_view piece, uint64_t hash, const TokenId* ids, size_t num_ids) {
  if (piece.empty() || piece.size() > kMaxKeyBytes || num_ids > kMaxIds) return;
  if (slots_.empty()) slots_.resize(kNumSlots);
  Slot& slot = slots_[hash & (kNumSlots - 1)];
  slot.check = static_cast<uint32_t>(hash >> 32);
  slot.key_size = static_cast<uint8_t>(piece.size());
  slot.num_ids = static_cast<uint8_t>(num_ids);
  std::memcpy(slot.key, piece.data(), piece.size());
  std::memcpy(slot.ids, ids, num_ids * sizeof(TokenId));
}

void RankQueue::push(uint32_t rank, uint32_t position) {
  if (rank != last_rank_) {
    const auto [it, is_new] = list_of_rank_.try_emplace(rank, 0);
    if (is_new) {
      if (free_lists_.empty()) {
        free_lists_.push_back(static_cast<uint32_t>(lists_.size()));
        lists_.emplace_back();
      }
      it->second = free_lists_.back();
      free_lists_.pop_back();
      ranks_.push_back(static_cast<uint64_t>(rank) << 32 | it->second);
      std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    }
    last_rank_ = rank;
    last_list_ = it->second;
  }
  List& list = lists_[last_list_];
  if (!list.positions.empty() && list.positions.back() > position) list.is_sorted = false;
  list.positions.push_back(position);
}

bool RankQueue::pop(uint32_t* rank, uint32_t* position) {
  while (!ranks_.empty()) {
    const auto first_rank = static_cast<uint32_t>(ranks_.front() >> 32),
               first_list = static_cast<uint32_t>(ranks_.front());
    List& list = lists_[first_list];
    if (list.done < list.positions.size()) {
      if (!list.is_sorted) std::sort(list.positions.begin() + static_cast<ptrdiff_t>(list.done), list.positions.end());
      list.is_sorted = true;
      *rank = first_rank;
      *position = list.positions[list.done++];
      return true;
    }
    list.positions.clear();
    list.done = 0;
    free_lists_.push_back(first_list);
    list_of_rank_.erase(first_rank);
    if (last_rank_ == first_rank) last_rank_ = UINT32_MAX;
    std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    ranks_.pop_back();
  }
  return false;
}

std::vector<TokenId> byte_token_ids(const Vocab& vocab) {
  std::vector<TokenId> ids(256);
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(b));
    ids[b] = vocab.find(name).value_or(-1);
  }
  return ids;
}

Result<std::unique_ptr<Model>> make_model(TokenizerFile* file, const Vocab& vocab) {
  auto type = json_string(file->model, "type", "");
  if (!type.ok()) return type.status().with_context("model");
  if (type->empty()) {  // files older than the field
    *type = file->has_merges                                   ? "BPE"
            : !file->scores.empty()                            ? "Unigram"
            : file->model.contains("max_input_chars_per_word") ? "WordPiece"
                                                               : "WordLevel";
  }
  if (vocab.num_entries() == 0) return data_loss("the vocabulary is empty");
  if (*type == "BPE") return make_bpe(file, vocab);
  if (*type == "Unigram") return make_unigram(file, vocab);
  if (*type == "WordPiece") return make_word_piece(*file, vocab);
  if (*type == "WordLevel") return make_word_level(*file, vocab);
  return unsupported("model \"" + escape_control(*type) + "\" is not supported");
}

}  // namespace llmb
