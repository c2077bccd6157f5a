// Text to the pieces that the model tokenises one by one: the `pre_tokenizer` of a tokenizer file.
// Immutable and thread-safe once built; a PreTokenizerScratch belongs to one thread at a time.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/regex.h"

namespace llmb {

struct PreTokenizerScratch {
  RegexScratch regex;
  struct Stage {
    std::string text;  // the stage's rewritten text, where it rewrites
    std::vector<Span> spans;
  };
  std::vector<Stage> stages;
};

// The treatment of stretches that a pattern matches (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// One step: rewrites the piece where it has to, then cuts it.
class PreTokenizerStage {
 public:
  virtual ~PreTokenizerStage() = default;
  // Sets scratch.stages[index].spans, in order, to the pieces of the returned text, those with is_match == true being
  // dropped. The text is `piece` itself or scratch.stages[index].text. at_start: the piece begins the whole text.
  virtual std::string_view run(std::string_view piece, bool at_start, size_t index,
                               PreTokenizerScratch& scratch) const = 0;
};

class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view piece)>;

  // No stages, so one piece, where `spec` is null. unsupported names a type that is not built.
  static Result<PreTokenizer> make(const nlohmann::json& spec);

  // Calls sink for each piece of `text`, in order; none is empty. A piece lives until the next call.
  void run(std::string_view text, bool at_start, PreTokenizerScratch& scratch, const Sink& sink) const;

  // True where the last step maps bytes to GPT-2's printable characters. drop_byte_mapping() leaves that step out, for
  // a model that takes the pieces' own bytes.
  bool ends_in_byte_mapping() const { return ends_in_byte_mapping_; }
  void drop_byte_mapping();

 private:
  void run_stage(size_t index, std::string_view piece, bool at_start, PreTokenizerScratch& scratch,
                 const Sink& sink) const;

  std::vector<std::unique_ptr<PreTokenizerStage>> stages_;
  bool ends_in_byte_mapping_ = false;
};

}  // namespace llmb
