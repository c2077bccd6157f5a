#include "job/request_intake.h"

#include <cmath>
#include <new>
#include <string>
#include <utility>
#include <variant>

#include "base/rng.h"
#include "job/packed_request.h"

namespace llmb {

namespace {

// Draws that no request's sampling uses: sampling keys have the run's seed and a line's index.
constexpr uint64_t kArrivalStream = ~uint64_t{0};

}  // namespace

RequestIntake::RequestIntake(std::unique_ptr<LineReader> reader, std::unique_ptr<RequestParser> parser,
                             std::shared_ptr<const ModelContext> model, std::shared_ptr<const Clock> clock,
                             const IntakeOptions& options)
    : reader_(std::move(reader)),
      parser_(std::move(parser)),
      model_(std::move(model)),
      clock_(std::move(clock)),
      options_(options) {}

Status RequestIntake::run(const std::function<bool(IntakeItem)>& take) {
  try {
    return read_all(take);
  } catch (const std::bad_alloc&) {
    return resource_exhausted("out of memory while reading the input");
  } catch (const std::exception& e) {
    return internal_error(std::string("while reading the input: ") + e.what());
  }
}

void RequestIntake::stop() {
  is_stopped_.store(true);
  reader_->stop();
}

Status RequestIntake::read_all(const std::function<bool(IntakeItem)>& take) {
  static const CompletedLines kNone;
  CompletedLineMatcher matcher(options_.completed ? *options_.completed : kNone);
  while (true) {
    LLMB_ASSIGN_OR_RETURN(std::optional<InputLine> line, reader_->next());
    if (!line.has_value()) return is_stopped_.load() ? Status() : matcher.check_end();
    LLMB_ASSIGN_OR_RETURN(const bool done, matcher.is_done(line->line));
    if (!done && !take(make_item(*line))) return {};
  }
}

IntakeItem RequestIntake::make_item(const InputLine& line) {
  IntakeItem item;
  item.input_bytes = reader_->bytes_consumed();
  const double now_ms = clock_->now_ms();
  auto parsed = parser_->parse(line);
  if (auto* failure = std::get_if<ParseFailure>(&parsed)) {
    item.failure = to_completion(std::move(*failure));
    return item;
  }
  item.input = std::move(std::get<InputRequest>(parsed));
  set_arrival(*item.input, now_ms, &item);
  return item;
}

void RequestIntake::prepare(IntakeItem* item) {
  InputRequest& input = *item->input;
  ParseFailure failure;
  failure.line = input.line;
  failure.id_json = input.id_json;
  failure.input_json = input.input_json;
  failure.form = input.form;
  failure.model_name = input.model_name;
  failure.is_chat = std::holds_alternative<ChatMessages>(input.prompt);
  if (options_.packs_input) item->packed_input = pack_request(input);
  auto prepared = prepare_request(std::move(input), *model_, options_.seed);
  item->input.reset();
  if (auto* request = std::get_if<std::shared_ptr<Request>>(&prepared)) {
    item->request = std::move(*request);
  } else {
    failure.error = std::move(std::get<RequestError>(prepared));
    item->failure = to_completion(std::move(failure));
  }
}

void RequestIntake::set_arrival(const InputRequest& input, double now_ms, IntakeItem* item) {
  if (input.arrival_ms) {
    item->arrival_ms = *input.arrival_ms;
  } else if (options_.request_rate) {
    const float u = sampling_uniform({options_.seed, kArrivalStream}, 0, num_draws_++);
    poisson_ms_ += -std::log1p(-double{u}) * 1000.0 / *options_.request_rate;
    item->arrival_ms = poisson_ms_;
  } else if (input.line.source == "-") {
    item->arrival_ms = now_ms;
    item->arrival_is_clock_time = true;
  }
}

}  // namespace llmb
