// A job's device and model, before any weight is loaded.
#pragma once

#include "backend/make_backend.h"
#include "job/model_files.h"
#include "job/model_inventory.h"

namespace llmb {

struct JobModel {
  DeviceChoice device;
  ModelInventory inventory;  // taken before `files` were read
  ModelFiles files;
};

}  // namespace llmb
