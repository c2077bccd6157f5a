#include "backend/cuda/step_graphs.h"

#include <algorithm>
#include <set>

#include "core/types.h"
#include "kernels/cuda/error.h"

namespace llmb {

using cuda::check;

int64_t graph_bucket(int64_t size, int64_t max_size) {
  int64_t bucket = 1;
  if (size > 512) bucket = ceil_div(size, 64) * 64;
  else if (size > 256) bucket = ceil_div(size, 16) * 16;
  else if (size > 4) bucket = ceil_div(size, 8) * 8;
  else if (size > 2) bucket = 4;
  else bucket = size;
  return std::min(bucket, max_size);
}

std::vector<int64_t> graph_sizes(int64_t max_size) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= max_size; ++size)
    if (graph_bucket(size, max_size) == size) sizes.push_back(size);
  return sizes;
}

int64_t max_num_graphs(const ModelConfig& config, const LoadOptions& options, const StepStage& stage, bool may_split) {
  const bool has_guesses = num_recorded_drafts(options) > 0;
  const int64_t num_kinds = stage.num_kinds(has_guesses, has_guesses && options.verifies_trees) +
                            (options.drafting_layers > 0) + config.mtp.is_used;
  const auto num_sizes = static_cast<int64_t>(graph_sizes(largest_graph(options)).size());
  const int64_t num_uses = !options.adapters ? 1 : config.experts.num_experts == 0 ? 2 : 3;
  return 2 * num_uses * num_kinds * num_sizes * (1 + (may_split ? kMaxRecordedSplits : 0));
}

int64_t largest_graph(const LoadOptions& options) {
  const int64_t num_samples = options.max_num_samples() - options.max_num_drafts + num_recorded_drafts(options);
  return std::min<int64_t>(num_samples, options.max_num_batched_tokens);
}

StepGraphs::~StepGraphs() { clear(); }

void StepGraphs::clear() {
  for (const auto& [step, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
}

void StepGraphs::begin(cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

// Ends a recording that failed, so that the stream can be used again; the failure itself is on its way up.
void StepGraphs::abandon(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
}

void StepGraphs::end(const Recording& step, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(code, "cudaGraphInstantiate");
  graphs_[step] = executable;  // clear() frees it, whatever comes next
  // Uploaded now, so that no memory is needed when it is launched.
  check(cudaGraphUpload(executable, stream), "cudaGraphUpload");
}

bool StepGraphs::may_split(int64_t size, const StepSplit& second) const {
  std::set<StepSplit> known;
  for (const auto& [step, graph] : graphs_)
    if (step.size == size && step.second.row > 0) known.insert(step.second);
  return known.contains(second) || known.size() < kMaxRecordedSplits;
}

void StepGraphs::launch(const Recording& step, cudaStream_t stream) const {
  check(cudaGraphLaunch(graphs_.at(step), stream), "cudaGraphLaunch");
}

}  // namespace llmb
