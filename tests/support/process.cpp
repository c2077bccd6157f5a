#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace llmb::test {

namespace {

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    read_end = fds[0];
    write_end = fds[1];
  }
};

// Feeds `input` and reads both outputs until the child has closed them. False: time is up.
bool exchange(int to_child, const std::string& input, int from_out, int from_err, int timeout_s,
              ProcessResult* result) {
  fcntl(to_child, F_SETFL, O_NONBLOCK);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_s);
  size_t sent = 0;
  bool input_open = true, out_open = true, err_open = true;
  while (out_open || err_open) {
    if (input_open && sent == input.size()) {
      close(to_child);
      input_open = false;
    }
    pollfd fds[3] = {{out_open ? from_out : -1, POLLIN, 0},
                     {err_open ? from_err : -1, POLLIN, 0},
                     {input_open ? to_child : -1, POLLOUT, 0}};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    poll(fds, 3, static_cast<int>(left));
    char buffer[65536];
    const auto drain = [&](pollfd& fd, std::string& into, bool& open) {
      if (fd.revents == 0) return;
      const ssize_t n = read(fd.fd, buffer, sizeof buffer);
      if (n > 0) into.append(buffer, static_cast<size_t>(n));
      else open = false;
    };
    drain(fds[0], result->out, out_open);
    drain(fds[1], result->err, err_open);
    if (fds[2].revents != 0) {
      const ssize_t n = write(to_child, input.data() + sent, input.size() - sent);
      if (n > 0) sent += static_cast<size_t>(n);
      else sent = input.size();  // it reads no more
    }
  }
  if (input_open) close(to_child);
  return true;
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& argv, const std::string& input, int timeout_s) {
  signal(SIGPIPE, SIG_IGN);
  const Pipe in, out, err;
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    signal(SIGPIPE, SIG_DFL);
    dup2(in.read_end, 0);
    dup2(out.write_end, 1);
    dup2(err.write_end, 2);
    std::vector<char*> arguments;
    for (const std::string& a : argv) arguments.push_back(const_cast<char*>(a.c_str()));
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(in.read_end);
  close(out.write_end);
  close(err.write_end);
  ProcessResult result;
  const bool ended = exchange(in.write_end, input, out.read_end, err.read_end, timeout_s, &result);
  if (!ended) kill(child, SIGKILL);
  close(out.read_end);
  close(err.read_end);
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (!ended) result.err += "\n(killed by the test after " + std::to_string(timeout_s) + " s)";
  return result;
}

ProcessResult run_shell(const std::string& command, int timeout_s) {
  return run_process({"/bin/sh", "-c", command}, "", timeout_s);
}

TemporaryDirectory::TemporaryDirectory(bool in_memory) {
  const std::filesystem::path memory = "/dev/shm";
  const bool use_memory = in_memory && std::filesystem::is_directory(memory);
  std::string pattern = ((use_memory ? memory : std::filesystem::temp_directory_path()) / "llmb-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace llmb::test
