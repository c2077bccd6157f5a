// The costs of a model's layers and of its LM head on the device that computes it: measured once, by the process that has
// rank 0, before its ranks load.
//
// By small models of the same shape with random weights, each of some layers of one kind, and one with a part of the
// vocabulary: for each kind a step of answers, of as many rows as steps of the job have, and where there are several kinds a
// step of prompts. Costs of a layer are those of its rank, sums over ranks aside, which all layers have alike. It takes a
// second at most on most machines, and less memory than a rank's part of a model that is worth it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/stage_cut.h"
#include "job/rank_team.h"
#include "job/workforce.h"

namespace llmb {

struct MeasuredStages {
  StageCosts costs;
  bool is_steady = false;  // steps of one kind took equally long; else others use the machine, and costs are not to be believed
};

// nullopt: a layer is too large to be measured in a moment, or in the memory that there is; the device says no; weights stand
// in files in few bits, which random ones do not; or ranks have some experts each. rows: with answer_rows.
std::optional<MeasuredStages> measure_stages(const BackendFactory& make_backend, const std::string& device,
                                             const ModelConfig& config, const LoadOptions& load, const RankPart& grid);

// Where there are several stages and it is worth it: all ranks' stages are balanced by what is measured, if it is steady,
// and a line says so. Else by what is counted.
void balance_stages(const BackendFactory& make_backend, const std::string& device, const ModelConfig& config,
                    LoadOptions load, RankOptions* ranks);

}  // namespace llmb
