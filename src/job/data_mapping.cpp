#include "job/data_mapping.h"

#include <memory>
#include <string>
#include <utility>

#include "chat/prompt_template.h"

namespace llmb {

Result<DataMapping> make_data_mapping(const DataOptions& options) {
  DataMapping mapping;
  mapping.prompt_field = options.prompt_field;
  mapping.system = options.system;
  mapping.keeps_all = options.keeps_all;
  mapping.kept_fields = options.kept_fields;
  if (options.prompt_template.empty()) return mapping;
  LLMB_ASSIGN_OR_RETURN(std::unique_ptr<PromptTemplate> parsed, PromptTemplate::parse(options.prompt_template));
  mapping.render = [tmpl = std::shared_ptr<const PromptTemplate>(std::move(parsed))](std::string_view fields_json) {
    return tmpl->render(fields_json);
  };
  return mapping;
}

}  // namespace llmb
