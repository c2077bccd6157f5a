// One fuzz target a file: a function that takes any bytes and throws or crashes where a parser breaks a promise.
//
// LLMB_FUZZ_TARGET(name) { … } is the body of a function of (std::string_view input). In a libFuzzer build it is the
// program; in the ordinary suite replay_test.cpp calls it with every file of corpus/<name>/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>


namespace llmb::test {

using FuzzFunction = void (*)(std::string_view input);

// Defined in replay_test.cpp. The value means nothing.
bool register_fuzz_target(const char* name, FuzzFunction function);

// Takes the part before the first NUL off an input that stands for several files.
inline std::string_view take_part(std::string_view* input) {
  const size_t end = input->find('\0');
  const std::string_view part = input->substr(0, end);
  input->remove_prefix(end == std::string_view::npos ? input->size() : end + 1);
  return part;
}

}  // namespace llmb::test

#ifdef LLMB_FUZZER
#define LLMB_FUZZ_ENTRY(name)                                               \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    llmb::test::fuzz_##name({reinterpret_cast<const char*>(data), size});   \
    return 0;                                                               \
  }
#else
#define LLMB_FUZZ_ENTRY(name)                                                                                       \
  namespace {                                                                                                       \
  [[maybe_unused]] const bool registered_##name = llmb::test::register_fuzz_target(#name, llmb::test::fuzz_##name); \
  }
#endif

#define LLMB_FUZZ_TARGET(name)                     \
  namespace llmb::test {                           \
  static void fuzz_##name(std::string_view input); \
  }                                                \
  LLMB_FUZZ_ENTRY(name)                            \
  static void llmb::test::fuzz_##name(std::string_view input)
