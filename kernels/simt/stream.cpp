#include "kernels/simt/stream.h"

#include <map>

#include "kernels/simt/device_state.h"
#include "kernels/simt/launch.h"
#include "kernels/simt/settings.h"
#include "kernels/simt/stream_order.h"

namespace llmb::simt {

namespace {

struct Streams {
  std::shared_ptr<Stream> standard = std::make_shared<Stream>();
  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> made;
};

Streams& streams() {
  static Streams instance;
  return instance;
}

uint64_t num_unfinished_waits = 0;

void wait_for(const Point& point) {
  num_unfinished_waits += point.stream->num_done < point.sequence;
  run_until(point);
}

// 0 where no piece of work has been taken that waits for others.
int run_depth = 0;

// A stream other than `than` with work that may run now, or null: so often as set_interleaving() says.
Stream* draw_other(const Stream& than) {
  if (run_depth > 0 || !draw_interleaved()) return nullptr;
  std::vector<Stream*> others;
  for (const auto& [handle, made] : streams().made)
    if (made->state.get() != &than && !made->state->queue.empty()) others.push_back(made->state.get());
  return others.empty() ? nullptr : others[draw_below(others.size())];
}

}  // namespace

// An event recorded in a recording brings the stream that waits for it into the same recording.
cudaError_t wait_in_capture(const std::shared_ptr<Stream>& stream, const CUevent_st& event) {
  if (stream->capture == nullptr) {
    if (event.capture->origin == nullptr) return cudaErrorCapturedEvent;  // that recording is over
    if (stream == streams().standard) return cudaErrorStreamCaptureImplicit;
    stream->capture = event.capture;
    stream->frontier.clear();
    event.capture->streams.push_back(stream);
  }
  if (stream->capture != event.capture) return cudaErrorStreamCaptureIsolation;
  stream->frontier.insert(stream->frontier.end(), event.frontier.begin(), event.frontier.end());
  return cudaSuccess;
}

std::shared_ptr<Stream> stream_state(cudaStream_t stream) {
  if (stream == nullptr) return streams().standard;
  const auto found = streams().made.find(stream);
  return found == streams().made.end() ? nullptr : found->second->state;
}

void enqueue(const std::shared_ptr<Stream>& stream, std::function<void()> run, std::vector<Point> after) {
  if (stream->capture != nullptr) {
    stream->capture->nodes.push_back({std::move(run), stream->frontier});
    stream->frontier = {stream->capture->nodes.size() - 1};
    return;
  }
  // The default stream and the blocking ones take turns.
  if (stream == streams().standard) {
    for (const auto& [handle, made] : streams().made) {
      if (made->state->blocking) after.push_back({made->state, made->state->num_queued});
    }
  } else if (stream->blocking) {
    after.push_back({streams().standard, streams().standard->num_queued});
  }
  stream->queue.push_back({std::move(run), std::move(after)});
  ++stream->num_queued;
  if (draw_eager()) run_until({stream, stream->num_queued});
}

void run_next(Stream& stream) {
  const Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  ++stream.num_done;  // also where it throws: the rest stays usable
  ++run_depth;
  const auto leave = [](int* depth) { --*depth; };
  const std::unique_ptr<int, decltype(leave)> inside(&run_depth, leave);
  for (const Point& point : work.after) run_until(point);
  work.run();
}

void run_until(const Point& point) {
  while (point.stream->num_done < point.sequence) {
    Stream* const other = draw_other(*point.stream);
    run_next(other != nullptr ? *other : *point.stream);
  }
}

void run_everything() {
  run_until({streams().standard, streams().standard->num_queued});
  for (const auto& [handle, made] : streams().made) run_until({made->state, made->state->num_queued});
}

uint64_t num_waits() {
  const auto lock = lock_state();
  return num_unfinished_waits;
}

bool run_any() {
  const auto lock = lock_state();
  Stream* next = streams().standard->queue.empty() ? nullptr : streams().standard.get();
  for (const auto& [handle, made] : streams().made)
    if (next == nullptr && !made->state->queue.empty()) next = made->state.get();
  if (next != nullptr) run_next(*next);
  return next != nullptr;
}

}  // namespace llmb::simt

using llmb::simt::Call;
using llmb::simt::EventTime;
using llmb::simt::Point;
using llmb::simt::Stream;

cudaError_t cudaDeviceSynchronize() {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (llmb::simt::capture_forbids_call()) return Call::result(cudaErrorStreamCaptureUnsupported);
  llmb::simt::run_everything();
  return cudaSuccess;
}

// ---- streams ------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  auto made = std::make_unique<CUstream_st>();
  made->state = std::make_shared<Stream>();
  made->state->blocking = (flags & cudaStreamNonBlocking) == 0;
  *stream = made.get();
  llmb::simt::streams().made[*stream] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Call call;
  const auto state = llmb::simt::stream_state(stream);
  if (stream == nullptr || state == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  if (llmb::simt::spoils_capture(*state)) return Call::result(cudaErrorStreamCaptureUnsupported);
  llmb::simt::run_until({state, state->num_queued});
  llmb::simt::streams().made.erase(stream);
  return Call::result(call.injected());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const auto state = llmb::simt::stream_state(stream);
  if (state == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  if (llmb::simt::spoils_capture(*state)) return Call::result(cudaErrorStreamCaptureUnsupported);
  llmb::simt::wait_for({state, state->num_queued});
  return cudaSuccess;
}

// Every question lets one piece of work through.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const auto state = llmb::simt::stream_state(stream);
  if (state == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  if (llmb::simt::spoils_capture(*state)) return Call::result(cudaErrorStreamCaptureUnsupported);
  if (state->queue.empty()) return cudaSuccess;
  llmb::simt::run_next(*state);
  return cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const auto state = llmb::simt::stream_state(stream);
  if (state == nullptr || event == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  if (event->capture != nullptr) return Call::result(llmb::simt::wait_in_capture(state, *event));
  if (event->point.stream == nullptr) return cudaSuccess;
  if (llmb::simt::spoils_capture(*state)) return Call::result(cudaErrorStreamCaptureIsolation);
  llmb::simt::enqueue(state, [] {}, {event->point});
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const auto state = llmb::simt::stream_state(stream);
  if (state == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  llmb::simt::enqueue(state, [function, argument] { function(argument); });
  return cudaSuccess;
}

// ---- events -------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  *event = new CUevent_st();
  (*event)->time = std::make_shared<EventTime>();
  (*event)->timing = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Call call;
  if (event == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  delete event;
  return Call::result(call.injected());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const auto state = llmb::simt::stream_state(stream);
  if (state == nullptr || event == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  event->capture = state->capture;
  event->frontier = state->frontier;
  event->point = {};
  if (state->capture != nullptr) return cudaSuccess;
  llmb::simt::enqueue(state, [time = event->time] { time->time = std::chrono::steady_clock::now(); });
  event->point = {state, state->num_queued};
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (event == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  if (event->capture != nullptr) return Call::result(cudaErrorCapturedEvent);
  const Point& point = event->point;
  if (point.stream == nullptr || point.stream->num_done >= point.sequence) return cudaSuccess;
  llmb::simt::run_next(*point.stream);
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (event == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  if (event->capture != nullptr) return Call::result(cudaErrorCapturedEvent);
  if (event->point.stream != nullptr) llmb::simt::wait_for(event->point);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  for (const cudaEvent_t event : {start, end}) {
    if (event == nullptr || event->point.stream == nullptr || !event->timing) {
      return Call::result(cudaErrorInvalidResourceHandle);
    }
    if (event->point.stream->num_done < event->point.sequence) return Call::result(cudaErrorNotReady);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->time->time - start->time->time).count();
  return cudaSuccess;
}

// ---- kernels ------------------------------------------------------------------------------------------------------

namespace llmb::cuda::simt {

cudaError_t launch_kernel(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                          std::function<void()> thread_body) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const auto state = ::llmb::simt::stream_state(stream);
  if (state == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  const uint64_t num_threads = uint64_t{block.x} * block.y * block.z;
  if (num_threads == 0 || num_threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535) {
    return Call::result(cudaErrorInvalidConfiguration);
  }
  if (shared_bytes > ::llmb::simt::allowed_shared_bytes(kernel)) return Call::result(cudaErrorInvalidValue);
  const ::llmb::simt::Grid shape{grid, block, shared_bytes, kernel};
  ::llmb::simt::enqueue(state, [shape, body = std::move(thread_body)] {
    ::llmb::simt::Grid with_seed = shape;  // another order in every launch of a graph
    with_seed.seed = ::llmb::simt::next_launch_seed();
    ::llmb::simt::count_run(shape.kernel);
    ::llmb::simt::run_grid(with_seed, body);
  });
  return cudaSuccess;
}

}  // namespace llmb::cuda::simt
