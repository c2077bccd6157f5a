// The manifest on disk, and the lock by which one run at a time owns an output.
#pragma once

#include <memory>
#include <string>

#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// Not thread-safe. Invariants:
//  1. From lock() to destruction this process holds the flock on whatever file has the manifest's name, also while it
//  is
//     replaced.
//  2. The file is whole at any moment: empty (never written), old or new.
//  3. Where nothing was ever written, the destructor leaves no file behind.
class ManifestFile {
 public:
  // Creates an empty file where there is none. kBusy: another process holds it, named in the message (exit 8);
  // kIoError: the directory is missing or may not be written (exit 6). `output` is what messages call the output.
  static Result<std::unique_ptr<ManifestFile>> lock(const std::string& path, const std::string& output,
                                                    FileOps& ops = real_file_ops());
  ~ManifestFile();
  ManifestFile(const ManifestFile&) = delete;
  ManifestFile& operator=(const ManifestFile&) = delete;

  const std::string& path() const { return path_; }
  const std::string& content() const { return content_; }  // as it was locked; "": none
  Status replace(const std::string& content);              // ok: on stable storage

 private:
  ManifestFile(std::string path, FileOps& ops) : path_(std::move(path)), ops_(ops) {}
  Result<bool> try_lock(const std::string& output);  // false: it was replaced meanwhile; again
  Status read();

  const std::string path_;
  FileOps& ops_;
  int fd_ = -1;
  std::string content_;
  bool was_empty_ = false;  // read to its end: nothing was ever written to it
};

}  // namespace llmb
