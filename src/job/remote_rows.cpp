#include "job/remote_rows.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "engine/prompt_transfer.h"
#include "job/packed_request.h"

namespace llmb {

namespace {

// The job is gone: nobody wants what this process computes.
[[noreturn]] void leave_at_once() { ::_exit(0); }

}  // namespace

void JobLink::send(MessageKind kind, std::string_view payload) {
  const std::string bytes = frame(kind, payload);
  std::lock_guard lock(mutex_);
  for (std::string_view rest = bytes; !rest.empty();) {
    const ssize_t count = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) leave_at_once();
    rest.remove_prefix(static_cast<size_t>(count));
  }
}

Message JobLink::receive() {
  std::array<char, 1 << 16> bytes;
  while (true) {
    if (auto message = received_.next()) return std::move(*message);
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) leave_at_once();
    received_.add({bytes.data(), static_cast<size_t>(count)});
  }
}

void RemoteRows::begin() {
  std::thread([this] {
    while (true) take(link_.receive());
  }).detach();
}

void RemoteRows::take(const Message& message) {
  if (message.kind == MessageKind::kRow) return take_row(unpack_message<RowMessage>(message.payload));
  if (message.kind == MessageKind::kInterrupt) interrupted_.store(unpack_message<int32_t>(message.payload));
  std::lock_guard lock(mutex_);
  has_no_more_ |= message.kind == MessageKind::kNoMore;
  has_ended_ |= message.kind == MessageKind::kEnd;
  changed_.notify_all();
}

void RemoteRows::take_row(const RowMessage& row) {
  InputRequest input = unpack_request(row.packed_input);
  auto prepared = prepare_request(std::move(input), *model_, seed_);
  if (auto* error = std::get_if<RequestError>(&prepared)) {
    AnswerMessage answer;
    answer.ordinal = row.ordinal;
    answer.error = std::move(*error);
    return link_.send(MessageKind::kAnswer, pack_message(answer));
  }
  auto request = std::move(std::get<std::shared_ptr<Request>>(prepared));
  if (prompt_block_size_ > 0) request = prompt_request(*request, prompt_block_size_);
  std::shared_ptr<PromptBlocks> blocks;
  if (!row.packed_blocks.empty()) {
    blocks = std::make_shared<PromptBlocks>(unpack_message<PromptBlocks>(row.packed_blocks));
    blocks->scheduled_ms -= clock_start_ms_;
  }
  std::lock_guard lock(mutex_);
  has_no_more_ = false;
  rows_.push_back({row.ordinal, std::move(request), row.arrival_ms - clock_start_ms_, true, "", std::move(blocks)});
  changed_.notify_all();
}

std::optional<WorkItem> RemoteRows::next(double timeout_ms) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double, std::milli>(timeout_ms),
                    [&] { return !rows_.empty() || has_ended_ || interrupted_.load() > 0; });
  if (rows_.empty()) return std::nullopt;
  WorkItem row = std::move(rows_.front());
  rows_.pop_front();
  ++num_in_engine_;
  return row;
}

bool RemoteRows::at_end() const {
  std::lock_guard lock(mutex_);
  return rows_.empty() && (has_ended_ || (has_no_more_ && num_in_engine_ > 0));
}

void RemoteRows::stop() {
  std::lock_guard lock(mutex_);
  rows_.clear();
  has_ended_ = true;
}

void RemoteRows::put(FinishedItem item) {
  {
    std::lock_guard lock(mutex_);
    --num_in_engine_;
  }
  if (prompt_block_size_ > 0) return put_blocks(item);
  link_.send(MessageKind::kAnswer, pack_message(answer_message(item)));
}

void RemoteRows::put_blocks(const FinishedItem& item) {
  BlocksMessage message = {item.ordinal, ""};
  if (item.blocks) {
    PromptBlocks blocks = *item.blocks;
    blocks.scheduled_ms += clock_start_ms_;
    message.packed_blocks = pack_message(blocks);
  }
  link_.send(MessageKind::kBlocks, pack_message(message));
}

}  // namespace llmb
