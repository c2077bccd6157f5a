// The messages of gpt-oss: <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
// analysis is reasoning; commentary to=functions.f is a call of f, its text a JSON object; all else is content.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace llmb {

struct HarmonyMessage {
  std::string channel;         // "": none was named
  std::string function;        // that it calls; "": none
  size_t begin = 0, end = 0;   // of its text
};

// The messages of an answer, which begins behind <|start|>assistant. Text without a header is one of no channel.
std::vector<HarmonyMessage> read_harmony(std::string_view text);

}  // namespace llmb
