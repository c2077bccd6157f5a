// Opening files: why it failed, and named pipes whose other end nobody has opened yet.
#pragma once

#include <functional>
#include <string>

#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// "PATH: cannot open: …" for errno `error`. kNotFound: there is no such file; kResourceExhausted: no memory, or no
// descriptor is left; else kIoError.
Status open_error(const std::string& path, int error);

// A descriptor to write to, which the caller closes. Where nobody reads a named pipe yet, waits as long as
// keep_waiting() says so, asking ten times a second; then kCancelled. Else kIoError.
Result<int> open_for_writing(FileOps& ops, const std::string& path, int flags,
                             const std::function<bool()>& keep_waiting);

}  // namespace llmb
