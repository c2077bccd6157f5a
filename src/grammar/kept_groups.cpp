#include "grammar/kept_groups.h"

#include <algorithm>

namespace llmb::grammar {

namespace {

CharGroups group_of(int first_byte) { return CharGroups{1} << char_group(static_cast<uint8_t>(first_byte)); }

}  // namespace

KeptGroups::KeptGroups(ExprArena* arena) : arena_(*arena) {
  for (int byte = 0; byte < 256; ++byte) class_of_[byte] = arena->byte_class(static_cast<uint8_t>(byte));
}

void KeptGroups::forget() {
  index_ = {};
  known_ = {};
  num_bytes_ = 0;
}

KeptGroups::Known& KeptGroups::known(ExprId expr, bool with_wide) {
  if (static_cast<size_t>(expr) >= index_.size()) index_.resize(static_cast<size_t>(arena_.size()), -1);
  if (index_[expr] < 0) {
    index_[expr] = static_cast<int32_t>(known_.size());
    known_.emplace_back().staying = ~(kWideGroups | CharGroups{1} << kNoCharGroup);
    find_leads(expr, 0, 0x7F, &known_.back());
  }
  Known& known = known_[static_cast<size_t>(index_[expr])];
  if (with_wide && !known.has_wide) {
    known.has_wide = true;
    known.staying |= kWideGroups;
    find_leads(expr, 0xC2, 0xF4, &known);
  }
  return known;
}

void KeptGroups::find_leads(ExprId expr, int first_byte, int last_byte, Known* known) {
  for (int byte = first_byte; byte <= last_byte; ++byte)
    add_leads(arena_.next(expr, class_of_[byte]), rest_behind(static_cast<uint8_t>(byte)), group_of(byte),
              &known->leads);
  for (const Lead& lead : known->leads)
    if (lead.to != expr) known->staying &= ~lead.groups;
  num_bytes_ += sizeof(Known) + known->leads.size() * sizeof(Lead);
}

bool KeptGroups::stays(ExprId expr, CharGroups groups) {
  if ((groups & ~kWideGroups & ~known(expr, false).staying) != 0) return false;
  return (groups & kWideGroups) == 0 || (groups & ~known(expr, true).staying) == 0;
}

// Adds where all that completes the character leads.
void KeptGroups::add_leads(ExprId from, Utf8Rest rest, CharGroups group, std::vector<Lead>* leads) {
  if (rest.num_bytes == 0 || from == kNothing) {
    const auto at = std::find_if(leads->begin(), leads->end(), [&](const Lead& lead) { return lead.to == from; });
    if (at != leads->end()) at->groups |= group;
    else leads->push_back({from, group});
    return;
  }
  int32_t last_class = -1;
  for (int byte = rest.first; byte <= rest.last; ++byte) {
    if (class_of_[byte] == last_class) continue;
    last_class = class_of_[byte];
    add_leads(arena_.next(from, last_class), {0x80, 0xBF, rest.num_bytes - 1}, group, leads);
  }
}

bool KeptGroups::lives(ExprId expr, CharGroups groups) {
  Known& here = known(expr, false);
  if (!here.knows_living) {
    here.knows_living = true;
    add_living(expr, ~kWideGroups, &here);
  }
  if ((groups & ~kWideGroups & ~here.living) != 0) return false;
  if ((groups & kWideGroups) != 0 && !here.knows_wide) {
    here.knows_wide = true;
    known(expr, true);
    add_living(expr, kWideGroups, &here);
  }
  return (groups & ~here.living) == 0;
}

// Those of `groups` that live: those that stay, then others one by one as long as few expressions are reached and none
// is kNothing.
void KeptGroups::add_living(ExprId expr, CharGroups groups, Known* known) {
  const CharGroups staying = known->staying & groups;
  if (is_closed(expr, known->living | staying)) known->living |= staying;
  for (int32_t group = 0; group < kFirstWideGroup + kNumWideGroups; ++group) {
    const CharGroups with = known->living | (CharGroups{1} << group & groups);
    if (group != kNoCharGroup && with != known->living && is_closed(expr, with)) known->living = with;
  }
}

bool KeptGroups::is_closed(ExprId expr, CharGroups groups) {
  constexpr size_t kMaxExprs = 4;
  std::vector<ExprId> reached = {expr};
  for (size_t i = 0; i < reached.size(); ++i)
    for (const Lead& lead : known(reached[i], (groups & kWideGroups) != 0).leads) {
      if ((lead.groups & groups) == 0) continue;
      if (lead.to == kNothing) return false;
      if (std::find(reached.begin(), reached.end(), lead.to) != reached.end()) continue;
      if (reached.size() == kMaxExprs) return false;
      reached.push_back(lead.to);
    }
  return true;
}

}  // namespace llmb::grammar
