// Two streams that have a device's multiprocessors to themselves, each its part of them: work on one takes none from work
// on the other. By green contexts of the driver (CUDA 12.5 and later), which kernels of the runtime run in by their
// stream alone, eagerly and recorded in graphs; where the driver refuses them, two plain streams.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llmb::cuda {

class DividedDevice {
 public:
  // `index`: of the device, which is current. second_sms: multiprocessors of the second stream, of num_sms; rounded up to
  // what the driver hands out. Throws CudaError where no stream can be made.
  DividedDevice(int index, int32_t num_sms, int32_t second_sms);
  DividedDevice(const DividedDevice&) = delete;
  DividedDevice& operator=(const DividedDevice&) = delete;
  ~DividedDevice();  // what the streams hold has run

  cudaStream_t stream(int part) const { return parts_[part].stream; }
  int32_t num_sms(int part) const { return parts_[part].num_sms; }  // all of them on plain streams
  bool is_divided() const { return is_divided_; }

 private:
  struct Part {
    cudaStream_t stream = nullptr;
    void* context = nullptr;  // CUgreenCtx
    int32_t num_sms = 0;
  };
  bool divide(int index, int32_t second_sms);
  void release();

  Part parts_[2];
  bool is_divided_ = false;
};

}  // namespace llmb::cuda
