#include "grammar/kept_groups.h"

#include <algorithm>
#include <array>

namespace llmb::grammar {

KeptGroups::KeptGroups(ExprArena* arena) : arena_(*arena) {
  for (int byte = 0; byte < 256; ++byte) class_of_[byte] = arena->byte_class(static_cast<uint8_t>(byte));
  for (int byte = 0x80; byte <= 0xBF; ++byte)
    if (byte == 0x80 || class_of_[byte] != class_of_[byte - 1]) runs_.push_back(static_cast<uint8_t>(byte));
  std::vector<CharGroups> groups(static_cast<size_t>(arena->num_classes()), 0);
  for (int byte = 0; byte < 0x80; ++byte)
    groups[class_of_[byte]] |= CharGroups{1} << char_group(static_cast<uint8_t>(byte), 0);
  for (int32_t byte_class = 0; byte_class < arena->num_classes(); ++byte_class)
    if (groups[byte_class] != 0) class_groups_.push_back({byte_class, groups[byte_class]});
}

void KeptGroups::forget() {
  index_ = {};
  known_ = {};
  verdicts_ = {};
  num_bytes_ = 0;
}

void KeptGroups::add_lead(ExprId to, CharGroups groups, std::vector<Lead>* leads) {
  const auto at = std::find_if(leads->begin(), leads->end(), [to](const Lead& lead) { return lead.to == to; });
  if (at != leads->end()) at->groups |= groups;
  else leads->push_back({to, groups});
}

KeptGroups::Known& KeptGroups::known(ExprId expr, bool with_wide) {
  if (static_cast<size_t>(expr) >= index_.size()) index_.resize(static_cast<size_t>(arena_.size()), -1);
  if (index_[expr] < 0) {
    index_[expr] = static_cast<int32_t>(known_.size());
    known_.emplace_back();
    verdicts_.emplace_back();
    find_leads(expr);
  }
  Known& known = known_[static_cast<size_t>(index_[expr])];
  if (with_wide && !known.has_wide) {
    known.has_wide = true;
    find_wide_leads(expr);
  }
  return known;
}

void KeptGroups::find_leads(ExprId expr) {
  std::vector<Lead>& leads = known_[static_cast<size_t>(index_[expr])].leads;
  for (const ClassGroups& known : class_groups_) add_lead(arena_.next(expr, known.byte_class), known.groups, &leads);
  note_leads(expr, ~(kWideGroups | kNoChar));
}

void KeptGroups::find_wide_leads(ExprId expr) {
  std::vector<Lead>& leads = known_[static_cast<size_t>(index_[expr])].leads;
  std::deque<Ends> known;
  for (int byte = 0xC2; byte <= 0xF4; ++byte) {
    const ExprId next = arena_.next(expr, class_of_[byte]);
    for (const CharsBehind& chars : chars_behind(static_cast<uint8_t>(byte)))
      for (const ExprId to : ends_of(next, chars.rest, &known)) add_lead(to, CharGroups{1} << chars.group, &leads);
  }
  note_leads(expr, kWideGroups);
}

// Which of the groups stay, now that all their leads are known.
void KeptGroups::note_leads(ExprId expr, CharGroups groups) {
  const std::vector<Lead>& leads = known_[static_cast<size_t>(index_[expr])].leads;
  Verdicts& verdicts = verdicts_[static_cast<size_t>(index_[expr])];
  CharGroups leaving = 0;
  for (const Lead& lead : leads)
    if (lead.to != expr) leaving |= lead.groups;
  verdicts.not_staying |= groups & leaving;
  verdicts.staying |= groups & ~leaving;
  num_bytes_ += sizeof(Known) + sizeof(Verdicts) + leads.size() * sizeof(Lead);
}

bool KeptGroups::find_staying(ExprId expr, CharGroups groups) {
  known(expr, false);
  if ((groups & find(expr)->not_staying) != 0) return false;
  known(expr, (groups & kWideGroups) != 0);
  return (groups & ~find(expr)->staying) == 0;
}

// Most first bytes of wide characters lead to few expressions, which are looked at once. REQUIRES: rest has bytes
const std::vector<ExprId>& KeptGroups::ends_of(ExprId from, Utf8Rest rest, std::deque<Ends>* known) {
  const auto at = std::find_if(known->begin(), known->end(), [&](const Ends& e) { return e.from == from && e.rest == rest; });
  if (at != known->end()) return at->to;
  std::vector<ExprId> to;
  const auto add = [&to](ExprId end) {
    if (std::find(to.begin(), to.end(), end) == to.end()) to.push_back(end);
  };
  for (size_t run = 0; run < runs_.size() && from != kNothing; ++run) {
    const uint8_t begin = std::max(runs_[run], rest.first);
    const uint8_t last = std::min<uint8_t>(run + 1 < runs_.size() ? runs_[run + 1] - 1 : 0xBF, rest.last);
    if (begin > last) continue;
    const ExprId next = arena_.next(from, class_of_[begin]);
    if (rest.num_bytes == 1) add(next);
    else for (const ExprId end : ends_of(next, {0x80, 0xBF, rest.num_bytes - 1}, known)) add(end);
  }
  if (from == kNothing) to = {kNothing};
  return known->emplace_back(Ends{from, rest, std::move(to)}).to;
}

bool KeptGroups::find_living(ExprId expr, CharGroups groups) {
  Known& here = known(expr, false);
  if (!here.knows_living) {
    here.knows_living = true;
    add_living(expr, ~kWideGroups);
  }
  if ((groups & find(expr)->not_living) != 0) return false;
  if ((groups & kWideGroups) != 0 && !here.knows_wide) {
    here.knows_wide = true;
    known(expr, true);
    add_living(expr, kWideGroups);
  }
  return (groups & ~find(expr)->living) == 0;
}

// Those of `groups` that live: those that stay, then others one by one as long as few expressions are reached and none
// is kNothing.
void KeptGroups::add_living(ExprId expr, CharGroups groups) {
  const Verdicts* before = find(expr);
  CharGroups living = before->living;
  const CharGroups staying = before->staying & groups;
  if (is_closed(expr, living | staying)) living |= staying;
  for (int32_t group = 0; group < kFirstWideGroup + kNumWideGroups; ++group) {
    const CharGroups with = living | (CharGroups{1} << group & groups);
    if (group != kNoCharGroup && with != living && is_closed(expr, with)) living = with;
  }
  Verdicts& verdicts = verdicts_[static_cast<size_t>(index_[expr])];
  verdicts.living = living;
  verdicts.not_living |= groups & ~living;
}

bool KeptGroups::is_closed(ExprId expr, CharGroups groups) {
  constexpr size_t kMaxExprs = 4;
  std::array<ExprId, kMaxExprs> reached = {expr};
  size_t num_reached = 1;
  for (size_t i = 0; i < num_reached; ++i)
    for (const Lead& lead : known(reached[i], (groups & kWideGroups) != 0).leads) {
      if ((lead.groups & groups) == 0) continue;
      if (lead.to == kNothing) return false;
      const auto end = reached.begin() + static_cast<std::ptrdiff_t>(num_reached);
      if (std::find(reached.begin(), end, lead.to) != end) continue;
      if (num_reached == kMaxExprs) return false;
      reached[num_reached++] = lead.to;
    }
  return true;
}

}  // namespace llmb::grammar
