#include "job/make_intake.h"

#include <utility>

#include "engine/request_preparer.h"
#include "job/data_mapping.h"

namespace llmb {

std::unique_ptr<RequestParser> make_request_parser(const JobOptions& o, const ModelFiles& model) {
  RequestLimits limits;
  limits.vocab_size = model.config.vocab_size;
  limits.adapters = {.are_there = !o.model.adapters.empty(),
                     .default_name = o.model.default_adapter,
                     .model_names = o.model.served_names};
  limits.adapters.model_names.push_back(o.model.name);
  limits.max_dimensions = max_dimensions(model);
  if (o.output.format == OutputFormat::kNpy)
    limits.only_dimensions = o.generation.dimensions.value_or(limits.max_dimensions);
  if (model.pooling) limits.num_labels = static_cast<int32_t>(model.pooling->labels.size());
  limits.text_prompt = model.text_prompt;
  limits.named_prompts = model.named_prompts;
  limits.takes_instructions = model.pooling && model.pooling->judges_pairs;
  limits.prompt = prompt_bound(*model.context);
  return std::make_unique<RequestParser>(model.default_params, limits, *make_data_mapping(o.data));
}

std::unique_ptr<RequestIntake> make_intake(const JobOptions& o, const ModelFiles& model,
                                           std::unique_ptr<LineReader> reader, std::shared_ptr<const Clock> clock,
                                           const CompletedLines* completed) {
  IntakeOptions options;
  options.seed = o.seed;
  options.request_rate = o.request_rate;
  options.completed = completed;
  options.packs_input = o.num_workers > 0;
  return std::make_unique<RequestIntake>(
      std::move(reader), make_request_parser(o, model), model.context, std::move(clock), options);
}

std::unique_ptr<RowReader> make_row_reader(const JobOptions& o, const ModelFiles& model) {
  return std::make_unique<RowReader>(make_request_parser(o, model), model.context, o.seed, o.data.format);
}

}  // namespace llmb
