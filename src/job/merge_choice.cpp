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
#include "job/merge_cost.h"
#include "job/rank_team.h"
#include "model/adapter_library.h"

namespace llmb {

namespace {

constexpr const char* kMergedAdaptersName = "merged_adapters";

// Tokens of a row are not counted but guessed, the same on every machine: one for so many bytes of its line, and an
// answer of this length where the line sets no limit.
constexpr int64_t kBytesPerToken = 4, kAnswerTokens = 256;
constexpr size_t kMaxTold = 10;

struct InputTotals {
  std::map<int32_t, AdapterRowTotals> adapters;  // by id
  int64_t num_rows = 0;                          // also of none
};

// Over all lines of the inputs, other shards' included.
Result<InputTotals> count_rows(const JobOptions& o, const ModelFiles& model, LineReader& reader,
                               const KeepGoing& keep_going) {
  const std::unique_ptr<RequestParser> parser = make_request_parser(o, model);
  InputTotals totals;
  while (keep_going()) {
    LLMB_ASSIGN_OR_RETURN(const auto line, reader.next());
    if (!line.has_value()) return totals;
    auto parsed = parser->parse(*line);
    auto* const request = std::get_if<InputRequest>(&parsed);
    if (request == nullptr) continue;
    ++totals.num_rows;
    const auto id = request->adapter ? model.adapters->find(*request->adapter) : std::nullopt;
    if (!id) continue;
    AdapterRowTotals& rows = totals.adapters[*id];
    request->params.sampling.count_choices();
    const int64_t num_choices = request->params.sampling.num_choices, most = model.max_model_len;
    ++rows.num_rows;
    rows.num_choices += num_choices;
    rows.num_prompt_tokens += std::min(static_cast<int64_t>(line->bytes.size()) / kBytesPerToken, most);
    rows.num_output_tokens +=
        num_choices * std::min<int64_t>(request->params.stop.max_tokens.value_or(kAnswerTokens), most);
  }
  return cancelled("interrupted");
}

std::string decision_text(const std::string& name, const AdapterRowTotals& rows, const MergeCost& cost) {
  char text[256];
  std::snprintf(text, sizeof text,
                ": %s for %lld %s, about %lld tokens: predicted %.3g multiply-adds beside the weights, %.3g merged",
                cost.merges() ? "merged into the weights" : "not merged", static_cast<long long>(rows.num_rows),
                rows.num_rows == 1 ? "row" : "rows", static_cast<long long>(rows.num_tokens()), cost.beside,
                cost.merged);
  return "adapter \"" + name + "\"" + text;
}

MergeChoice none_merged(const std::string& why) { return {{}, {"no adapter is merged: " + why}}; }

}  // namespace

Status check_can_merge(const JobOptions& o, DeviceKind device, const ModelConfig& model) {
  const std::string name = "`merge_adapters` auto: ";
  if (device != DeviceKind::kCpu) return unsupported(name + "weights are merged on a CPU only; leave it out");
  if (o.load.cpu.quantization != Quantization::kNone)
    return unsupported(name + "not with quantization " + quantization_name(o.load.cpu.quantization) +
                       ", which keeps the base's weights in few bits; leave one of the two out");
  if (model.is_dequantised || model.has_quantization)
    return unsupported(name + "the model's weights are stored in few bits; leave it out");
  return {};
}

MergeChoice recorded_choice(const Fingerprint& recorded) {
  const auto list =
      nlohmann::json::parse(setting_of(recorded, kMergedAdaptersName), nullptr, /*allow_exceptions=*/false);
  MergeChoice choice;
  if (list.is_array())
    for (const auto& name : list)
      if (name.is_string()) choice.merged.push_back(name.get<std::string>());
  const size_t count = choice.merged.size();
  if (count == 0) return none_merged("this output was begun so");
  choice.decisions = {std::to_string(count) + (count == 1 ? " adapter stays" : " adapters stay") +
                      " merged into the weights, as this output was begun"};
  return choice;
}

Result<MergeChoice> choose_merged(const JobOptions& o, const ModelFiles& model, const KeepGoing& keep_going) {
  if (model.adapters == nullptr) return none_merged("there are none");
  const auto reader = open_inputs(o, nullptr);
  LLMB_RETURN_IF_ERROR(reader->check_inputs());
  if (!are_files(o.inputs, *reader)) return none_merged("the input is no file, so its rows are not known before");
  LLMB_ASSIGN_OR_RETURN(const InputTotals totals, count_rows(o, model, *reader, keep_going));
  if (totals.adapters.empty()) return none_merged("no row names one");
  MergeChoice choice;
  size_t num_beside = 0;
  for (const auto& [id, rows] : totals.adapters) {
    if (!model.adapters->prepare(id).ok()) continue;  // its rows become error records
    const Result<LoraAdapter> adapter = model.adapters->open(id);
    if (!adapter.ok()) continue;
    const MergeCost cost = merge_cost(*adapter, model.config, rows, rows.num_rows < totals.num_rows);
    if (cost.merges()) choice.merged.push_back(model.adapters->name(id));
    else ++num_beside;
    if ((cost.merges() ? choice.merged.size() : num_beside) <= kMaxTold)
      choice.decisions.push_back(decision_text(model.adapters->name(id), rows, cost));
  }
  if (choice.merged.size() > kMaxTold || num_beside > kMaxTold)
    choice.decisions.push_back("adapters: " + std::to_string(choice.merged.size()) + " merged into the weights, " +
                               std::to_string(num_beside) + " not");
  return choice;
}

Status check_merged_room(const JobOptions& o, const ModelFiles& model, const std::vector<std::string>& merged) {
  const int64_t num_ranks = rank_grid(o).num_ranks(), count = std::max(1, o.num_workers) * num_ranks;
  const int64_t room = o.load.adapter_bytes / count;
  for (const std::string& name : merged) {
    const auto id = model.adapters->find(name);
    if (!id || !model.adapters->prepare(*id).ok()) continue;
    const Result<LoraAdapter> adapter = model.adapters->open(*id);
    const int64_t needed = adapter.ok() ? merged_bytes(*adapter, model.config) : 0;
    if (needed <= room) continue;
    const std::string whose = num_ranks > 1 ? " in each rank" : count > 1 ? " in each worker" : "";
    return resource_exhausted("`merge_adapters` auto: the weights that are merged for adapter \"" + name + "\" take " +
                              std::to_string((needed + (1 << 20) - 1) >> 20) +
                              " MiB, and `adapter_memory` has room for " + std::to_string(room >> 20) + " MiB" +
                              whose + "; raise it, or leave `merge_adapters` out");
  }
  return {};
}

void mark_merged(const std::vector<std::string>& merged, const ModelFiles& model) {
  for (const std::string& name : merged)
    if (const auto id = model.adapters->find(name)) model.adapters->merge(*id);
}

void add_merged(const std::vector<std::string>& merged, Fingerprint* fingerprint) {
  if (!merged.empty()) fingerprint->settings.emplace_back(kMergedAdaptersName, nlohmann::json(merged).dump());
}

}  // namespace llmb
