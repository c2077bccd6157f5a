#include "io/byte_source.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "base/durable_file.h"
#include "base/open_file.h"
#include "base/process_start.h"

namespace llmb {

namespace {

constexpr size_t kStoredChunk = 256 << 10;
constexpr int kStopCheckMs = 100;

// The stored bytes with a buffer in front, of which data() is not consumed yet.
class StoredInput {
 public:
  StoredInput(std::string input, ByteSourceContext context) : input_(std::move(input)), context_(context) {}
  StoredInput(const StoredInput&) = delete;
  ~StoredInput() {
    if (owns_fd_ && fd_ >= 0) context_.ops.close(fd_);
  }

  Status open() {
    if (input_ == "-") {
      LLMB_RETURN_IF_ERROR(check_standard_descriptor(STDIN_FILENO, /*for_writing=*/false));
      fd_ = STDIN_FILENO;
    } else {
      // Without waiting: wait_readable() waits for whoever writes to a named pipe.
      fd_ = open_retrying(context_.ops, input_, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
      if (fd_ < 0) return open_error(input_, errno);
      owns_fd_ = true;
    }
    struct stat st {};
    if (context_.ops.fstat(fd_, &st) != 0) return error("cannot stat", errno);
    if (S_ISDIR(st.st_mode)) return error("cannot read", EISDIR);
    is_regular_ = S_ISREG(st.st_mode);
    if (is_regular_) bytes_left_ = st.st_size - std::max<int64_t>(0, ::lseek(fd_, 0, SEEK_CUR));
    buffer_.resize(kStoredChunk);
    return {};
  }

  // Appends to the buffer. False at the end of the input. REQUIRES: the buffer is not full.
  Result<bool> fill() {
    if (at_end_) return false;
    if (begin_ == end_) begin_ = end_ = 0;
    LLMB_RETURN_IF_ERROR(wait_readable());
    ssize_t count = context_.ops.read(fd_, buffer_.data() + end_, buffer_.size() - end_);
    while (count < 0 && (errno == EINTR || (errno == EAGAIN && !is_regular_))) {
      LLMB_RETURN_IF_ERROR(wait_readable());
      count = context_.ops.read(fd_, buffer_.data() + end_, buffer_.size() - end_);
    }
    if (count < 0) return error("cannot read", errno);
    bytes_left_ -= count;
    if (count == 0 && bytes_left_ > 0)
      return io_error(input_name(input_) + ": became shorter while it was read: " + std::to_string(bytes_left_) +
                      " bytes that were there are gone");
    if (count == 0) at_end_ = true;
    end_ += static_cast<size_t>(count);
    context_.bytes_read.fetch_add(count, std::memory_order_relaxed);
    return count > 0;
  }

  std::string_view data() const { return {buffer_.data() + begin_, end_ - begin_}; }
  void consume(size_t size) { begin_ += size; }
  const std::string& input() const { return input_; }
  bool named(std::string_view suffix) const { return std::string_view(input_).ends_with(suffix); }
  Status damaged(const std::string& what) const { return data_loss(input_name(input_) + ": " + what); }

 private:
  Status error(const char* what, int code) const {
    return io_error(input_name(input_) + ": " + what + ": " + std::strerror(code));
  }

  // A pipe or terminal may stay silent for hours: wait in short pieces so that stop() is heard.
  Status wait_readable() const {
    while (!is_regular_) {
      if (context_.stopped.load(std::memory_order_relaxed)) return cancelled(input_name(input_) + ": stopped");
      const int ready = context_.ops.poll(fd_, POLLIN, kStopCheckMs);
      if (ready > 0) break;
      if (ready < 0 && errno != EINTR) return error("cannot wait for input", errno);
    }
    return {};
  }

  std::string input_;
  ByteSourceContext context_;
  int fd_ = -1;
  bool owns_fd_ = false;
  bool is_regular_ = false;
  bool at_end_ = false;
  int64_t bytes_left_ = 0;  // of those that a file had when it was opened; negative where it grew
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
};

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(std::unique_ptr<StoredInput> stored) : stored_(std::move(stored)) {}

  Result<size_t> read(char* buffer, size_t size) override {
    if (stored_->data().empty()) {
      LLMB_ASSIGN_OR_RETURN(bool more, stored_->fill());
      if (!more) return size_t{0};
    }
    const size_t count = std::min(size, stored_->data().size());
    std::memcpy(buffer, stored_->data().data(), count);
    stored_->consume(count);
    return count;
  }

 private:
  std::unique_ptr<StoredInput> stored_;
};

class GzipSource final : public ByteSource {
 public:
  explicit GzipSource(std::unique_ptr<StoredInput> stored) : stored_(std::move(stored)) {}
  ~GzipSource() override {
    if (initialised_) inflateEnd(&stream_);
  }

  void init() {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
    initialised_ = true;
  }

  Result<size_t> read(char* buffer, size_t size) override {
    while (true) {
      if (stored_->data().empty()) {
        LLMB_ASSIGN_OR_RETURN(bool more, stored_->fill());
        if (!more && !between_members_) return stored_->damaged("the gzip data ends too early; is the file cut off?");
        if (!more) return size_t{0};
      }
      if (between_members_ && !begin_member()) continue;
      Result<size_t> count = inflate_some(buffer, size);
      if (!count.ok() || *count > 0) return count;
    }
  }

 private:
  // False where only padding is left so far: zeros, as tapes and block devices leave them.
  bool begin_member() {
    const std::string_view data = stored_->data();
    stored_->consume(std::min(data.find_first_not_of('\0'), data.size()));
    if (stored_->data().empty()) return false;
    inflateReset(&stream_);
    between_members_ = false;
    return true;
  }

  Result<size_t> inflate_some(char* buffer, size_t size) {
    const std::string_view data = stored_->data();
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
    stream_.avail_in = static_cast<uInt>(data.size());
    stream_.next_out = reinterpret_cast<Bytef*>(buffer);
    stream_.avail_out = static_cast<uInt>(size);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    stored_->consume(data.size() - stream_.avail_in);
    if (code == Z_STREAM_END) between_members_ = true;
    else if (code != Z_OK && code != Z_BUF_ERROR)
      return stored_->damaged(std::string("damaged gzip data: ") + (stream_.msg ? stream_.msg : zError(code)));
    return size - stream_.avail_out;
  }

  std::unique_ptr<StoredInput> stored_;
  z_stream stream_{};
  bool initialised_ = false;
  bool between_members_ = false;
};

class ZstdSource final : public ByteSource {
 public:
  explicit ZstdSource(std::unique_ptr<StoredInput> stored) : stored_(std::move(stored)), stream_(ZSTD_createDStream()) {
    if (!stream_) throw std::bad_alloc();
  }

  Result<size_t> read(char* buffer, size_t size) override {
    while (true) {
      bool at_end = false;
      // Output that the decoder holds back for want of room comes first; at the end nothing more may come.
      if (stored_->data().empty() && !may_hold_output_) {
        LLMB_ASSIGN_OR_RETURN(bool more, stored_->fill());
        at_end = !more;
      }
      if (at_end && frame_done_) return size_t{0};
      if (at_end) return stored_->damaged("the zstd data ends too early; is the file cut off?");
      ZSTD_inBuffer in{stored_->data().data(), stored_->data().size(), 0};
      ZSTD_outBuffer out{buffer, size, 0};
      const size_t code = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_getErrorCode(code) == ZSTD_error_memory_allocation) throw std::bad_alloc();
      if (ZSTD_isError(code)) return stored_->damaged(std::string("damaged zstd data: ") + ZSTD_getErrorName(code));
      stored_->consume(in.pos);
      frame_done_ = code == 0;
      may_hold_output_ = out.pos == size && !frame_done_;
      if (out.pos > 0) return out.pos;
    }
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  std::unique_ptr<StoredInput> stored_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  bool frame_done_ = false;
  bool may_hold_output_ = false;
};

constexpr std::string_view kGzipMagic = "\x1f\x8b";
constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";
constexpr std::string_view kZstdSkippableTail = "\x2a\x4d\x18";  // after a byte 0x50 to 0x5f

enum class Format { kPlain, kGzip, kZstd, kUndecided };

// kUndecided: more bytes are needed to tell.
Format detect(std::string_view first_bytes) {
  const auto decide = [&](std::string_view data, std::string_view magic, Format format) {
    const size_t length = std::min(data.size(), magic.size());
    if (data.substr(0, length) != magic.substr(0, length)) return Format::kPlain;
    return length == magic.size() ? format : Format::kUndecided;
  };
  if (first_bytes.empty()) return Format::kUndecided;
  if (first_bytes[0] == kGzipMagic[0]) return decide(first_bytes, kGzipMagic, Format::kGzip);
  if (first_bytes[0] == kZstdMagic[0]) return decide(first_bytes, kZstdMagic, Format::kZstd);
  if ((static_cast<unsigned char>(first_bytes[0]) & 0xF0) == 0x50)
    return decide(first_bytes.substr(1), kZstdSkippableTail, Format::kZstd);
  return Format::kPlain;
}

}  // namespace

std::string input_name(const std::string& input) { return input == "-" ? "standard input" : input; }

Result<std::unique_ptr<ByteSource>> ByteSource::open(const std::string& input, ByteSourceContext context) {
  auto stored = std::make_unique<StoredInput>(input, context);
  LLMB_RETURN_IF_ERROR(stored->open());
  while (detect(stored->data()) == Format::kUndecided) {
    LLMB_ASSIGN_OR_RETURN(bool more, stored->fill());
    if (!more) break;
  }
  if (stored->data().empty() && (stored->named(".gz") || stored->named(".zst")))
    return stored->damaged("empty, but named as a compressed file; is it cut off?");
  switch (detect(stored->data())) {
    case Format::kGzip: {
      auto source = std::make_unique<GzipSource>(std::move(stored));
      source->init();
      return std::unique_ptr<ByteSource>(std::move(source));
    }
    case Format::kZstd:
      return std::unique_ptr<ByteSource>(std::make_unique<ZstdSource>(std::move(stored)));
    default:
      return std::unique_ptr<ByteSource>(std::make_unique<PlainSource>(std::move(stored)));
  }
}

}  // namespace llmb
