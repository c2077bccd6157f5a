// Two models on one GPU, in one stream.
#pragma once

#include <memory>

#include "backend/draft_feed.h"

namespace llmb {

// share_queue() of backends as make_cuda_backend() gives them; null where one of them is another, or is a rank.
std::unique_ptr<DraftFeed> share_cuda_queue(Backend& target, Backend& draft);

}  // namespace llmb
