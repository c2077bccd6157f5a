#include "job/ordered_model.h"

#include <utility>

#include "backend/make_backend.h"
#include "job/merge_choice.h"
#include "job/model_files.h"
#include "job/model_inventory.h"
#include "job/worker_order.h"
#include "job/worker_setup.h"

namespace llmb {

std::optional<JobStop> load_ordered_model(const WorkerOrder& order, JobOptions* options, JobModel* model) {
  auto device = choose_device(options->device);
  if (!device.ok()) return JobStop{JobEnd::kDeviceFault, device.status().message()};
  model->device = std::move(*device);
  if (options->speculation.is_default)
    options->speculation.lookup = guesses_by_default(model->device.kind, options->load);
  const bool needs_weights = model->device.kind != DeviceKind::kLedger;
  if (const Status found = find_model_dirs(&options->model, needs_weights); !found.ok()) return model_files_stop(found);
  auto inventory = take_inventory(options->model);
  if (!inventory.ok()) return model_stop(inventory.status());
  model->inventory = std::move(*inventory);
  auto files = load_model_files(*options);
  if (!files.ok()) return model_files_stop(files.status());
  model->files = std::move(*files);
  if (const Status status = follow_states(model->files.config, options); !status.ok()) return model_stop(status);
  if (const Status status = follow_order(order, *model, options); !status.ok()) return model_stop(status);
  if (const Status status = load_model_context(options->model, &model->files); !status.ok())
    return model_files_stop(status);
  mark_merged(order.merged_adapters, model->files);
  return {};
}

}  // namespace llmb
