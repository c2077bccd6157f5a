#include "job/make_intake.h"

#include <utility>

#include "engine/request_preparer.h"
#include "job/data_mapping.h"

namespace llmb {

std::unique_ptr<RequestIntake> make_intake(const JobOptions& o, const ModelFiles& model,
                                           std::unique_ptr<LineReader> reader, std::shared_ptr<const Clock> clock,
                                           const CompletedLines* completed) {
  RequestLimits limits;
  limits.vocab_size = model.config.vocab_size;
  limits.prompt = prompt_bound(*model.context);
  IntakeOptions options;
  options.seed = o.seed;
  options.request_rate = o.request_rate;
  options.completed = completed;
  return std::make_unique<RequestIntake>(
      std::move(reader), std::make_unique<RequestParser>(model.default_params, limits, *make_data_mapping(o.data)), model.context,
      std::move(clock), options);
}

}  // namespace llmb
