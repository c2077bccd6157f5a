// The dtype and the arithmetic that a model is computed in (cpu_backend.h).
#include <string>

#include "backend/cpu/cpu_backend.h"
#include "kernels/cpu/arithmetic.h"

namespace llmb {

Result<CpuArithmetic> choose_cpu_arithmetic(const ModelConfig& config, Quantization quantization,
                                            std::optional<DType> dtype, std::optional<Arithmetic> arithmetic) {
  const bool stay_bf16 = config.dtype == DType::kBF16 && quantization == Quantization::kNone;
  if (arithmetic && is_bf16_arithmetic(*arithmetic) && (!stay_bf16 || dtype.value_or(DType::kBF16) != DType::kBF16))
    return invalid_argument(std::string("arithmetic ") + arithmetic_name(*arithmetic) +
                            " multiplies bfloat16 by bfloat16: not with " +
                            (stay_bf16 ? "dtype float32" : "weights that are not kept as bfloat16"));
  const Arithmetic fastest = cpu::fastest_arithmetic(stay_bf16);
  const DType own = stay_bf16 && is_bf16_arithmetic(arithmetic.value_or(fastest)) ? DType::kBF16 : DType::kF32;
  const DType chosen = dtype.value_or(own);
  return CpuArithmetic{chosen, arithmetic.value_or(cpu::fastest_arithmetic(chosen == DType::kBF16))};
}

Status check_cpu_arithmetic(Arithmetic arithmetic) {
  if (cpu::can_compute(arithmetic)) return {};
  std::string able;
  for (const Arithmetic other : kAllArithmetic)
    if (cpu::can_compute(other)) able += std::string(able.empty() ? "" : ", ") + arithmetic_name(other);
  return unsupported(std::string("arithmetic ") + arithmetic_name(arithmetic) +
                     ": this processor cannot compute it (it can: " + able + ")");
}

Status use_cpu_arithmetic(const ModelConfig& config, LoadOptions* options) {
  const Result<CpuArithmetic> chosen =
      choose_cpu_arithmetic(config, options->cpu.quantization, options->dtype, options->cpu.arithmetic);
  LLMB_RETURN_IF_ERROR(chosen.status());
  LLMB_RETURN_IF_ERROR(check_cpu_arithmetic(chosen->arithmetic));
  options->dtype = chosen->dtype;
  const bool is_any_bf16 =
      chosen->dtype == DType::kF32 && chosen->arithmetic == Arithmetic::kFma && is_bf16_arithmetic(cpu::arithmetic());
  if (!is_any_bf16) cpu::set_arithmetic(chosen->arithmetic);
  return {};
}

DType cpu_activation_dtype(const ModelConfig& config, Quantization quantization) {
  return choose_cpu_arithmetic(config, quantization, std::nullopt, std::nullopt)->dtype;
}

}  // namespace llmb
