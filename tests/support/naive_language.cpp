#include "tests/support/naive_language.h"

namespace llmb::test {

// Rules that call themselves at one place are matched again until nothing is found any more.
NaiveLanguage::Verdict NaiveLanguage::judge(const std::string& text) {
  known_.clear();
  Ends found;
  do {
    has_changed_ = false;
    open_.clear();
    found = match(start_, text, 0);
  } while (has_changed_);
  const bool is_complete = found.ends.count(text.size()) == 1;
  return {is_complete, is_complete || found.ran_out};
}

NaiveLanguage::Ends NaiveLanguage::match(const Naive& node, const std::string& text, size_t at) {
  Ends out;
  switch (node.kind) {
    case Naive::kOneOf:
      for (const std::string& t : node.texts) {
        if (text.compare(at, t.size(), t) == 0) out.ends.insert(at + t.size());
        else if (text.size() - at < t.size() && t.compare(0, text.size() - at, text, at) == 0) out.ran_out = true;
      }
      return out;
    case Naive::kEither:
      for (const Naive& part : node.parts) {
        const Ends found = match(part, text, at);
        out.ends.insert(found.ends.begin(), found.ends.end());
        out.ran_out |= found.ran_out;
      }
      return out;
    case Naive::kSequence:
      out.ends = {at};
      for (const Naive& part : node.parts) {
        std::set<size_t> next;
        for (const size_t from : out.ends) {
          const Ends found = match(part, text, from);
          next.insert(found.ends.begin(), found.ends.end());
          out.ran_out |= found.ran_out;
        }
        out.ends = next;
      }
      return out;
    case Naive::kRepeat:
      return match_repeat(node, text, at);
    case Naive::kScan:
      if (const int length = node.scan(text, at); length > 0) out.ends = {at + static_cast<size_t>(length)};
      else out.ran_out = length < 0;
      return out;
    case Naive::kRule:
      break;
  }
  const std::pair<std::string, size_t> key(node.rule, at);
  if (!open_.insert(key).second) return known_[key];
  const Ends found = match(rules_.at(node.rule), text, at);
  if (known_[key] != found) known_[key] = found, has_changed_ = true;
  return found;
}

NaiveLanguage::Ends NaiveLanguage::match_repeat(const Naive& node, const std::string& text, size_t at) {
  Ends out;
  std::set<size_t> now = {at}, seen;
  for (int count = 0; !now.empty(); ++count) {
    if (count >= node.min) out.ends.insert(now.begin(), now.end());
    if (count == node.max) break;
    if (count >= node.min && node.max < 0) {  // what was reached before leads nowhere new
      std::set<size_t> fresh;
      for (const size_t end : now)
        if (seen.insert(end).second) fresh.insert(end);
      now = fresh;
    }
    std::set<size_t> next;
    for (const size_t from : now) {
      const Ends found = match(node.parts[0], text, from);
      next.insert(found.ends.begin(), found.ends.end());
      out.ran_out |= found.ran_out;
    }
    now = next;
  }
  return out;
}

}  // namespace llmb::test
