// Streams' way from rank to rank of neighbouring stages.
#pragma once

#include "backend/ranks/rank_context.h"
#include "model/transformer.h"

namespace llmb {

// Each rank of a stage sends to the one in its place in the next stage.
class CpuStageLink final : public StageLink {
 public:
  explicit CpuStageLink(RankContext& ranks) : ranks_(ranks) {}  // outlives this
  void receive(Rows stream, int64_t rows) override {
    ranks_.stages->receive(stream.data, bytes_of(stream, rows), ranks_.part.rank - ranks_.part.stage_size());
  }
  void send(Rows stream, int64_t rows) override {
    ranks_.stages->send(stream.data, bytes_of(stream, rows), ranks_.part.rank + ranks_.part.stage_size());
  }

 private:
  static int64_t bytes_of(Rows rows, int64_t count) { return count * rows.width * dtype_bytes(rows.dtype); }
  RankContext& ranks_;
};

}  // namespace llmb
