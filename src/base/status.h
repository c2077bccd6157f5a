// Status and Result<T>: errors of the environment and of user data travel as values.
// A message says what, where (file, line, field) and what to try.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace llmb {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's or the user's value is out of range
  kNotFound,           // a named thing is not there
  kUnsupported,        // recognised, not built
  kDataLoss,           // a file's content is damaged or inconsistent
  kResourceExhausted,  // memory or another limit
  kIoError,            // the operating system said no
  kDeviceError,        // GPU fault or stall
  kCancelled,
  kBusy,      // another process holds it
  kConflict,  // what is there belongs to other work than what was asked for
  kInternal,
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error with "context: " before its message, for callers that know the place.
  Status with_context(const std::string& context) const {
    return ok() ? *this : Status(code_, context + ": " + message_);
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status invalid_argument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
inline Status not_found(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
inline Status data_loss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status resource_exhausted(std::string m) { return {StatusCode::kResourceExhausted, std::move(m)}; }
inline Status io_error(std::string m) { return {StatusCode::kIoError, std::move(m)}; }
inline Status device_error(std::string m) { return {StatusCode::kDeviceError, std::move(m)}; }
inline Status cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status busy(std::string m) { return {StatusCode::kBusy, std::move(m)}; }
inline Status conflict(std::string m) { return {StatusCode::kConflict, std::move(m)}; }
inline Status internal_error(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

// A value or the Status that explains its absence.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                      // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) { LLMB_CHECK(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    LLMB_CHECK_MSG(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    LLMB_CHECK_MSG(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    LLMB_CHECK_MSG(ok(), status_.message());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace llmb

// Returns early with the error of an expression that yields a Status.
#define LLMB_RETURN_IF_ERROR(expression)         \
  do {                                           \
    ::llmb::Status llmb_status_ = (expression);  \
    if (!llmb_status_.ok()) return llmb_status_; \
  } while (0)

// LLMB_ASSIGN_OR_RETURN(target, expression): gives `target`, a declaration or a variable, the value of an expression
// that yields a Result, or returns early with its error. The expression may hold commas, the target none.
#define LLMB_ASSIGN_OR_RETURN(target, ...) LLMB_ASSIGN_OR_RETURN_AT_(__LINE__, target, (__VA_ARGS__))
#define LLMB_ASSIGN_OR_RETURN_AT_(line, target, expression) \
  LLMB_ASSIGN_OR_RETURN_TO_(LLMB_JOIN_(llmb_result_, line), target, expression)
#define LLMB_JOIN_(a, b) a##b
#define LLMB_ASSIGN_OR_RETURN_TO_(result, target, expression) \
  auto result = expression;                                   \
  if (!result.ok()) return result.status();                   \
  target = std::move(result).value()
