// Files that are replaced atomically and durably: written under another name, synced, renamed, the directory synced.
#pragma once

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_identity.h"
#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// The identity of the file under this name; nullopt: nothing is there. kIoError: it cannot be looked at, or is no file.
Result<std::optional<FileIdentity>> identify_file(FileOps& ops, const std::string& path);

// Repeats a call that a signal interrupted.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// open(), again where a signal interrupted it.
int open_retrying(FileOps& ops, const std::string& path, int flags, mode_t mode);

Status write_fully(FileOps& ops, int fd, std::string_view bytes, const std::string& name);

std::string directory_of(const std::string& path);

// Makes renames and new names in the directory durable.
Status sync_directory_of(FileOps& ops, const std::string& path);

Status rename_durably(FileOps& ops, const std::string& from, const std::string& to);

// Replaces only the file `replaces`, and only while it is unchanged: kIoError where anything else has the name.
Status move_durably(FileOps& ops, const std::string& from, const std::string& to,
                    const std::optional<FileIdentity>& replaces);

// Not thread-safe. Until commit() the file is untouched; a writer destroyed without it removes its temporary file.
class AtomicFileWriter {
 public:
  AtomicFileWriter(std::string path, std::string temporary, FileOps& ops);
  ~AtomicFileWriter();
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;

  Status open();
  Status append(std::string_view bytes);
  // Takes the place of the first bytes that were appended.
  Status replace_beginning(std::string_view bytes);
  // Ok: on stable storage, under its name.
  Status commit();
  bool is_renamed() const { return renamed_; }                // the name means the new file
  const FileIdentity& identity() const { return identity_; }  // of the new file, after commit()
  int fd() const { return fd_; }  // of the new file; the caller closes what it takes with release_fd()
  int release_fd();

 private:
  Status flush();

  const std::string path_, temporary_;
  FileOps& ops_;
  int fd_ = -1;
  bool renamed_ = false;
  FileIdentity identity_;
  std::string buffer_;
};

}  // namespace llmb
