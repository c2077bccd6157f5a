// Two models on one GPU, in one stream; and plans of one model that drafts for itself.
#pragma once

#include <memory>

#include "backend/draft_feed.h"

namespace llmb {

// share_queue() of backends as make_cuda_backend() gives them; null where one of them is another, or is a rank.
std::unique_ptr<DraftFeed> share_cuda_queue(Backend& target, Backend& draft);

// own_drafts_of() such a backend; both null of another, of a rank, and where no layers draft.
OwnDrafts own_cuda_drafts_of(Backend& model);

}  // namespace llmb
