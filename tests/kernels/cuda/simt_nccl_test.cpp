// NCCL: what is said where it cannot be used; and its twin, over processes, with calls in streams and in recordings.
#include "kernels/cuda/nccl.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/simt/nccl.h"
#include "tests/support/device_array.h"

namespace llmb::cuda {

using test::DeviceArray;

namespace {

// Runs `work` as each rank, in a process of its own but for rank 0. work: false where something is wrong
bool run_ranks(int size, const std::function<bool(NcclComm, int rank)>& work) {
  NcclUniqueId id{};
  check_nccl(nccl().get_unique_id(&id), "ncclGetUniqueId");
  std::vector<pid_t> pids;
  const auto run = [&](int rank) {
    NcclComm comm = nullptr;
    if (nccl().comm_init_rank(&comm, size, id, rank) != kNcclSuccess) return false;
    const bool is_right = work(comm, rank);
    nccl().comm_destroy(comm);
    return is_right;
  };
  for (int rank = 1; rank < size; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(run(rank) ? 0 : 1);
    pids.push_back(pid);
  }
  bool is_right = run(0);
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    is_right = is_right && status == 0;
  }
  return is_right;
}

}  // namespace

TEST_CASE("a library that is missing, lacks a function or is too old is named, with what to do") {
  Nccl table{};
  const std::string advice = "; several GPUs for one model need NCCL 2.18 or newer: install libnccl2";
  const std::string missing = load_nccl("libno-such-library.so.2", &table);
  CHECK(missing.starts_with("NCCL cannot be loaded: "));
  CHECK(missing.find(advice) != std::string::npos);
  CHECK(load_nccl("libm.so.6", &table).starts_with("NCCL cannot be used: libm.so.6 has no ncclGetVersion" + advice));
  CHECK(nccl_version_problem(21701).starts_with("NCCL 2.17 is too old" + advice));
  CHECK(nccl_version_problem(2708).starts_with("NCCL 2.7 is too old"));
  CHECK(nccl_version_problem(21800) == "");
  CHECK(nccl_version_problem(22703) == "");
}

TEST_CASE("the twin: every call gives all ranks what NCCL promises, in a stream's order and in a recording") {
  for (const int size : {1, 2, 4}) {
    CAPTURE(size);
    const bool all_right = run_ranks(size, [&](NcclComm comm, int rank) {
      constexpr size_t kCount = 300'000;  // more than goes at once
      cudaStream_t stream = nullptr;
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
      std::vector<float> own(kCount);
      for (size_t i = 0; i < kCount; ++i) own[i] = static_cast<float>((rank + 1) * static_cast<int>(i % 97));
      DeviceArray<float> sum(own), part(own), all(kCount * static_cast<size_t>(size)), from_last(own);
      const auto queue = [&] {
        nccl().all_reduce(sum.data(), sum.data(), kCount, NcclType::kF32, NcclSum::kSum, comm, stream);
        nccl().all_gather(part.data(), all.data(), kCount, NcclType::kF32, comm, stream);
        nccl().broadcast(from_last.data(), from_last.data(), kCount, NcclType::kF32, size - 1, comm, stream);
      };
      queue();
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      queue();
      check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
      check(cudaGraphInstantiate(&executable, graph), "cudaGraphInstantiate");
      check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
      check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      const std::vector<float> sums = sum.download(), gathered = all.download(), last = from_last.download();
      const int ranks = size * (size + 1) / 2;
      bool is_right = all.check_guards() && sum.check_guards() && from_last.check_guards();
      for (size_t i = 0; i < kCount; ++i) {
        const auto unit = static_cast<float>(i % 97);
        is_right = is_right && sums[i] == static_cast<float>(ranks * size) * unit;  // summed twice
        is_right = is_right && last[i] == static_cast<float>(size) * unit;
        for (int r = 0; r < size; ++r)
          is_right = is_right && gathered[static_cast<size_t>(r) * kCount + i] == static_cast<float>(r + 1) * unit;
      }
      cudaGraphExecDestroy(executable), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
      return is_right;
    });
    CHECK(all_right);
  }
  CHECK(::llmb::simt::num_nccl_calls() == 3 * 2 * 3);  // of this process: each call twice
}

TEST_CASE("the twin: messages go from rank to rank in order") {
  CHECK(run_ranks(3, [&](NcclComm comm, int rank) {
    DeviceArray<float> first(std::vector<float>{rank + 0.5f, 7}), second(std::vector<float>{9, 9});
    if (rank > 0) nccl().receive(second.data(), 2, NcclType::kF32, rank - 1, comm, nullptr);
    if (rank < 2) nccl().send(rank > 0 ? second.data() : first.data(), 2, NcclType::kF32, rank + 1, comm, nullptr);
    return rank == 0 || second.holds(std::vector<float>{0.5f, 7});
  }));
}

TEST_CASE("the twin: in a group all send to all at a time, more than there is room for, in a stream and in a recording") {
  for (const int size : {1, 2, 4}) {
    CAPTURE(size);
    CHECK(run_ranks(size, [&](NcclComm comm, int rank) {
      constexpr size_t kCount = 900'000;
      cudaStream_t stream = nullptr;
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
      const auto all = static_cast<size_t>(size) * kCount;
      std::vector<float> given(all), expected(all, -1);
      for (size_t i = 0; i < all; ++i) given[i] = static_cast<float>(rank * 100 + static_cast<int>(i / kCount));
      for (int from = 0; from < size; ++from)
        if (from != rank)
          std::fill_n(expected.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(from) * kCount), kCount,
                      static_cast<float>(from * 100 + rank));
      DeviceArray<float> parts(given), got(std::vector<float>(all, -1));
      const auto queue = [&] {
        bool is_right = nccl().group_start() == kNcclSuccess && nccl().group_start() != kNcclSuccess;
        for (int other = 0; other < size; ++other) {
          const auto at = static_cast<size_t>(other) * kCount;
          const bool takes = nccl().send(parts.data() + at, kCount, NcclType::kF32, other, comm, stream) == kNcclSuccess;
          is_right = is_right && takes == (other != rank);
          if (takes) nccl().receive(got.data() + at, kCount, NcclType::kF32, other, comm, stream);
        }
        return is_right && nccl().group_end() == kNcclSuccess && nccl().group_end() != kNcclSuccess;
      };
      bool is_right = queue();
      check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      is_right = is_right && got.holds(expected);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      is_right = queue() && is_right;
      check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
      check(cudaGraphInstantiate(&executable, graph), "cudaGraphInstantiate");
      check(cudaMemsetAsync(got.data(), 0, all * sizeof(float), stream), "cudaMemsetAsync");
      check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
      check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      for (size_t i = 0; i < kCount; ++i) expected[static_cast<size_t>(rank) * kCount + i] = 0;
      is_right = is_right && got.holds(expected) && got.check_guards();
      cudaGraphExecDestroy(executable), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
      return is_right;
    }));
  }
}

TEST_CASE("the twin: ranks that make different calls, and an abort, end in an error and not in a wait") {
  CHECK(run_ranks(2, [&](NcclComm comm, int rank) {
    DeviceArray<float> x(std::vector<float>{1, 2, 3, 4});
    nccl().all_reduce(x.data(), x.data(), rank == 0 ? 4 : 3, NcclType::kF32, NcclSum::kSum, comm, nullptr);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    NcclResult result = kNcclSuccess;
    nccl().comm_get_async_error(comm, &result);
    return result != kNcclSuccess;
  }));
}

TEST_CASE("the twin: memory that is not the device's, and element types that it does not know, are refused") {
  CHECK(run_ranks(1, [&](NcclComm comm, int) {
    DeviceArray<float> x(4);
    std::vector<float> host(4);
    return nccl().all_reduce(host.data(), x.data(), 4, NcclType::kF32, NcclSum::kSum, comm, nullptr) != kNcclSuccess &&
           nccl().all_gather(x.data(), x.data(), 40'000, NcclType::kF32, comm, nullptr) != kNcclSuccess &&
           nccl().all_reduce(x.data(), x.data(), 4, NcclType::kByte, NcclSum::kSum, comm, nullptr) != kNcclSuccess;
  }));
}

}  // namespace llmb::cuda
