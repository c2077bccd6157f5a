#include "backend/make_backend.h"

#include <charconv>
#include <string>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/draft_feed.h"
#include "backend/ledger/ledger_backend.h"
#include "base/check.h"
#if LLMB_HAS_CUDA
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/lent_cuda_blocks.h"
#include "backend/cuda/rank_gpus.h"
#include "backend/cuda/share_cuda_queue.h"
#endif

namespace llmb {

namespace {

#if LLMB_HAS_CUDA
Result<DeviceChoice> choose_gpu(int index) {
  LLMB_ASSIGN_OR_RETURN(const CudaDevice device, find_cuda_device(index));
  return DeviceChoice{DeviceKind::kCuda, "cuda:" + std::to_string(index), "cuda (" + device.name + ")", ""};
}

DeviceChoice choose_freely() {
  const Result<DeviceChoice> gpu = choose_gpu(0);
  if (gpu.ok()) return *gpu;
  return {DeviceKind::kCpu, "cpu", "cpu", has_cuda_device() ? "no GPU is used: " + gpu.status().message() : ""};
}
#else
Result<DeviceChoice> choose_gpu(int) {
  return unsupported("device cuda: this build has no CUDA; use --device cpu, or build where the CUDA Toolkit is found");
}

DeviceChoice choose_freely() { return {DeviceKind::kCpu, "cpu", "cpu", ""}; }
#endif

// The N of "cuda:N", 0 of "cuda", -1 of anything else.
int gpu_index(std::string_view name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) return -1;
  name.remove_prefix(5);
  int index = -1;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), index);
  return parsed.ec == std::errc() && parsed.ptr == name.data() + name.size() ? index : -1;
}

}  // namespace

Result<DeviceChoice> choose_device(std::string_view asked) {
  if (asked == "cpu") return DeviceChoice{DeviceKind::kCpu, "cpu", "cpu", ""};
  if (asked == "ledger") return DeviceChoice{DeviceKind::kLedger, "ledger", "ledger", ""};
  if (asked == "auto") return choose_freely();
  if (const int index = gpu_index(asked); index >= 0) return choose_gpu(index);
  return invalid_argument("device \"" + std::string(asked) + "\" is not known; known: auto, cpu, cuda, cuda:N, ledger");
}

Result<std::unique_ptr<Backend>> make_backend(std::string_view device) {
  LLMB_ASSIGN_OR_RETURN(const DeviceChoice chosen, choose_device(device));
  if (chosen.kind == DeviceKind::kCpu) return make_cpu_backend();
  if (chosen.kind == DeviceKind::kLedger) return make_ledger_backend({});
#if LLMB_HAS_CUDA
  return make_cuda_backend(gpu_index(chosen.name));
#else
  return internal_error("no backend for device " + chosen.name);
#endif
}

Result<std::unique_ptr<Backend>> make_splitting_backend(std::string_view device, bool always) {
#if LLMB_HAS_CUDA
  LLMB_ASSIGN_OR_RETURN(const DeviceChoice chosen, choose_device(device));
  const SplitMode splits = always ? SplitMode::kAlways : SplitMode::kMeasured;
  if (chosen.kind == DeviceKind::kCuda) return make_cuda_backend(gpu_index(chosen.name), nullptr, splits);
#else
  static_cast<void>(always);
#endif
  return make_backend(device);
}

Result<std::unique_ptr<Backend>> make_rank_backend(DeviceKind kind, std::shared_ptr<RankContext> ranks) {
  if (kind == DeviceKind::kCpu) return make_cpu_backend(std::move(ranks));
#if LLMB_HAS_CUDA
  if (kind == DeviceKind::kCuda) return make_cuda_backend(0, std::move(ranks));
#endif
  return unsupported("ranks compute on CPUs and on GPUs");
}

LentBlocks find_lent_blocks(DeviceKind device, const ModelConfig& target, const LoadOptions& target_options,
                            const ModelConfig& draft, const LoadOptions& draft_options) {
  if (device == DeviceKind::kCpu) return lent_cpu_blocks(target, target_options, draft, draft_options);
#if LLMB_HAS_CUDA
  if (device == DeviceKind::kCuda) return lent_cuda_blocks(target, target_options, draft, draft_options);
#endif
  return {};
}

void lend_blocks(Backend& target, Backend& draft, LentBlocks* lent) {
  if (lend_cpu_blocks(target, draft, lent)) return;
#if LLMB_HAS_CUDA
  if (lend_cuda_blocks(target, draft, lent)) return;
#endif
  LLMB_CHECK_MSG(false, "blocks are lent by a backend to another one of its kind");
}

#if LLMB_HAS_CUDA
Status check_rank_gpus(int num_ranks) { return find_rank_gpus(num_ranks); }
std::unique_ptr<DraftFeed> share_queue(Backend& target, Backend& draft) { return share_cuda_queue(target, draft); }
OwnDrafts own_drafts_of(Backend& model) { return own_cuda_drafts_of(model); }
#else
Status check_rank_gpus(int) { return choose_gpu(0).status(); }
std::unique_ptr<DraftFeed> share_queue(Backend&, Backend&) { return nullptr; }
OwnDrafts own_drafts_of(Backend&) { return {}; }
#endif

}  // namespace llmb
