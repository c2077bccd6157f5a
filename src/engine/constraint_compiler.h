// Makes constraints of the forms that answers are asked to have.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/status.h"
#include "core/request.h"
#include "core/token_constraint.h"
#include "grammar/vocabulary.h"

namespace llmb {

// Thread-safe. Equal forms of a run share a constraint: the last ones are kept, bounded in number and memory, refusals
// too.
class ConstraintCompiler {
 public:
  // The vocabulary is made for the first form.
  explicit ConstraintCompiler(std::function<std::shared_ptr<const grammar::Vocabulary>()> make_vocabulary)
      : make_vocabulary_(std::move(make_vocabulary)) {}

  struct Compiled {
    std::shared_ptr<const TokenConstraint> constraint;
    bool is_new = false;  // nobody had it before
  };
  // invalid_argument: it is no schema, pattern or grammar, or no text satisfies it; unsupported: it cannot be enforced
  // exactly; resource_exhausted: it is too large.
  Result<Compiled> compile(const AnswerForm& form);
  std::shared_ptr<const grammar::Vocabulary> vocabulary();

 private:
  struct Entry {
    std::string key;
    Status status;
    std::shared_ptr<const TokenConstraint> constraint;
    size_t num_bytes = 0;
  };

  const std::function<std::shared_ptr<const grammar::Vocabulary>()> make_vocabulary_;
  std::mutex mutex_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  std::list<Entry> entries_;  // the last asked for first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
  size_t num_bytes_ = 0;  // of entries_
};

}  // namespace llmb
