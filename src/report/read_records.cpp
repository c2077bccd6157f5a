#include "report/read_records.h"

#include <simdjson.h>

#include <algorithm>
#include <string>

#include "core/request_sample.h"

namespace llmb {

namespace {

namespace dom = simdjson::dom;

constexpr size_t kMaxKinds = 16, kMaxMessageBytes = 400;
constexpr int kNumBins = 40;

double number(const dom::element& object, const char* name) {
  double value = 0;
  return object[name].get(value) == simdjson::SUCCESS ? value : 0;
}

std::string text(const dom::element& object, const char* name) {
  std::string_view value;
  return object[name].get(value) == simdjson::SUCCESS ? std::string(value.substr(0, kMaxMessageBytes)) : "";
}

Distribution distribution(const QuantileSketch& s, Spacing spacing) {
  return {s.mean(),         s.quantile(0.5), s.quantile(0.9),
          s.quantile(0.95), s.quantile(0.99), s.max(), s.histogram(kNumBins, spacing)};
}

}  // namespace

struct RecordFigures::State {
  simdjson::dom::parser parser;
  int64_t num_completed = 0, num_failed = 0;
  double input_tokens = 0, output_tokens = 0;
  bool has_metrics = false;
  QuantileSketch ttft_ms, tpot_ms, itl_ms, e2e_ms, queue_ms, input_lengths, output_lengths;
  RequestSample sample;
  std::vector<RunError> errors;

  void count_error(const dom::element& error) {
    ++num_failed;
    const std::string code = text(error, "code");
    const auto known = std::find_if(errors.begin(), errors.end(), [&](const RunError& e) { return e.code == code; });
    if (known != errors.end()) ++known->count;
    else if (errors.size() < kMaxKinds) errors.push_back({code, text(error, "message"), text(error, "line"), 1});
  }

  void count_answer(const dom::element& record, const dom::element& usage, const char* id_name) {
    ++num_completed;
    RequestFigures r;
    r.num_input_tokens = static_cast<int64_t>(number(usage, "prompt_tokens"));
    r.num_output_tokens = static_cast<int64_t>(number(usage, "completion_tokens"));
    input_tokens += static_cast<double>(r.num_input_tokens);
    output_tokens += static_cast<double>(r.num_output_tokens);
    input_lengths.add(static_cast<double>(r.num_input_tokens));
    output_lengths.add(static_cast<double>(r.num_output_tokens));
    dom::element metrics;
    if (record["metrics"].get(metrics) != simdjson::SUCCESS) return;
    has_metrics = true;
    r.queue_ms = number(metrics, "queue_ms");
    r.ttft_ms = number(metrics, "ttft_ms");
    r.e2e_ms = number(metrics, "e2e_ms");
    r.place = "line " + std::to_string(static_cast<int64_t>(number(record, "index")) + 1);
    dom::element id;
    if (record[id_name].get(id) == simdjson::SUCCESS && !id.is_null()) r.id_json = simdjson::minify(id);
    queue_ms.add(r.queue_ms);
    ttft_ms.add(r.ttft_ms);
    e2e_ms.add(r.e2e_ms);
    if (r.num_output_tokens > 1) tpot_ms.add(number(metrics, "tpot_ms")), itl_ms.add(number(metrics, "itl_p50_ms"));
    sample.add(std::move(r));
  }

  bool add(std::string_view line) {
    dom::element record, hash, error, response, usage;
    if (parser.parse(line.data(), line.size()).get(record) != simdjson::SUCCESS || !record.is_object() ||
        record["hash"].get(hash) != simdjson::SUCCESS)
      return false;
    if (record["response"].get(response) == simdjson::SUCCESS) {
      if (response["body"]["error"].get(error) == simdjson::SUCCESS) count_error(error);
      else if (response["body"]["usage"].get(usage) == simdjson::SUCCESS) count_answer(record, usage, "custom_id");
      else return false;
      return true;
    }
    if (record["error"].get(error) == simdjson::SUCCESS) count_error(error);
    else if (record["usage"].get(usage) == simdjson::SUCCESS) count_answer(record, usage, "id");
    else return false;
    return true;
  }
};

RecordFigures::RecordFigures() : state_(std::make_unique<State>()) {}
RecordFigures::~RecordFigures() = default;

bool RecordFigures::add(std::string_view line) { return state_->add(line); }
int64_t RecordFigures::num_records() const { return state_->num_completed + state_->num_failed; }

void RecordFigures::put_into(RunData* run) const {
  const State& s = *state_;
  run->completed = s.num_completed;
  run->failed = s.num_failed;
  run->input_tokens = s.input_tokens;
  run->output_tokens = s.output_tokens;
  run->errors = s.errors;
  run->sample.clear();
  run->slowest.clear();
  if (s.num_completed == 0) return;
  run->input_lengths = distribution(s.input_lengths, Spacing::kLinear);
  run->output_lengths = distribution(s.output_lengths, Spacing::kLinear);
  if (!s.has_metrics) return;
  run->ttft_ms = distribution(s.ttft_ms, Spacing::kLogarithmic);
  run->tpot_ms = distribution(s.tpot_ms, Spacing::kLogarithmic);
  run->itl_ms = distribution(s.itl_ms, Spacing::kLogarithmic);
  run->e2e_ms = distribution(s.e2e_ms, Spacing::kLogarithmic);
  run->queue_ms = distribution(s.queue_ms, Spacing::kLogarithmic);
  const auto as_request = [](const RequestFigures& r) {
    return RunRequest{r.place, r.id_json, static_cast<double>(r.num_input_tokens), static_cast<double>(r.num_output_tokens),
                      r.queue_ms, r.ttft_ms, r.e2e_ms};
  };
  for (const RequestFigures& r : s.sample.drawn()) run->sample.push_back(as_request(r));
  for (const RequestFigures& r : s.sample.slowest()) run->slowest.push_back(as_request(r));
}

}  // namespace llmb
