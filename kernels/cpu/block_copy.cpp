#include "kernels/cpu/block_copy.h"

#include <cstring>

#include "base/check.h"

namespace llmb::cpu {

void block_copy(const BlockPool& from, const BlockPool& to, int64_t num_planes, int64_t block_bytes,
                std::span<const BlockCopy> copies, ThreadPool& pool) {
  LLMB_CHECK(num_planes >= 0 && block_bytes >= 0);
  const auto num_copies = static_cast<int64_t>(copies.size());
  if (num_copies == 0 || block_bytes == 0) return;
  pool.parallel_for(num_copies * num_planes, [&](int64_t unit, int) {
    const BlockCopy& copy = copies[unit / num_planes];
    const int64_t plane = unit % num_planes;
    std::memcpy(to.data + plane * to.plane_stride + copy.to * to.block_stride,
                from.data + plane * from.plane_stride + copy.from * from.block_stride,
                static_cast<size_t>(block_bytes));
  });
}

}  // namespace llmb::cpu
