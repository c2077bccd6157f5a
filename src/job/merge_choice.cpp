#include "job/merge_choice.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "io/request_parser.h"
#include "job/input_check.h"
#include "job/make_intake.h"
#include "model/adapter_library.h"

namespace llmb {

namespace {

// Tokens of a row are not counted but guessed, the same on every machine: a token for so many bytes of its line, and
// this answer where the line says nothing about it.
constexpr int64_t kBytesPerToken = 4, kAnswerTokens = 256;
// Beside the products, a multiply-add of an adapter takes the time of so many of theirs; unpacking, rounding and
// packing a weight takes the time of so many. Guesses: tools/bench_adapters --merged shows the times they stand for.
constexpr double kBesideFactor = 2, kPackFactor = 40;
constexpr size_t kMaxTold = 10;

struct Rows {
  int64_t num_rows = 0, num_tokens = 0;
};

using RowsByAdapter = std::map<int32_t, Rows>;

// Over all lines of the inputs, other shards' included.
Result<RowsByAdapter> count_rows(const JobOptions& o, const JobModel& model, LineReader& reader,
                                 const KeepGoing& keep_going) {
  const std::unique_ptr<RequestParser> parser = make_request_parser(o, model.files);
  RowsByAdapter rows;
  while (keep_going()) {
    LLMB_ASSIGN_OR_RETURN(const auto line, reader.next());
    if (!line.has_value()) return rows;
    const auto parsed = parser->parse(*line);
    const auto* const request = std::get_if<InputRequest>(&parsed);
    if (request == nullptr || !request->adapter) continue;
    const auto id = model.files.adapters->find(*request->adapter);
    if (!id) continue;
    Rows& of = rows[*id];
    const int64_t answer = request->params.stop.max_tokens.value_or(kAnswerTokens);
    ++of.num_rows;
    of.num_tokens += std::min<int64_t>(static_cast<int64_t>(line->bytes.size()) / kBytesPerToken + answer,
                                       model.files.max_model_len);
  }
  return cancelled("interrupted");
}

std::vector<std::string> recorded_names(const Fingerprint& recorded) {
  const auto list =
      nlohmann::json::parse(setting_of(recorded, kMergedAdaptersName), nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> names;
  if (list.is_array())
    for (const auto& name : list)
      if (name.is_string()) names.push_back(name.get<std::string>());
  return names;
}

std::string decision_text(const std::string& name, const Rows& rows, const MergeCost& cost) {
  char text[256];
  std::snprintf(text, sizeof text,
                ": %s for its %lld rows, about %lld tokens: %.3g multiply-adds beside the weights, %.3g to merge",
                cost.merging < cost.beside ? "merged into the weights" : "not merged",
                static_cast<long long>(rows.num_rows), static_cast<long long>(rows.num_tokens), cost.beside,
                cost.merging);
  return "adapter \"" + name + "\"" + text;
}

}  // namespace

MergeCost merge_cost(const LoraAdapter& adapter, int32_t num_layers, int64_t num_tokens) {
  MergeCost cost;
  for (int64_t i = 0; i < int64_t{num_layers} * kNumProjections; ++i) {
    for (const LoraModule& m : adapter.modules(i / kNumProjections, static_cast<Projection>(i % kNumProjections))) {
      const auto rank = static_cast<double>(m.rank()), in = static_cast<double>(m.a.cols);
      const auto out = static_cast<double>(m.b.rows);
      cost.beside += kBesideFactor * rank * (in + out) * static_cast<double>(num_tokens);
      cost.merging += (rank + kPackFactor) * in * out;
    }
  }
  return cost;
}

Result<MergeChoice> choose_merged(const JobOptions& o, const JobModel& model, const Fingerprint* recorded,
                                  const KeepGoing& keep_going) {
  MergeChoice choice;
  if (recorded != nullptr) {
    choice.merged = recorded_names(*recorded);
    if (!choice.merged.empty())
      choice.decisions = {std::to_string(choice.merged.size()) + " adapters stay merged, as this output was begun"};
    return choice;
  }
  const auto none = [&](const std::string& why) {
    choice.decisions = {"no adapter is merged: " + why};
    return choice;
  };
  if (o.load.cpu.quantization != Quantization::kNone || model.files.config.is_dequantised)
    return none("the base's weights are quantised");
  const auto reader = open_inputs(o, nullptr);
  LLMB_RETURN_IF_ERROR(reader->check_inputs());
  if (!are_files(o.inputs, *reader)) return none("the input is no file, so that it is not known what rows will come");
  LLMB_ASSIGN_OR_RETURN(const RowsByAdapter rows, count_rows(o, model, *reader, keep_going));
  AdapterLibrary& library = *model.files.adapters;
  size_t num_beside = 0;
  for (const auto& [id, of] : rows) {
    if (!library.prepare(id).ok()) continue;  // its rows become error records
    LLMB_ASSIGN_OR_RETURN(const LoraAdapter adapter, library.open(id));
    const MergeCost cost = merge_cost(adapter, model.files.config.num_hidden_layers, of.num_tokens);
    const bool merges = cost.merging < cost.beside;
    num_beside += !merges;
    if (merges) choice.merged.push_back(library.name(id));
    if ((merges ? choice.merged.size() : num_beside) <= kMaxTold)
      choice.decisions.push_back(decision_text(library.name(id), of, cost));
  }
  if (choice.merged.size() > kMaxTold || num_beside > kMaxTold)
    choice.decisions.push_back("adapters: " + std::to_string(choice.merged.size()) + " merged, " +
                               std::to_string(num_beside) + " not");
  return choice;
}

}  // namespace llmb
