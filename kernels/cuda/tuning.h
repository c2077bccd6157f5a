// Constants that were fitted to a machine: results are right with any others, and `make gpu-check` says what they cost.
// All of these: NVIDIA H200, 132 SMs, 4.6 TB/s of reads.
#pragma once

#include <cstdint>

namespace llmb::cuda::tuning {

// ---- paged_attention's work list, in sixteenths of what a tile of a decode-like item costs
// A tile of a decode-like unit is bound by its bytes, that of a tall one by multiply-adds. Their ratio hardly depends
// on the head size. An item costs about a tile more to begin and to end.
constexpr int32_t kSmallTileCost = 16, kSmallItemCost = 16, kSmallMinTiles = 2;
constexpr int32_t kTallTileCost = 20, kTallestTileCost = 32, kTallItemCost = 40, kTallMinTiles = 4;
constexpr int32_t kWgmmaTileCost = 32, kWgmmaMinTiles = 2;
constexpr int32_t kMaxPieces = 64;  // or about, of a unit: one block merges them
// Whole units may be this much above the even load, in percent, before units are cut; tall ones where small ones fill
// up.
constexpr int64_t kEvenPercent = 102, kEvenTallPercent = 110;
// Where tokens see both ways, units are cut only if that takes so much from the block that has most to do. On an H200
// (2026-11-27) lists with pieces took 45 to 65 us longer than whole ones, 600 to 1,100 of these units; layers with a
// reach share the list with those that see all, and see little of most pieces.
#ifdef LLMB_SIMT
constexpr int64_t kBothWaysLeastGain = 60;  // so that tests' small cases are cut
#else
constexpr int64_t kBothWaysLeastGain = 1800;
#endif

// A launch over shared prefixes is worth it where it saves this many tiles of reads for each block of the grid, 0.55 us
// each where rows find the same blocks in the second-level cache, and for each row this many positions, which its states
// cost to leave and to read. Fitted to 64 rows over 2,048 positions (33 to 42 us where row by row takes 70), 64 within a
// window of 1,024 (36 and 37) and 16 over 1,024 (22 and 19), four query heads to a KV head.
#ifdef LLMB_SIMT
constexpr int32_t kSharedLaunchTiles = 2, kStatePositions = 4;  // so that tests' small cases share too
#else
constexpr int32_t kSharedLaunchTiles = 8, kStatePositions = 250;
#endif
constexpr int64_t kMaxStatePieces = 16;  // of a prefix: one warp merges them for each sequence

// ---- attention over latents, or over keys and values that prompts' latents are expanded to
// A multiply-add of attention over latents, and one of a product by the heads' matrices, takes so many times as long as
// one of attention over expanded keys and values. Measured on an H200 (2026-11-27): 118 TFLOP/s over latents; 2,048
// tokens of DeepSeek-V3's shape expanded at 127 and attended to at 408. Of head_linear the rate of the former is taken.
constexpr double kAbsorbedPairCost = 3.4, kExpansionCost = 3.2;
constexpr int32_t kMaxHeadGroups = 16;  // a launch or three each in every layer
#ifdef LLMB_SIMT
constexpr int32_t kMinExpandedRows = 4;  // so that tests' small prompts are expanded, and heads take turns
constexpr int64_t kMaxExpandedBytes = 128 << 10;
#else
constexpr int32_t kMinExpandedRows = 64;  // of a prompt in a step: fewer are not worth the launches
constexpr int64_t kMaxExpandedBytes = int64_t{256} << 20;
#endif

// ---- linear
// Up to here linear_wgmma starts while the kernel before it still runs, which cuBLASLt cannot, and wins by that; timed
// by itself it need not be faster.
constexpr int64_t kMaxWgmmaRows = 32;
constexpr int64_t kMaxMmaRows = 64;  // above, linear_mma is never the fastest

// ---- linear_int8
// Above so many, cuBLASLt makes the sums where it can: at 64 rows our kernel takes longer than it takes at 128.
constexpr int64_t kMaxInt8FewRows = 32;
// Sums of 32 bits that cuBLASLt makes at a time: 64 MiB. Reckoned, not measured.
constexpr int64_t kMaxInt8Sums = int64_t{16} << 20;

// ---- linear_wgmma8, of which int8_tiling() reckons how long tilings take, in cycles of a multiprocessor
// linear_wgmma's tiles of 128 by 128 get 6 TB/s from the second-level cache, 25 bytes a cycle for each of 132; one alone
// gets more. The others are reckoned, not measured.
constexpr double kL2BytesPerCycle = 25, kSmBytesPerCycle = 48;
constexpr double kInt8ProductsPerCycle = 3300;  // of 4096, as bf16 reaches 0.8 of its peak
constexpr double kTaskCycles = 2000;            // to begin and to end a tile

// From so many rows on Hopper takes linear_wgmma8: 1.0 to 1.9 times bf16's rate from there to 4,096 rows, with the
// rounding of the rows, where cuBLASLt's sums of 32 bits make 0.6 to 1.4 times. With one row one of four shapes loses.
constexpr int64_t kMinInt8WgmmaRows = 8;

// ---- linear_fp8
// Above so many, cuBLASLt multiplies where it can. Reckoned, not measured.
constexpr int64_t kMaxFp8FewRows = 32;

// ---- linear_int4, and linear_fp8
// Reckoned, not measured: two blocks' rings fit one multiprocessor of an A100, and one of an RTX 4090.
constexpr int32_t kInt4BlocksPerSm = 2;
constexpr int32_t kInt4RingBytes = 80 * 1024;
// Above so many rows int4_pack writes the numbers to memory in 16 bits, and linear multiplies them. When a tile had 64
// rows, 128 rows took as long either way, and 256 rows took 1.4 to 2.5 times as long by their codes.
constexpr int64_t kMaxInt4Rows = 128;
// The same beside linear_int4_wgmma. At 256 rows the numbers take 1.0 to 1.3 times as long, at 512 the codes 1.1 to 1.25
// times.
constexpr int64_t kMaxInt4WgmmaRows = 256;
// Up to here linear_int4 does not take it where bits may depend on the rows: linear_codes is up to 15 % faster.
constexpr int64_t kMaxInt4MmaRows = 16;
// Two, so that one widens codes while the other multiplies; with tiles of so many rows or more one, which leaves fewer
// sums of parts: 13.7 us for 16.8 with 64 rows of 4096x4096, 46 for 45 of 28672x4096.
constexpr int32_t kInt4WgmmaBlocksPerSm = 2;
constexpr int32_t kInt4OneBlockRows = 64;

// ---- lora
// From so many items on, a block of its first kernel takes two of them, or four. Reckoned, not measured: there are
// blocks for 132 SMs still.
constexpr int32_t kTwoLoraItems = 128, kFourLoraItems = 256;

// ---- calls in which ranks meet (backend/cuda/divided_rows.h). Not measured: NVLink 4 sends 450 GB/s each way, of which
// NCCL's all-reduce over eight H100 reaches some 350; one call more between kernels of a recording takes about 10 us.
constexpr double kLinkBytesPerUs = 350e3;
constexpr double kRankMemoryBytesPerUs = 3.3e6;
#ifdef LLMB_SIMT
constexpr double kMeetingUs = 0;
constexpr int64_t kFewestDividedRows = 3;         // so that tests' small steps are divided, and some rank has no row
constexpr int64_t kMaxRankPartsBytes = 32 << 10;  // and sums are made in turns
constexpr int64_t kFewestContextRows = 6;
#else
constexpr double kMeetingUs = 12;
constexpr int64_t kFewestDividedRows = 16;
constexpr int64_t kMaxRankPartsBytes = int64_t{64} << 20;  // of all ranks' parts of a sum, at a time
// From so many rows on ranks share out a step's (backend/cuda/context_rows.h). Reckoned, not measured: products of up to
// some 210 rows take as long as their weights' bytes, and each row beyond about 0.4 us a layer of an 8B model, where a
// call takes 12.
constexpr int64_t kFewestContextRows = 256;
#endif

// ---- block_copy
constexpr int64_t kMaxCopyBlocks = 2048;
constexpr int64_t kMaxCopyBlocksToHost = 16;  // enough for the link; the rest of the device goes on with the step

}  // namespace llmb::cuda::tuning
