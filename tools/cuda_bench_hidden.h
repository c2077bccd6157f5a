// A case of bench_collectives_cuda: hidden states before a step's rows, which GPUs that divide keys and values by position
// give each other (backend/cuda/hidden_slices.h), beside a bare all-gather of as many bytes. A text has one row, and the
// state before it lies in a slice of one of the ranks, which take turns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cuda/device_collectives.h"
#include "backend/cuda/hidden_slices.h"
#include "base/float_formats.h"
#include "core/step_plan.h"
#include "tools/collectives_bench.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

class HiddenBench {
 public:
  using T = __nv_bfloat16;

  HiddenBench(DeviceCollectives& ranks, int32_t num_texts, int64_t width)
      : ranks_(ranks), num_texts_(num_texts), width_(width), slices_(ranks, {num_texts, num_texts, width, sizeof(T)}) {
    std::vector<cuda::StepRow> rows;
    std::vector<int32_t> starts, positions, slots;
    std::vector<BlockId> ids;
    std::vector<cuda::BlockPair> blocks;
    for (int32_t text = 0; text < num_texts; ++text) {
      rows.push_back({text, 0, 0}), starts.push_back(text), positions.push_back(1);
      ids.push_back(owner_of(text) * num_texts + text), slots.push_back(ids.back() * kSlice + 1);
      blocks.push_back({num_texts - 1 - text, text});
    }
    const cudaStream_t stream = stream_.get();
    rows_ = upload(rows, stream), starts_ = upload(starts, stream), positions_ = upload(positions, stream);
    slots_ = upload(slots, stream), ids_ = upload(ids, stream), blocks_ = upload(blocks, stream);
    group_ = upload(std::vector<cuda::SliceGroup>{{0, num_texts}}, stream);
    const uint16_t own = f32_to_bf16(static_cast<float>(1 + ranks.rank()));
    pool_ = upload(std::vector<uint16_t>(static_cast<size_t>(num_texts * kSlice * width), own), stream);
    out_ = Copies(num_texts * width * int64_t{sizeof(float)});
    all_ = Copies(ranks.size() * num_texts * width * int64_t{sizeof(T)});
    plan_.entries.resize(static_cast<size_t>(num_texts));
  }

  // Throws where a row gets another state than its rank's.
  void check_states() {
    queue(true);
    stream_.synchronize();
    std::vector<float> states(static_cast<size_t>(num_texts_ * width_));
    check(cudaMemcpy(states.data(), out_.at<void>(0), states.size() * sizeof(float), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    for (size_t i = 0; i < states.size(); ++i)
      if (states[i] != static_cast<float>(1 + owner_of(static_cast<int32_t>(static_cast<int64_t>(i) / width_))))
        throw std::runtime_error("a hidden state is not its rank's, of " + std::to_string(num_texts_) + " rows");
  }

  // Seconds of each of so many; has_rows: with what is done before and behind the call.
  double time_s(bool has_rows, int num_times) {
    stream_.synchronize();
    const double begin = seconds_now();
    for (int i = 0; i < num_times; ++i) queue(has_rows);
    stream_.synchronize();
    return (seconds_now() - begin) / num_times;
  }

 private:
  static constexpr int32_t kSlice = 16;  // its length does not matter here

  int32_t owner_of(int32_t text) const { return text % ranks_.size(); }
  void queue(bool has_rows) {
    if (!has_rows) {
      const int64_t bytes = num_texts_ * width_ * int64_t{sizeof(T)};
      return ranks_.all_gather(pool_.at<void>(0), bytes, all_.at<void>(0), stream_.get());
    }
    const cuda::SlicedRows step{{num_texts_, kSlice, rows_.at<cuda::StepRow>(0), starts_.at<int32_t>(0),
                                 ids_.at<BlockId>(0), 1, positions_.at<int32_t>(0), slots_.at<int32_t>(0), nullptr},
                                group_.at<cuda::SliceGroup>(0),
                                blocks_.at<cuda::BlockPair>(0),
                                ranks_.rank()};
    slices_.previous(plan_, step, {0, num_texts_}, pool_.at<const T>(0), out_.at<float>(0), stream_.get());
  }

  DeviceCollectives& ranks_;
  const int32_t num_texts_;
  const int64_t width_;
  const cuda::Stream stream_;
  HiddenSlices slices_;
  StepPlan plan_;
  Copies rows_, starts_, positions_, slots_, ids_, blocks_, group_, pool_, out_, all_;
};

inline void time_hidden(const CollectivesOptions& options, DeviceCollectives& ranks, Collectives& host,
                        const std::vector<int32_t>& counts, int64_t width) {
  if (ranks.rank() == 0)
    std::printf("hidden states before rows, %lld numbers each, %d ranks: us a step\n%8s %10s %10s\n",
                static_cast<long long>(width), ranks.size(), "rows", "all", "the call");
  for (const int32_t num_texts : counts) {
    HiddenBench bench(ranks, num_texts, width);
    bench.check_states();
    double us[2] = {};
    for (const bool has_rows : {true, false}) {
      wait_for_all(host);
      const double once = bench.time_s(has_rows, 1);
      int num_times = std::clamp(static_cast<int>(options.round_ms / 1e3 / std::max(once, 1e-7)), 1, 2000);
      host.broadcast(&num_times, sizeof num_times, 0);
      std::vector<double> rounds;
      for (int i = 0; i < options.repeats; ++i) rounds.push_back(bench.time_s(has_rows, num_times));
      us[has_rows ? 0 : 1] = 1e6 * median(rounds);
    }
    if (ranks.rank() == 0) std::printf("%8d %10.2f %10.2f\n", num_texts, us[0], us[1]);
  }
  if (ranks.rank() == 0) std::fflush(stdout);
}

}  // namespace llmb::bench
