#include "base/process_start.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace llmb {

bool open_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // Not /dev/null: opened again by the name /dev/stdout it would swallow results, and by /dev/stdin be an empty
    // input.
    if (::open("/", O_PATH | O_DIRECTORY) != fd) return false;  // the lowest number that is free
  }
  return true;
}

Status check_standard_descriptor(int fd, bool for_writing) {
  static constexpr const char* kNames[] = {"standard input", "standard output", "standard error"};
  const int flags = ::fcntl(fd, F_GETFL);
  const int mode = flags & O_ACCMODE;
  const bool is_open = flags >= 0 && (flags & O_PATH) == 0;
  if (is_open && (mode == O_RDWR || mode == (for_writing ? O_WRONLY : O_RDONLY))) return {};
  const std::string name = kNames[fd];
  return io_error(name + ": " + (is_open ? "open, but not for " : "closed; it is needed for ") +
                  (for_writing ? "writing" : "reading") + "; redirect it, or name a file instead");
}

void enlarge_thread_stacks() {
  constexpr size_t kStackBytes = size_t{8} << 20;
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  size_t stack_bytes = 0;
  if (pthread_attr_getstacksize(&attributes, &stack_bytes) == 0 && stack_bytes < kStackBytes &&
      pthread_attr_setstacksize(&attributes, kStackBytes) == 0)
    pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

}  // namespace llmb
