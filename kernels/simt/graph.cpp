#include <algorithm>

#include "kernels/simt/block.h"
#include "kernels/simt/stream.h"

struct CUgraph_st {
  std::shared_ptr<const std::vector<llmb::simt::GraphNode>> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<llmb::simt::GraphNode>> nodes;
};

namespace llmb::simt {

namespace {

std::vector<std::shared_ptr<Capture>>& captures() {
  static std::vector<std::shared_ptr<Capture>> active;
  return active;
}

bool allows_unsafe_calls(const Capture& capture) {
  return capture.mode == cudaStreamCaptureModeRelaxed ||
         (capture.mode == cudaStreamCaptureModeThreadLocal && capture.thread != std::this_thread::get_id());
}

// Whether every node comes before one of `frontier`, or is one.
bool all_joined(const std::vector<GraphNode>& nodes, const std::vector<size_t>& frontier) {
  std::vector<bool> reached(nodes.size(), false);
  for (const size_t node : frontier) reached[node] = true;
  for (size_t i = nodes.size(); i-- > 0;) {
    if (!reached[i]) return false;
    for (const size_t before : nodes[i].after) reached[before] = true;
  }
  return true;
}

// Any node whose predecessors are done may be next: one by chance; or the one that could last, so that a chain of nodes runs
// as far as it gets ahead of the others; or the one that could first.
void replay(const std::vector<GraphNode>& nodes) {
  std::vector<size_t> num_waits(nodes.size(), 0);
  std::vector<std::vector<size_t>> successors(nodes.size());
  std::vector<size_t> ready;
  for (size_t i = 0; i < nodes.size(); ++i) {
    num_waits[i] = nodes[i].after.size();
    for (const size_t before : nodes[i].after) successors[before].push_back(i);
    if (num_waits[i] == 0) ready.push_back(i);
  }
  uint64_t draw = next_launch_seed();
  const uint64_t rule = draw % 3;
  while (!ready.empty()) {
    draw = draw * 6364136223846793005u + 1442695040888963407u;
    const size_t taken = rule == 0 ? (draw >> 33) % ready.size() : rule == 1 ? ready.size() - 1 : 0;
    const size_t node = ready[taken];
    ready.erase(ready.begin() + static_cast<ptrdiff_t>(taken));
    nodes[node].run();
    for (const size_t next : successors[node]) {
      if (--num_waits[next] == 0) ready.push_back(next);
    }
  }
}

}  // namespace

bool capture_forbids_call() {
  bool forbidden = false;
  for (const auto& capture : captures()) {
    if (allows_unsafe_calls(*capture)) continue;
    capture->invalid = forbidden = true;
  }
  return forbidden;
}

bool spoils_capture(Stream& stream) {
  if (stream.capture == nullptr) return false;
  stream.capture->invalid = true;
  return true;
}

}  // namespace llmb::simt

using llmb::simt::Call;
using llmb::simt::Capture;
using llmb::simt::captures;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const auto state = llmb::simt::stream_state(stream);
  if (state == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  if (stream == nullptr || state->capture != nullptr) return Call::result(cudaErrorStreamCaptureUnsupported);
  state->capture = std::make_shared<Capture>();
  state->capture->origin = state;
  state->capture->streams = {state};
  state->capture->mode = mode;
  state->capture->thread = std::this_thread::get_id();
  state->frontier.clear();
  captures().push_back(state->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Call call;
  *graph = nullptr;
  const auto state = llmb::simt::stream_state(stream);
  if (state == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Capture> capture = state->capture;
  if (capture == nullptr) return Call::result(cudaErrorInvalidValue);
  if (capture->origin != state) return Call::result(cudaErrorStreamCaptureUnmatched);
  const std::vector<size_t> frontier = state->frontier;
  for (const auto& member : capture->streams) member->capture = nullptr;
  capture->streams.clear();  // and with them the circle of owners
  capture->origin = nullptr;
  std::erase(captures(), capture);
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (capture->invalid) return Call::result(cudaErrorStreamCaptureInvalidated);
  if (!llmb::simt::all_joined(capture->nodes, frontier)) return Call::result(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::make_shared<std::vector<llmb::simt::GraphNode>>(std::move(capture->nodes))};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const auto state = llmb::simt::stream_state(stream);
  if (state == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  *status = state->capture == nullptr ? cudaStreamCaptureStatusNone
            : state->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (nodes == nullptr) {
    *num_nodes = graph->nodes->size();
    return cudaSuccess;
  }
  *num_nodes = std::min(*num_nodes, graph->nodes->size());
  for (size_t i = 0; i < *num_nodes; ++i) nodes[i] = &(*graph->nodes)[i];
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (graph == nullptr) return Call::result(cudaErrorInvalidValue);
  *executable = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Call call;
  delete graph;
  return Call::result(call.injected());
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Call call;
  delete executable;
  return Call::result(call.injected());
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const bool valid = executable != nullptr && llmb::simt::stream_state(stream) != nullptr;
  return Call::result(valid ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const auto state = llmb::simt::stream_state(stream);
  if (executable == nullptr || state == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  if (llmb::simt::spoils_capture(*state)) return Call::result(cudaErrorStreamCaptureUnsupported);
  llmb::simt::enqueue(state, [nodes = executable->nodes] { llmb::simt::replay(*nodes); });
  return cudaSuccess;
}
