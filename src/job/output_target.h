// Where an output's records end up, and the names beside it that a run needs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// Symbolic links are followed.
struct OutputTarget {
  bool is_stream = false;  // stdout, a pipe or a device
  std::string path;        // of a file
  std::string partial() const { return path + ".partial"; }
  std::string manifest() const { return path + ".manifest.json"; }
  std::string index() const { return path + ".index.jsonl"; }  // of an output of rows
};

// Changes nothing. kInvalidArgument: a directory, one of the inputs, or a name so long that those beside it do not fit;
// kIoError: cannot be looked at.
Result<OutputTarget> resolve_output(const std::string& path, const std::vector<std::string>& inputs,
                                    FileOps& ops = real_file_ops());

// kInvalidArgument where `output`, to which messages give this name, is one of the inputs ("-": stdin).
Status check_not_an_input(FileOps& ops, const std::vector<std::string>& inputs, const struct stat& output,
                          const std::string& name);

// kIoError that names the file and errno `code`.
Status error_at(const std::string& what, const std::string& path, int code);

// kInvalidArgument where the file system has no room for a name that is so much longer.
Status check_name_length(const std::string& path, std::string_view suffix = "");

}  // namespace llmb
