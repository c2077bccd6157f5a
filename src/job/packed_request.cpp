#include "job/packed_request.h"

#include "base/check.h"
#include "base/packed_bytes.h"
#include "job/packed_params.h"

namespace llmb {

template <typename F>
void each_member(LineRef& line, F f) {
  auto& [index, source, line_number, byte_offset, content_hash] = line;
  f(index), f(source), f(line_number), f(byte_offset), f(content_hash);
}

std::string pack_request(const InputRequest& input) {
  const auto& [line, form, id, model_name, adapter, input_json, settings, prompt, more_prompts, first_texts, params,
               arrival] = input;
  PackedBytes bytes;
  bytes.add(line), bytes.add(form), bytes.add(id), bytes.add(model_name), bytes.add(adapter), bytes.add(input_json);
  bytes.add(settings), bytes.add(arrival);
  add_params(params, &bytes);
  add_prompts(prompt, more_prompts, &bytes);
  bytes.add(first_texts);
  return bytes.bytes();
}

InputRequest unpack_request(std::string_view packed) {
  InputRequest input;
  auto& [line, form, id, model_name, adapter, input_json, settings, prompt, more_prompts, first_texts, params,
         arrival] = input;
  PackedReader bytes(packed);
  bytes.read(line), bytes.read(form), bytes.read(id), bytes.read(model_name), bytes.read(adapter),
      bytes.read(input_json);
  bytes.read(settings), bytes.read(arrival);
  read_params(&bytes, &params);
  read_prompts(&bytes, &prompt, &more_prompts);
  bytes.read(first_texts);
  LLMB_CHECK(bytes.at_end());
  return input;
}

}  // namespace llmb
