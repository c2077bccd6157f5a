#include "cli/flag_names.h"

#include <algorithm>
#include <iterator>

namespace llmb {

namespace {

// Options that messages of src/job name. The flag has dashes in place of the underscores.
constexpr std::string_view kOptions[] = {"adapter",
                                         "adapter_dir",
                                         "adapter_memory",
                                         "chat_template",
                                         "choice",
                                         "classifier_from_token",
                                         "decode_context_parallel_size",
                                         "default_adapter",
                                         "device",
                                         "dimensions",
                                         "done",
                                         "error_file",
                                         "grammar",
                                         "json_schema",
                                         "logit_bias",
                                         "max_model_len",
                                         "merge_adapters",
                                         "metrics",
                                         "order",
                                         "output_format",
                                         "pipeline_parallel_size",
                                         "plan_memory",
                                         "pooling",
                                         "preemption",
                                         "prefill_context_parallel_size",
                                         "prefill_workers",
                                         "regex",
                                         "restart",
                                         "shard_by",
                                         "speculative",
                                         "speculative_corpus",
                                         "stop",
                                         "stop_token_ids",
                                         "template",
                                         "tensor_parallel_size",
                                         "tokenizer",
                                         "watchdog_timeout",
                                         "workers"};

}  // namespace

std::string with_flag_names(std::string_view message) {
  std::string text;
  while (true) {
    const size_t begin = message.find('`');
    const size_t end = begin == message.npos ? begin : message.find('`', begin + 1);
    if (end == message.npos) return text.append(message);
    std::string name(message.substr(begin + 1, end - begin - 1));
    text += message.substr(0, begin);
    if (std::find(std::begin(kOptions), std::end(kOptions), name) == std::end(kOptions)) {
      text += '`';
      message.remove_prefix(begin + 1);
      continue;
    }
    std::replace(name.begin(), name.end(), '_', '-');
    text += "--" + name;
    message.remove_prefix(end + 1);
  }
}

}  // namespace llmb
