#include "scheduler/rank.h"

#include "scheduler/sequence.h"

namespace llmb {

Ranking first_come_first_served(const Sequence& sequence, double /*now_ms*/) { return {Rank{sequence.id}}; }

}  // namespace llmb
