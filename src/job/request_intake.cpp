#include "job/request_intake.h"

#include <atomic>
#include <cmath>
#include <mutex>
#include <new>
#include <utility>

#include "base/rng.h"

namespace llmb {

namespace {

// Draws that no request's sampling uses: sampling keys have the run's seed and a line's index.
constexpr uint64_t kArrivalStream = ~uint64_t{0};

}  // namespace

struct RequestIntake::State {
  State(std::unique_ptr<LineReader> r, std::unique_ptr<RequestParser> p, std::shared_ptr<const ModelContext> m,
        std::shared_ptr<const Clock> c, const IntakeOptions& o)
      : reader(std::move(r)),
        parser(std::move(p)),
        model(std::move(m)),
        clock(std::move(c)),
        options(o),
        queue(o.window) {}

  const std::unique_ptr<LineReader> reader;
  const std::unique_ptr<RequestParser> parser;
  const std::shared_ptr<const ModelContext> model;
  const std::shared_ptr<const Clock> clock;
  const IntakeOptions options;
  BoundedQueue<IntakeItem> queue;
  std::mutex mutex;
  Status status;  // guarded by mutex
  double poisson_ms = 0;
  uint32_t num_draws = 0;
  std::atomic<bool> stopped{false};

  void run() {
    Status result;
    try {
      result = read_all();
    } catch (const std::bad_alloc&) {
      result = resource_exhausted("out of memory while reading the input");
    } catch (const std::exception& e) {
      result = internal_error(std::string("while reading the input: ") + e.what());
    }
    {
      std::lock_guard lock(mutex);
      status = std::move(result);
    }
    queue.close();
  }

  Status read_all() {
    static const CompletedLines kNone;
    CompletedLineMatcher matcher(options.completed ? *options.completed : kNone);
    while (true) {
      Result<std::optional<InputLine>> line = reader->next();
      if (!line.ok()) return line.status();
      if (!line->has_value()) return stopped.load() ? Status() : matcher.check_end();
      const Result<bool> done = matcher.is_done((*line)->line);
      if (!done.ok()) return done.status();
      if (!*done && !queue.push(make_item(**line))) return {};
    }
  }

  IntakeItem make_item(const InputLine& line) {
    IntakeItem item;
    item.input_bytes = reader->bytes_consumed();
    const double now_ms = clock->now_ms();
    auto parsed = parser->parse(line);
    if (auto* failure = std::get_if<ParseFailure>(&parsed)) {
      item.failure = to_completion(std::move(*failure));
      return item;
    }
    auto& input = std::get<InputRequest>(parsed);
    set_arrival(input, now_ms, &item);
    ParseFailure failure;
    failure.line = line.line;
    failure.id_json = input.id_json;
    failure.form = input.form;
    failure.model_name = input.model_name;
    failure.is_chat = std::holds_alternative<ChatMessages>(input.prompt);
    auto prepared = prepare_request(std::move(input), *model, options.seed);
    if (auto* request = std::get_if<std::shared_ptr<Request>>(&prepared)) {
      item.request = std::move(*request);
    } else {
      failure.error = std::move(std::get<RequestError>(prepared));
      item.failure = to_completion(std::move(failure));
    }
    return item;
  }

  void set_arrival(const InputRequest& input, double now_ms, IntakeItem* item) {
    if (input.arrival_ms) {
      item->arrival_ms = *input.arrival_ms;
    } else if (options.request_rate) {
      const float u = sampling_uniform({options.seed, kArrivalStream}, 0, num_draws++);
      poisson_ms += -std::log1p(-double{u}) * 1000.0 / *options.request_rate;
      item->arrival_ms = poisson_ms;
    } else if (input.line.source == "-") {
      item->arrival_ms = now_ms;
      item->arrival_is_clock_time = true;
    }
  }
};

RequestIntake::RequestIntake(std::unique_ptr<LineReader> reader, std::unique_ptr<RequestParser> parser,
                             std::shared_ptr<const ModelContext> model, std::shared_ptr<const Clock> clock,
                             const IntakeOptions& options)
    : state_(
          std::make_unique<State>(std::move(reader), std::move(parser), std::move(model), std::move(clock), options)),
      thread_([this] { state_->run(); }) {}

RequestIntake::~RequestIntake() {
  stop();
  thread_.join();
}

std::optional<IntakeItem> RequestIntake::next(double timeout_ms) {
  if (peeked_) return std::exchange(peeked_, std::nullopt);
  return state_->queue.pop_for(timeout_ms);
}

bool RequestIntake::wait_for_item(double timeout_ms) {
  if (!peeked_) peeked_ = state_->queue.pop_for(timeout_ms);
  return peeked_.has_value();
}

size_t RequestIntake::num_ready() const { return state_->queue.size() + (peeked_ ? 1 : 0); }

bool RequestIntake::at_end() const { return !peeked_ && state_->queue.drained(); }

Status RequestIntake::status() const {
  std::lock_guard lock(state_->mutex);
  return state_->status;
}

void RequestIntake::stop() {
  state_->stopped.store(true);
  state_->reader->stop();
  peeked_.reset();
  state_->queue.close();
  while (state_->queue.pop_for(0)) {
  }
}

std::optional<int64_t> RequestIntake::total_bytes() const { return state_->reader->total_bytes(); }

}  // namespace llmb
