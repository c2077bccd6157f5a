// A job's orders to its workers in other processes: how the machine is shared among them.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "job/job_model.h"
#include "job/job_options.h"
#include "job/worker_messages.h"
#include "job/worker_pool.h"

namespace llmb {

// The longest that a step may take, in milliseconds; 0: any time.
double watchdog_ms(const JobOptions& options, DeviceKind device);

// An order to one of `count` processes of this machine, which share its cores and are given all its memory. REQUIRES:
// the job's arithmetic is chosen
WorkerOrder order_of(const JobOptions& options, const JobModel& model, int index, int count);

// REQUIRES: options.num_workers > 0, and the job's arithmetic is chosen
WorkerPoolOptions pool_options(const JobOptions& options, const JobModel& model,
                               const std::vector<std::string>& merged_adapters);

// In the worker, whose options were made of the same command line: sets what the job has chosen. kDataLoss: the model's
// files are others by now; kDeviceError: the device is another one.
Status follow_order(const WorkerOrder& order, const JobModel& model, JobOptions* options);

}  // namespace llmb
