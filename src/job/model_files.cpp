#include "job/model_files.h"

#include <algorithm>
#include <utility>

#include "base/whole_file.h"
#include "cli/settings.h"
#include "model/config_loader.h"
#include "model/model_location.h"

namespace llmb {

namespace {

// A broken model file is never the command line's fault, whatever code its loader gave.
Status refused(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ? data_loss(status.message()) : status;
}

Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const Options& o) {
  auto tokenizer = Tokenizer::load(o.tokenizer_dir);
  // A bare config.json is enough for --load-format dummy with prompt_token_ids.
  if (!tokenizer.ok() && tokenizer.status().code() == StatusCode::kNotFound && o.load_format == "dummy" &&
      o.tokenizer_dir == o.model_dir)
    return std::shared_ptr<const Tokenizer>();
  if (!tokenizer.ok()) return refused(tokenizer.status());
  return std::shared_ptr<const Tokenizer>(std::move(*tokenizer));
}

Result<std::shared_ptr<const ChatTemplate>> load_chat_template(const Options& o, const Tokenizer* tokenizer) {
  if (!o.chat_template_file.empty()) {
    const auto source = read_whole_file(o.chat_template_file, kMaxTextFileBytes);
    if (source.status().code() == StatusCode::kResourceExhausted) return source.status();
    if (!source.ok()) return invalid_argument("--chat-template: " + source.status().message());
    auto parsed =
        ChatTemplate::parse(*source, tokenizer ? tokenizer->special_tokens() : std::map<std::string, std::string>());
    if (!parsed.ok())
      return invalid_argument("--chat-template " + o.chat_template_file + ": " + parsed.status().message());
    return std::shared_ptr<const ChatTemplate>(std::move(*parsed));
  }
  auto loaded = ChatTemplate::load(o.tokenizer_dir);
  if (!loaded.ok() && loaded.status().code() == StatusCode::kNotFound) return std::shared_ptr<const ChatTemplate>();
  if (!loaded.ok()) return refused(loaded.status());
  return std::shared_ptr<const ChatTemplate>(std::move(*loaded));
}

}  // namespace

Status find_model_dirs(Options* o) {
  const std::string cache = hub_cache_dir();
  const bool has_own_tokenizer = o->tokenizer_dir != o->model_dir;
  const bool is_dummy = o->load_format == "dummy";
  const ModelParts parts = {.weights = !is_dummy && o->device != "ledger",
                            .tokenizer = !has_own_tokenizer && !is_dummy};
  const auto model = locate_model(o->model_dir, o->revision, parts, cache);
  if (!model.ok()) return model.status();
  o->model_dir = model->path;
  o->model_commit = model->commit;
  if (!has_own_tokenizer) o->tokenizer_dir = model->path;
  if (!has_own_tokenizer) return {};
  const auto tokenizer =
      locate_model(o->tokenizer_dir, o->tokenizer_revision, {.config = false, .weights = false}, cache);
  if (!tokenizer.ok()) return tokenizer.status().with_context("--tokenizer");
  o->tokenizer_dir = tokenizer->path;
  return {};
}

Result<ModelFiles> load_model_files(const Options& o) {
  ModelFiles files;
  auto config = load_model_config(o.model_dir);
  if (!config.ok()) return refused(config.status());
  files.config = std::move(*config);
  auto generation = load_generation_config(o.model_dir);
  if (!generation.ok()) return refused(generation.status());
  files.generation = std::move(*generation);
  auto params = default_generation_params(o, files.generation, files.config);
  if (!params.ok()) return params.status();
  files.default_params = std::move(*params);
  auto max_model_len = effective_max_model_len(o, files.config);
  if (!max_model_len.ok()) return max_model_len.status();
  files.max_model_len = *max_model_len;
  if (!o.slo.empty()) {
    auto slo = parse_slo(o.slo);
    if (!slo.ok()) return slo.status();
    files.slo = *slo;
  }
  return files;
}

Status load_model_context(const Options& o, ModelFiles* files) {
  auto tokenizer = load_tokenizer(o);
  if (!tokenizer.ok()) return tokenizer.status();
  auto chat_template = load_chat_template(o, tokenizer->get());
  if (!chat_template.ok()) return chat_template.status();
  auto context = std::make_shared<ModelContext>();
  context->tokenizer = std::move(*tokenizer);
  context->chat_template = std::move(*chat_template);
  context->eos_token_ids = merge_eos_token_ids(files->config, files->generation);
  // The tokenizer's end of text ends it too, whatever the other files have forgotten.
  if (const auto eos = context->tokenizer ? context->tokenizer->eos_token_id() : std::nullopt)
    if (*eos < files->config.vocab_size &&
        std::count(context->eos_token_ids.begin(), context->eos_token_ids.end(), *eos) == 0)
      context->eos_token_ids.push_back(*eos);
  context->vocab_size = files->config.vocab_size;
  context->max_model_len = files->max_model_len;
  files->context = std::move(context);
  return {};
}

}  // namespace llmb
