// The function between an MLP's projections. Plain data, for kernels as well as for the model.
#pragma once

namespace llmb {

enum class Activation {
  kSilu,           // x / (1 + e^-x)
  kGelu,           // x Φ(x)  (Hendrycks and Gimpel 2016, arXiv:1606.08415)
  kGeluTanh,       // its approximation by tanh
  kRelu,           // max(x, 0)
  kRelu2,          // max(x, 0)²  (So et al. 2021, arXiv:2109.08668)
  kTanh,           // tanh x; not gated
  kClampedSwiglu,  // gate e(alpha gate) (up + 1), e the logistic function, gate and up clamped; gated only
};

// The function of a gate's values that something is multiplied by.
enum class GateKind {
  kIdentity,  // x
  kLogistic,  // 1 / (1 + e^-x)
  kSilu,      // x / (1 + e^-x)
};

struct ActivationSpec {
  Activation kind = Activation::kSilu;
  bool gated = true;                   // out = f(gate) * up, gate first; else out = f(x)
  float alpha = 1.702f, limit = 7.0f;  // kClampedSwiglu: gate <= limit, |up| <= limit

  bool operator==(const ActivationSpec&) const = default;
};

}  // namespace llmb
