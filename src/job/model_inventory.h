// The files that a model is made of, by name, and how they were before any of them was read: whether all that was read
// is of one piece.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/file_identity.h"
#include "base/status.h"
#include "job/job_options.h"

namespace llmb {

struct ModelFile {
  std::string name;  // "model/config.json": its role and its name
  std::string path;
  std::optional<FileIdentity> identity;  // nullopt: there is no such file

  bool operator==(const ModelFile&) const = default;
};

// Every file that answers may depend on, also those that are not there, in a fixed order.
using ModelInventory = std::vector<ModelFile>;

// REQUIRES: find_model_dirs(). A file that has changed just now is waited for, so that any change from now on shows in
// its time. A directory that is not there has no files. kIoError.
Result<ModelInventory> take_inventory(const ModelSource& source);

// kDataLoss, naming a file: it has changed since, was removed or is new, so what was read in between may be of both.
Status check_inventory(const ModelSource& source, const ModelInventory& inventory);

}  // namespace llmb
