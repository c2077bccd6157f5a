// Tools of a request, and the calls that an answer may be asked to be.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/answer_split.h"
#include "core/chat_messages.h"
#include "core/request.h"

namespace llmb {

// The names of the functions in an array of tools; those without a name are left out.
std::vector<std::string> tool_names(const std::string& tools_json);

// The form of an answer that calls one of the tools, or the one that is named, in the model's own way (chat/tool_calls.h);
// several calls where that is allowed and the format has a word for it. is_special: whether the tokenizer has this text
// as a special token. unsupported: for kNone, and for a name that the format cannot hold.
Result<AnswerForm> forced_call_form(const ChatMessages& chat, ToolCallFormat format,
                                    const std::function<bool(const std::string&)>& is_special);

}  // namespace llmb
