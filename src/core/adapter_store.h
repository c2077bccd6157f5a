// The adapters that a device has ready for steps, and those on their way to it.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace llmb {

enum class AdapterState { kReady, kOnItsWay, kFailed };

// Thread-safe.
class AdapterStore {
 public:
  virtual ~AdapterStore() = default;

  // A row needs it, until release(): it is read as soon as there is room for it, in the order of these calls, and stays.
  virtual void want(int32_t id) = 0;
  virtual void release(int32_t id) = 0;

  // REQUIRES for both: it is wanted.
  virtual AdapterState state(int32_t id) const = 0;
  virtual Status failure(int32_t id) const = 0;  // kFailed: why

  // False: those on their way, if any, wait until others are released.
  virtual bool is_reading() const = 0;
  // Until a read ends, or timeout_ms.
  virtual void wait_for_read(double timeout_ms) = 0;
  virtual int64_t num_reads() const = 0;  // so far, of the same adapter again too
};

}  // namespace llmb
