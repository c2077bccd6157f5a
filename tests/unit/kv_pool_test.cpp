// The CPU's KV pool: how many blocks it gets, of which dtype, and where they are.
#include "backend/cpu/kv_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/float_formats.h"
#include "kernels/cpu/kv_cache.h"
#include "tests/support/plan_builder.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

TEST_CASE(
    "the KV pool: as asked, or for all sequences, within a share of memory; too small for one sequence is an error") {
  const ModelConfig config = tiny_config();  // 2 * 2 layers * 2 heads * 8 * 4 bytes = 256 bytes a token
  LoadOptions o = dummy_options();
  const int64_t block = 256 * 16;
  const auto blocks = [&](int64_t available) {
    const auto kv = plan_kv_layout(config, o, available);
    return kv.ok() ? int64_t{kv->num_blocks} : -1;
  };
  CHECK(blocks(0) == 16 * 6);
  CHECK(blocks(1000 * block) == 16 * 6);
  CHECK(blocks(100 * block) == 40);
  CHECK(blocks(15 * block) == 6);
  CHECK(blocks(15 * block - 10) == -1);
  o.kv_cache_bytes = 6 * block;
  CHECK(blocks(0) == 6);
  o.kv_cache_bytes = 7 * block - 1;
  CHECK(blocks(0) == 6);
  o.kv_cache_bytes = 6 * block - 1;
  CHECK(plan_kv_layout(config, o, 0).status().code() == StatusCode::kResourceExhausted);
  CHECK(plan_kv_layout(config, o, 0).status().message().find("cannot hold one sequence of max_model_len 96") !=
        std::string::npos);
  o.kv_cache_bytes = 1000 * block;
  CHECK(blocks(0) == 1000);
  CHECK(blocks(999 * block) == -1);
  o.num_blocks_override = 3;  // less than one sequence: the scheduler refuses what does not fit
  CHECK(blocks(0) == 3);
  o.num_blocks_override = INT32_MAX;
  CHECK(blocks(0) == INT32_MAX / 16);
  CHECK(blocks(int64_t{1} << 35) == -1);
}

TEST_CASE("the KV cache's dtype: bfloat16 for models stored in 16 bits or fewer, float32 for others, or as asked") {
  ModelConfig config = tiny_config();
  LoadOptions o = dummy_options();
  const auto bytes_per_token = [&] { return plan_kv_layout(config, o, 0)->bytes_per_token(); };
  CHECK(bytes_per_token() == 2 * 2 * 2 * 8 * 4);
  config.is_dequantised = true;
  CHECK(bytes_per_token() == 2 * 2 * 2 * 8 * 2);
  config.is_dequantised = false;
  o.cpu.quantization = Quantization::kInt8;
  CHECK(bytes_per_token() == 2 * 2 * 2 * 8 * 2);
  o.cpu.quantization = Quantization::kNone;
  for (const DType stored : {DType::kBF16, DType::kF16}) {
    config.dtype = stored;
    CHECK(bytes_per_token() == 2 * 2 * 2 * 8 * 2);
  }
  o.kv_cache_dtype = DType::kF32;
  CHECK(bytes_per_token() == 2 * 2 * 2 * 8 * 4);
  o.kv_cache_dtype = DType::kI8;
  CHECK(bytes_per_token() == 2 * 2 * 2 * (8 + 4));
  CHECK(loaded(make_cpu_backend(), config, o)->info().kv.dtype == DType::kI8);
  o.kv_cache_dtype = DType::kI4;
  o.block_size = 32;
  CHECK(bytes_per_token() == 2 * 2 * ((4 + 1) + (4 + 4)));
  const auto int4 = loaded(make_cpu_backend(), config, o);
  CHECK(int4->info().kv.dtype == DType::kI4);
  CHECK(int4->info().state_period == 32);
  CHECK(int4->info().num_state_slots == 3 * o.max_num_seqs);
  CHECK(!int4->info().verifies_trees);
  o.block_size = 16;
  o.kv_cache_dtype = DType::kF16;
  const Status status = make_cpu_backend()->load(config, o);
  CHECK(status.code() == StatusCode::kUnsupported);
  CHECK(status.message().find("kv-cache-dtype float16") != std::string::npos);
}

TEST_CASE("a pool of any shape holds every block of every layer apart") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8}) {
    for (const int32_t block_size : {1, 5, 16}) {
      for (const int32_t head_dim : {2, 18, 64}) {
        constexpr int32_t kLayers = 3, kHeads = 2, kBlocks = 4;
        KvPool pool({kLayers, kHeads, head_dim, block_size, kBlocks, dtype});
        const auto number = [&](int32_t layer, int64_t slot) { return static_cast<float>(layer * 64 + slot + 1); };
        for (int32_t layer = 0; layer < kLayers; ++layer)
          for (int64_t slot = 0; slot < kBlocks * block_size; ++slot) {
            const std::vector<float> x(kHeads * head_dim, number(layer, slot));
            cpu::write_kv_slot(x.data(), x.data(), slot, pool.layer(layer));
          }
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          const cpu::KvCacheView view = pool.layer(layer);
          CHECK(reinterpret_cast<uintptr_t>(view.data) % 64 == 0);
          for (int64_t slot = 0; slot < kBlocks * block_size; ++slot) {
            // Channel 0 of the last head, as kv_cache.h lays it out.
            const int64_t at = slot % block_size;
            const uint8_t* keys = view.keys(slot / block_size, kHeads - 1);
            const uint8_t* values = view.values(slot / block_size, kHeads - 1);
            float k = 0, v = 0;
            if (dtype == DType::kF32) {
              std::memcpy(&k, keys + at * 4, 4);
              std::memcpy(&v, values + at * head_dim * 4, 4);
            } else if (dtype == DType::kBF16) {
              std::memcpy(reinterpret_cast<uint8_t*>(&k) + 2, keys + at * 4, 2);
              std::memcpy(reinterpret_cast<uint8_t*>(&v) + 2, values + at / 2 * head_dim * 4 + at % 2 * 2, 2);
            } else {
              const auto meant = [&](uint8_t byte) {
                return dtype == DType::kF8 ? fp8_e4m3_to_f32(byte) : static_cast<float>(static_cast<int8_t>(byte));
              };
              k = view.scales(slot / block_size, kHeads - 1)[at] * meant(keys[at]);
              v = view.scales(slot / block_size, kHeads - 1)[block_size + at] * meant(values[at * head_dim]);
            }
            CHECK(std::fabs(k - number(layer, slot)) <= 1e-4);
            CHECK(std::fabs(v - number(layer, slot)) <= 1e-4);
          }
        }
      }
    }
  }
}

TEST_CASE("a pool of latents holds keys alone, each apart from the others, and slots are copied whole") {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int32_t block_size : {1, 5, 16}) {
      constexpr int32_t kLayers = 2, kDim = 24, kBlocks = 3;
      KvLayout layout{kLayers, 1, kDim, block_size, kBlocks, dtype};
      layout.latent_dim = 18;
      CHECK(layout.bytes_per_token() == kLayers * kDim * dtype_bytes(dtype));
      KvPool pool(layout);
      const auto number = [&](int32_t layer, int64_t slot) { return static_cast<float>(layer * 64 + slot + 1); };
      const auto stored = [&](int32_t layer, int64_t slot) {
        const uint8_t* keys = pool.layer(layer).keys(slot / block_size, 0) + slot % block_size * 4;
        float k = 0;
        if (dtype == DType::kF32) std::memcpy(&k, keys + (kDim - 1) * block_size * 4, 4);
        else std::memcpy(reinterpret_cast<uint8_t*>(&k) + 2, keys + (kDim / 2 - 1) * block_size * 4 + 2, 2);
        return k;
      };
      for (int32_t layer = 0; layer < kLayers; ++layer)
        for (int64_t slot = 0; slot < kBlocks * block_size; ++slot) {
          const std::vector<float> x(kDim, number(layer, slot));
          cpu::write_kv_slot(x.data(), nullptr, slot, pool.layer(layer));
        }
      cpu::copy_kv_slot(0, kBlocks * block_size - 1, pool.layer(1));
      for (int32_t layer = 0; layer < kLayers; ++layer)
        for (int64_t slot = 0; slot < kBlocks * block_size; ++slot) {
          const bool is_copy = layer == 1 && slot == kBlocks * block_size - 1;
          CHECK(stored(layer, slot) == number(layer, is_copy ? 0 : slot));
        }
    }
  }
}

TEST_CASE("layers of several sizes: no block of any group's layers overlaps another") {
  ModelConfig config = tiny_config();
  config.num_hidden_layers = 9;
  config.layers.resize(9);
  for (int32_t i = 0; i < 9; ++i) {
    config.layers[i].window = i % 3 == 2 ? 0 : 20;
    if (i % 3 == 2) config.layers[i].head_dim = 20;  // two layers of 8, and a rest, fit its plane
  }
  config.layers[7].kv_layer = 4;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8, DType::kI4})
    for (const bool groups_layers : {true, false}) {
      LoadOptions o = dummy_options();
      o.groups_layers = groups_layers;
      o.kv_cache_dtype = dtype;
      if (dtype == DType::kI4) o.block_size = kKvGroup;
      o.num_blocks_override = 5;
      const KvLayout layout = plan_kv_layout(config, o, 0).value();
      CHECK((layout.groups.num_groups() > 1) == groups_layers);
      KvPool pool(layout);
      struct Piece {
        int32_t block, group;
        const uint8_t *begin, *end;
      };
      std::vector<Piece> pieces;
      for (int32_t layer = 0; layer < 9; ++layer) {
        if (!config.has_own_kv(layer)) continue;
        const cpu::KvCacheView view = pool.layer(layer);
        CHECK((view.num_kv_heads == 2 && view.head_dim == config.head_dim_of(layer)));
        for (int32_t b = 0; b < 5; ++b)
          pieces.push_back({b, layout.groups.group(layer), view.keys(b, 0), view.keys(b, 0) + view.block_bytes()});
      }
      for (size_t i = 0; i < pieces.size(); ++i)
        for (size_t j = 0; j < i; ++j) {
          const Piece &a = pieces[i], &b = pieces[j];
          if (a.block != b.block || a.group == b.group) CHECK((a.end <= b.begin || b.end <= a.begin));
        }
      const auto first = std::min_element(pieces.begin(), pieces.end(),
                                          [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
      const auto last =
          std::max_element(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.end < b.end; });
      CHECK(last->end - first->begin <= 5 * layout.bytes_per_block() + 64 * layout.num_planes());
    }
}

TEST_CASE("scratch blocks lie behind the others, and count as memory that is not there") {
  const ModelConfig config = tiny_config();
  LoadOptions o = dummy_options();
  CHECK(num_scratch_blocks(o) == 0);
  o.max_num_drafts = 3;
  const int32_t num_scratch = num_scratch_blocks(o);
  CHECK(num_scratch > 0);
  o.num_blocks_override = 10;
  const int64_t block = 256 * 16;
  CHECK(plan_kv_layout(config, o, (10 + num_scratch) * block)->num_blocks == 10);
  CHECK(plan_kv_layout(config, o, (10 + num_scratch) * block - 1).status().code() == StatusCode::kResourceExhausted);
  const KvLayout layout = plan_kv_layout(config, o, 0).value();
  KvPool pool(layout, num_scratch);
  const cpu::KvCacheView first = pool.layer(0), second = pool.layer(1);
  CHECK(second.keys(0, 0) - first.keys(10 + num_scratch, 0) >= 0);
}

TEST_CASE("copied blocks hold keys, values and scales of every layer; others are as they were") {
  constexpr int32_t kLayers = 3, kHeads = 2, kBlocks = 7, kScratch = 2;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8})
    for (const int32_t block_size : {1, 5, 16})
      for (const std::vector<BlockCopy>& copies :
           {std::vector<BlockCopy>{}, {{0, 6, 0}}, {{0, 2, 3}, {0, 2, 1}, {0, 0, 6}, {0, 4, 5}}}) {
        KvPool pool({kLayers, kHeads, 18, block_size, kBlocks, dtype}, kScratch);
        const auto bytes = [&](int32_t layer, int64_t block) {
          const cpu::KvCacheView view = pool.layer(layer);
          return std::vector<uint8_t>(view.keys(block, 0), view.keys(block + 1, 0));
        };
        std::vector<std::vector<uint8_t>> before;
        for (int32_t layer = 0; layer < kLayers; ++layer)
          for (int64_t block = 0; block < kBlocks + kScratch; ++block) {
            for (int64_t slot = block * block_size; slot < (block + 1) * block_size; ++slot) {
              std::vector<float> x(kHeads * 18, static_cast<float>(layer * 1000 + slot + 1));
              x[3] = -7;
              cpu::write_kv_slot(x.data(), x.data(), slot, pool.layer(layer));
            }
            before.push_back(bytes(layer, block));
          }
        ThreadPool threads(2);
        pool.copy_blocks_to(pool, copies, threads);
        for (int32_t layer = 0; layer < kLayers; ++layer)
          for (int64_t block = 0; block < kBlocks + kScratch; ++block) {
            int64_t source = block;
            for (const BlockCopy& copy : copies)
              if (copy.to == block) source = copy.from;
            CHECK(bytes(layer, block) == before[layer * (kBlocks + kScratch) + source]);
          }
      }
}

TEST_CASE("a block as bytes holds all planes and hidden states, and a pool of another size takes it") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8}) {
    CAPTURE(dtype_name(dtype));
    KvLayout layout = make_kv_layout(tiny_config(), 4, dtype, {});
    layout.hidden_size = 5;
    layout.num_blocks = 6;
    KvPool from(layout);
    layout.num_blocks = 3;
    KvPool to(layout);
    const int64_t size = from.block_bytes();
    CHECK(size == to.block_bytes());
    CHECK(size >= layout.bytes_per_block());
    ThreadPool pool(1);
    std::vector<uint8_t> bytes(static_cast<size_t>(2 * size)), copied(bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 251);
    const std::vector<BlockId> sources = {5, 0}, targets = {1, 2};
    from.write_blocks(sources, bytes.data());
    from.read_blocks(sources, copied.data());
    CHECK(copied == bytes);
    to.write_blocks(targets, copied.data());
    std::vector<float> hidden(2 * 4 * 5), arrived(hidden.size());
    const std::vector<int32_t> source_slots = {20, 21, 22, 23, 0, 1, 2, 3}, target_slots = {4, 5, 6, 7, 8, 9, 10, 11};
    from.hidden().load(source_slots.data(), 8, hidden.data(), pool);
    to.hidden().load(target_slots.data(), 8, arrived.data(), pool);
    CHECK(std::memcmp(hidden.data(), arrived.data(), hidden.size() * sizeof(float)) == 0);
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      const cpu::KvCacheView a = from.layer(layer), b = to.layer(layer);
      CHECK(std::memcmp(a.data + 5 * a.block_stride, b.data + b.block_stride, static_cast<size_t>(a.block_bytes())) == 0);
    }
  }
}

// Heads of one layer and blocks of a pool: memory that they take.
std::vector<std::pair<const uint8_t*, const uint8_t*>> pieces(KvPool& pool, int32_t num_layers,
                                                              const std::vector<BlockId>& blocks) {
  std::vector<std::pair<const uint8_t*, const uint8_t*>> all;
  for (int32_t layer = 0; layer < num_layers; ++layer)
    for (const BlockId block : blocks) {
      const cpu::KvCacheView view = pool.layer(layer);
      all.emplace_back(view.keys(block, 0), view.keys(block, 0) + view.block_bytes());
    }
  return all;
}

TEST_CASE("a draft model's blocks lie in the block that is lent, beside each other, and fill it as far as they can") {
  struct Case {
    int32_t layers, heads, head_dim;  // of the draft model; the other one's: 5, 4, 16
    DType dtype;
    int32_t num_arrays, per_block, block_size;  // 0: they do not fit
  };
  const Case cases[] = {{2, 1, 16, DType::kF32, 2, 4, 16},   {5, 4, 16, DType::kF32, 1, 1, 16},
                        {1, 2, 8, DType::kF32, 5, 4, 16},    {3, 3, 16, DType::kF32, 1, 1, 16},
                        {2, 1, 24, DType::kBF16, 2, 4, 16},  {6, 1, 16, DType::kF32, 0, 0, 0},
                        {1, 5, 16, DType::kF32, 5, 1, 8},    {1, 9, 16, DType::kF32, 0, 0, 0},    {2, 1, 40, DType::kBF16, 2, 2, 16}};
  for (const Case& c : cases) {
    CAPTURE(c.layers);
    CAPTURE(c.heads);
    CAPTURE(c.head_dim);
    const auto config_of = [](int32_t layers, int32_t heads, int32_t head_dim, DType dtype) {
      ModelConfig config = tiny_config();
      config.num_hidden_layers = layers, config.num_key_value_heads = heads, config.head_dim = head_dim;
      config.dtype = dtype;  // its cache's follows
      return config;
    };
    const ModelConfig large = config_of(5, 4, 16, DType::kF32), small = config_of(c.layers, c.heads, c.head_dim, c.dtype);
    const LoadOptions o = dummy_options();
    LentBlocks lent = lent_cpu_blocks(large, o, small, o);
    CHECK(lent.num_arrays == c.num_arrays);
    if (!lent) continue;
    CHECK(lent.per_block * lent.block_size == c.per_block * c.block_size);
    KvLayout kv = *plan_kv_layout(large, o, 0);
    kv.num_blocks = 7;
    KvPool pool(kv, /*num_scratch=*/2);
    lent.num_blocks = pool.num_in_plane();
    CHECK(lent.num_blocks == 9);
    LoadOptions of_draft = o;
    of_draft.block_size = lent.block_size;
    KvPool inside(borrowed_kv_layout(small, of_draft, lent), pool, lent);
    std::vector<std::pair<const uint8_t*, const uint8_t*>> taken;
    for (BlockId block = 0; block < 9; ++block) {
      std::vector<BlockId> own;
      lent.append(block, &own);
      CHECK(static_cast<int32_t>(own.size()) * lent.block_size == lent.num_tokens());
      const auto around = pieces(pool, 5, {block});
      for (const auto& piece : pieces(inside, c.layers, own)) {
        CHECK(std::any_of(around.begin(), around.end(), [&](const auto& whole) {
          return whole.first <= piece.first && piece.second <= whole.second;
        }));
        taken.push_back(piece);
      }
    }
    std::sort(taken.begin(), taken.end());
    for (size_t i = 1; i < taken.size(); ++i) CHECK(taken[i - 1].second <= taken[i].first);
  }
}

TEST_CASE("memory for the KV pool is divided between it and a draft model's beside it; what is lent makes the pool larger") {
  const ModelConfig config = tiny_config();
  LoadOptions o = dummy_options();
  const int64_t block = 256 * 16;
  const auto blocks = [&](int64_t available) {
    const auto kv = plan_kv_layout(config, o, available);
    return kv.ok() ? int64_t{kv->num_blocks} : -1;
  };
  o.draft_block_bytes = block / 2;
  CHECK(blocks(0) == 16 * 6);
  CHECK(blocks(100 * block) == 26);  // 40 % of it for both
  o.kv_cache_bytes = 9 * block;
  CHECK(blocks(0) == 6);
  CHECK(blocks(9 * block) == 6);
  o.kv_cache_bytes = 9 * block - 1;
  CHECK(blocks(0) == -1);
  o.num_blocks_override = 10;
  CHECK(blocks(15 * block) == 10);
  CHECK(blocks(15 * block - 1) == -1);
  o = dummy_options();
  o.lent_tokens = 64;  // of 96
  CHECK(blocks(0) == 16 * (6 + 2));
  o.kv_cache_bytes = 9 * block;
  CHECK(blocks(0) == 9);
  o.num_blocks_override = INT32_MAX;
  CHECK(blocks(0) == INT32_MAX / 64);
}

}  // namespace
}  // namespace llmb::test
