#include "job/model_files.h"

#include <algorithm>
#include <utility>

#include "base/whole_file.h"
#include "chat/answer_formats.h"
#include "chat/chat_template_files.h"
#include "chat/judge_prompt.h"
#include "engine/constraint_vocabulary.h"
#include "model/adapter_library.h"
#include "model/classifier.h"
#include "model/config_loader.h"
#include "model/model_location.h"
#include "model/pooling.h"

namespace llmb {

namespace {

// A broken model file is never the command line's fault, whatever code its loader gave.
Status refused(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ? data_loss(status.message()) : status;
}

Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const ModelSource& o) {
  auto tokenizer = Tokenizer::load(o.tokenizer);
  // A bare config.json is enough for random weights with prompt_token_ids.
  if (!tokenizer.ok() && tokenizer.status().code() == StatusCode::kNotFound && o.load_format == LoadFormat::kDummy &&
      o.tokenizer == o.model)
    return std::shared_ptr<const Tokenizer>();
  if (!tokenizer.ok()) return refused(tokenizer.status());
  return std::shared_ptr<const Tokenizer>(std::move(*tokenizer));
}

Result<std::shared_ptr<const ChatTemplate>> load_chat_template(const ModelSource& o, const Tokenizer* tokenizer) {
  if (!o.chat_template.empty()) {
    const auto source = read_whole_file(o.chat_template, kMaxTextFileBytes);
    if (source.status().code() == StatusCode::kResourceExhausted) return source.status();
    if (!source.ok()) return invalid_argument("`chat_template`: " + source.status().message());
    auto parsed =
        ChatTemplate::parse(*source, tokenizer ? tokenizer->special_tokens() : std::map<std::string, std::string>());
    if (!parsed.ok()) return invalid_argument("`chat_template` " + o.chat_template + ": " + parsed.status().message());
    return std::shared_ptr<const ChatTemplate>(std::move(*parsed));
  }
  auto loaded = ChatTemplate::load(o.tokenizer);
  if (!loaded.ok() && loaded.status().code() == StatusCode::kNotFound) return std::shared_ptr<const ChatTemplate>();
  if (!loaded.ok()) return refused(loaded.status());
  return std::shared_ptr<const ChatTemplate>(std::move(*loaded));
}

// Faults of the files are left to load_chat_template().
AnswerFormats find_formats(const ModelSource& o) {
  std::string text;
  if (!o.chat_template.empty()) {
    if (const auto source = read_whole_file(o.chat_template, kMaxTextFileBytes); source.ok()) text = *source;
  } else if (const auto files = read_chat_template_files(o.tokenizer, ""); files.ok()) {
    for (const auto& [name, source] : files->templates) text += source;
  }
  return {o.tool_call_parser.value_or(call_format_of_template(text)),
          o.reasoning_parser.value_or(reasoning_format_of_template(text))};
}

// The form of all lines is made at once: where it is refused, the job is.
Status add_constraints(const AnswerForm* form, ModelContext* context) {
  if (context->tokenizer != nullptr)
    context->constraints = std::make_shared<ConstraintCompiler>(
        [tokenizer = context->tokenizer, vocab_size = context->vocab_size, ends = context->eos_token_ids] {
          return constraint_vocabulary(*tokenizer, vocab_size, ends);
        });
  if (form == nullptr || context->constraints == nullptr) return {};
  const auto compiled = context->constraints->compile(*form);
  if (compiled.ok()) return {};
  return invalid_argument("`" + form->field + "`: " + compiled.status().message());
}

// Those of the folder join those that are named, unless one of these has the name.
Status find_adapters(ModelSource* source) {
  if (!source->adapter_dir.empty()) {
    auto found = adapters_below(source->adapter_dir);
    if (!found.ok()) return invalid_argument("`adapter_dir` " + found.status().message());
    const std::vector<AdapterFolder> named = source->adapters;
    for (AdapterFolder& folder : *found)
      if (std::none_of(named.begin(), named.end(), [&](const auto& other) { return other.name == folder.name; }))
        source->adapters.push_back(std::move(folder));
  }
  auto& all = source->adapters;
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const std::string& name = source->default_adapter;
  if (name.empty() || std::any_of(all.begin(), all.end(), [&](const auto& a) { return a.name == name; })) return {};
  return invalid_argument("`default_adapter` " + name + ": there is no adapter of this name");
}

// The tokens of two words, the one against a pair first.
Result<JudgeTokens> find_judge_tokens(const std::vector<std::string>& words, const std::string& tokenizer_dir) {
  LLMB_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::load(tokenizer_dir));
  const auto find = [&](const std::string& word) -> Result<int32_t> {
    if (const auto token = tokenizer->token_to_id(word)) return *token;
    return invalid_argument("`classifier_from_token`: \"" + word + "\" is no token of the model");
  };
  JudgeTokens tokens;
  LLMB_ASSIGN_OR_RETURN(tokens.no, find(words[0]));
  LLMB_ASSIGN_OR_RETURN(tokens.yes, find(words[1]));
  return tokens;
}

// By a head of its own, or by words that it says.
Result<Pooling> load_scores(const JobOptions& o, const ModelConfig& config) {
  const std::string& model = o.model.model;
  std::vector<std::string> words = o.generation.judge_words;
  std::optional<JudgeTokens> tokens;
  if (words.empty()) {
    LLMB_ASSIGN_OR_RETURN(tokens, load_judge_tokens(model, config));
  }
  if (words.empty() && !tokens) {
    LLMB_ASSIGN_OR_RETURN(words, load_judge_words(model));
  }
  if (!words.empty()) {
    LLMB_ASSIGN_OR_RETURN(tokens, find_judge_tokens(words, o.model.tokenizer));
  }
  return tokens ? load_judge(model, config, *tokens) : load_classifier(model, config);
}

// longest: of texts; becomes less where the model's files say so.
Status add_pooling(const JobOptions& o, ModelFiles* files, int32_t* longest) {
  if (o.generation.task == Task::kClassify) {
    LLMB_ASSIGN_OR_RETURN(files->pooling, load_scores(o, files->config));
    files->default_params.classify.scores = files->pooling->scores;
  } else {
    LLMB_ASSIGN_OR_RETURN(files->pooling, load_pooling(o.model.model, files->config, o.generation.pooling));
    files->default_params.embed.normalizes = files->pooling->normalizes;
  }
  if (o.generation.task == Task::kEmbed || files->pooling->judges_pairs) {
    LLMB_ASSIGN_OR_RETURN(TextPrompts prompts, load_text_prompts(o.model.model));
    if (!prompts.default_name.empty()) files->text_prompt = prompts.texts[prompts.default_name];
    const bool takes_prompts = files->pooling->includes_prompt || files->pooling->kind != PoolingKind::kMean;
    if (takes_prompts) files->named_prompts = std::move(prompts.texts);
  }
  files->config.tie_word_embeddings = true;  // the head, which checkpoints of such models need not have, is not used
  files->config.tied_unless_stored = false;
  if (!files->config.is_encoder) return {};
  LLMB_ASSIGN_OR_RETURN(const std::optional<int32_t> length, load_max_seq_length(o.model.model));
  *longest = std::min(*longest, length.value_or(*longest));
  return {};
}

}  // namespace

int32_t max_dimensions(const ModelFiles& files) {
  const bool has_layers = files.pooling && !files.pooling->layers.empty();
  return has_layers ? files.pooling->layers.back().out_features : files.config.hidden_size;
}

Status find_model_dirs(ModelSource* source, bool needs_weights) {
  LLMB_RETURN_IF_ERROR(find_adapters(source));
  const std::string cache = hub_cache_dir();
  const bool has_own_tokenizer = source->tokenizer != source->model;
  const bool is_dummy = source->load_format == LoadFormat::kDummy;
  const ModelParts parts = {.weights = needs_weights && !is_dummy, .tokenizer = !has_own_tokenizer && !is_dummy};
  LLMB_ASSIGN_OR_RETURN(const auto model, locate_model(source->model, source->revision, parts, cache));
  source->model = model.path;
  source->commit = model.commit;
  if (!has_own_tokenizer) source->tokenizer = model.path;
  if (!has_own_tokenizer) return {};
  const auto tokenizer =
      locate_model(source->tokenizer, source->tokenizer_revision, {.config = false, .weights = false}, cache);
  if (!tokenizer.ok()) return tokenizer.status().with_context("`tokenizer`");
  source->tokenizer = tokenizer->path;
  return {};
}

Result<ModelFiles> load_model_files(const JobOptions& o) {
  ModelFiles files;
  auto config = load_model_config(o.model.model);
  if (!config.ok()) return refused(config.status());
  files.config = std::move(*config);
  auto generation = load_generation_config(o.model.model);
  if (!generation.ok()) return refused(generation.status());
  files.generation = std::move(*generation);
  LLMB_ASSIGN_OR_RETURN(files.default_params, generation_params(o.generation, files.generation, files.config));
  int32_t longest = files.config.max_position_embeddings;
  if (o.generation.task == Task::kEmbed || o.generation.task == Task::kClassify) {
    const Status status = add_pooling(o, &files, &longest);
    if (!status.ok()) return refused(status);
    if (o.generation.dimensions.value_or(0) > max_dimensions(files))
      return invalid_argument("`dimensions` " + std::to_string(*o.generation.dimensions) + " is more than the " +
                              std::to_string(max_dimensions(files)) + " values of the model's vectors");
  } else if (files.config.is_encoder) {
    return unsupported(o.model.model + ": model_type \"" + files.config.model_type +
                       "\" is an encoder, which gives no answers; use --task embed, or classify");
  }
  files.formats = find_formats(o.model);
  files.max_model_len = o.max_model_len.value_or(longest);
  if (files.max_model_len > files.config.max_position_embeddings)
    return invalid_argument("`max_model_len` " + std::to_string(files.max_model_len) +
                            " is more than the model's context of " +
                            std::to_string(files.config.max_position_embeddings) + " tokens");
  return files;
}

Status load_model_context(const ModelSource& source, ModelFiles* files) {
  LLMB_ASSIGN_OR_RETURN(auto tokenizer, load_tokenizer(source));
  LLMB_ASSIGN_OR_RETURN(auto chat_template, load_chat_template(source, tokenizer.get()));
  auto context = std::make_shared<ModelContext>();
  context->tokenizer = std::move(tokenizer);
  context->chat_template = std::move(chat_template);
  if (files->pooling && files->pooling->judges_pairs)
    context->judge = std::make_shared<const JudgePrompt>(context->chat_template);
  context->formats = files->formats;
  context->eos_token_ids = merge_eos_token_ids(files->config, files->generation);
  // The tokenizer's end of text ends it too, whatever the other files have forgotten.
  if (const auto eos = context->tokenizer ? context->tokenizer->eos_token_id() : std::nullopt)
    if (*eos < files->config.vocab_size &&
        std::count(context->eos_token_ids.begin(), context->eos_token_ids.end(), *eos) == 0)
      context->eos_token_ids.push_back(*eos);
  if (!source.adapters.empty()) {
    files->adapters = std::make_shared<AdapterLibrary>(source.adapters, files->config, source.model);
    context->adapters = files->adapters;
  }
  context->vocab_size = files->config.vocab_size;
  context->max_model_len = files->max_model_len;
  context->is_indivisible = files->config.is_encoder || (files->pooling && files->pooling->needs_whole_text());
  LLMB_RETURN_IF_ERROR(add_constraints(files->default_params.form.get(), context.get()));
  files->context = std::move(context);
  return {};
}

}  // namespace llmb
