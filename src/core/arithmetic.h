// Classes of arithmetic of the CPU backend. Within a class every processor gives the same bytes, between them they
// differ: a job is computed in one.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace llmb {

enum class Arithmetic : uint8_t {
  kUnfused,  // fp32; products are rounded before they are added: targets without fused multiply-add
  kFma,      // fp32, fused: AVX2, AVX-512, NEON, whatever their vectors' width
  kBf16Dot,  // kFma, but products of bf16 by bf16 are AVX-512-BF16's, which takes subnormals as zero
  kBf16Amx,  // kFma, but products of bf16 by bf16 are AMX's, which adds even and odd k apart
  kBf16Mmla,  // kFma, but products of bf16 by bf16 are 64-bit ARM's BFMMLA, which rounds to odd and takes subnormals as zero
};

constexpr Arithmetic kAllArithmetic[] = {Arithmetic::kUnfused, Arithmetic::kFma, Arithmetic::kBf16Dot,
                                         Arithmetic::kBf16Amx, Arithmetic::kBf16Mmla};

constexpr const char* arithmetic_name(Arithmetic a) {
  switch (a) {
    case Arithmetic::kUnfused:
      return "unfused";
    case Arithmetic::kFma:
      return "fma";
    case Arithmetic::kBf16Dot:
      return "bf16-dot";
    case Arithmetic::kBf16Amx:
      return "bf16-amx";
    case Arithmetic::kBf16Mmla:
      return "bf16-mmla";
  }
  return "";
}

constexpr std::optional<Arithmetic> arithmetic_by_name(std::string_view name) {
  for (const Arithmetic a : kAllArithmetic)
    if (name == arithmetic_name(a)) return a;
  return std::nullopt;
}

// Whether it differs from another only where both factors of products are bf16.
constexpr bool is_bf16_arithmetic(Arithmetic a) {
  return a == Arithmetic::kBf16Dot || a == Arithmetic::kBf16Amx || a == Arithmetic::kBf16Mmla;
}

}  // namespace llmb
