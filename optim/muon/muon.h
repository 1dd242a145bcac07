// Muon: momentum whose matrices are made orthogonal (Jordan et al. 2024, "Muon: An optimizer for
// hidden layers in neural networks"), with updates of AdamW's size (Liu et al. 2025, "Muon is
// scalable for LLM training"). Equal to torch.optim.Muon(adjust_lr_fn="match_rms_adamw") up to
// rounding. For a matrix, with g = grad_scale * grad and mu = momentum:
//     m     = m + (1 - mu) (g - m)
//     u     = g + mu (m - g)
//     value = (1 - lr weight_decay) value - lr 0.2 sqrt(max(rows, columns)) orthogonal(u)
// What is no such matrix gets AdamW with the same learning rate and weight decay.
#pragma once

#include <array>
#include <cmath>
#include <memory>
#include <span>

#include "optim/adamw.h"

namespace tandem {

struct MuonOptions {
  static constexpr bool kNeedsMatrices = true;
  double momentum = 0.95;  // in [0, 1)
  AdamWOptions adamw{};    // its weight decay is that of matrices, too
};

// State: slot "momentum" of shards with `matrix`, "m" and "v" of the others; f32,
// MemoryClass::kOptimizer. step() overwrites the gradients of matrices. u is rounded to bf16 if
// working copies are bf16, and only then. Collective where memory.matrices is. prepare() and
// update() are an Error(kInternal), because an update needs whole matrices. Throws Error(kConfig)
// naming the key that is out of range, Error(kOutOfMemory) from `memory`.
std::unique_ptr<Optimizer> make_optimizer(const MuonOptions& options, std::span<const Shard> shards,
                                          const OptimizerMemory& memory);

// Makes a matrix [rows, columns] of f32 or bf16 nearly orthogonal, in place: five times
//     A = X X^T,  X = 3.4445 X + (-4.7750 A + 2.0315 A A) X
// from X = matrix / max(|matrix|, 1e-7), with Frobenius's norm in the type of the matrix; one with
// more rows than columns as its transpose. Roundings are where torch.optim.Muon has them. Singular
// values above 0.002 |matrix| become about 1, between 0.6 and 1.3, and zero stays zero. Enqueued;
// `memory` is for what it needs meanwhile.
void orthogonalise(Stream& stream, Memory& memory, const Tensor& matrix);

// The rules for flat_optimizer.h, before and after that. The first one's value is u.
struct MuonMomentum {
  struct alignas(16) Scalars {
    float grad_scale, momentum, rate;
    int32_t apply;
  };
  using Options = MuonOptions;
  static constexpr std::string_view kName = "Muon";
  static constexpr std::array<std::string_view, 1> kSlots = {"momentum"};

  TANDEM_HOST_DEVICE static Scalars prepare(const Options& options, double /*lr*/,
                                            const StepState& state) {
    return {.grad_scale = state.grad_scale,
            .momentum = static_cast<float>(options.momentum),
            .rate = static_cast<float>(1 - options.momentum),
            .apply = state.apply};
  }
  TANDEM_HOST_DEVICE MuonMomentum(const Scalars& scalars, bool /*decay*/) : s(scalars) {}
  TANDEM_HOST_DEVICE void operator()(float grad, float& u, float& m) const {
    const float g = s.grad_scale * grad;
    m = m + s.rate * (g - m);
    u = g + s.momentum * (m - g);
  }

  Scalars s;
};

struct MuonMove {
  struct alignas(16) Scalars {
    float keep, lr;
    int32_t apply;
  };
  using Options = MuonOptions;
  static constexpr std::string_view kName = "Muon";
  static constexpr std::array<std::string_view, 0> kSlots = {};

  TANDEM_HOST_DEVICE static Scalars prepare(const Options& options, double lr,
                                            const StepState& state) {
    return {.keep = static_cast<float>(1 - lr * options.adamw.weight_decay),
            .lr = static_cast<float>(lr),
            .apply = state.apply};
  }
  TANDEM_HOST_DEVICE MuonMove(const Scalars& scalars, bool /*decay*/) : s(scalars) {}
  // A sum of two products: the fused one is named, so that all compilers choose the same.
  TANDEM_HOST_DEVICE void operator()(float move, float& value) const {
    value = std::fma(-s.lr, move, s.keep * value);
  }

  Scalars s;
};

namespace kernels {

// The norm of a matrix of T. It is rounded to T, as PyTorch does: a part in 256 less or more would
// give all roundings of bf16 another pattern, and those of small singular values grow 485-fold.
template <class T>
TANDEM_HOST_DEVICE float norm_of(double square) {
  const auto root = static_cast<float>(T(std::sqrt(static_cast<float>(square))));
  return root > 1e-7F ? root : 1e-7F;
}

// to[i] = from[i] / norm_of<T>(square[0]), rounded once. T is float or Bf16.
template <class T>
void divide_by_norm(Cpu, int64_t n, const T* from, const double* square, T* to);
template <class T>
void divide_by_norm(Cuda, int64_t n, const T* from, const double* square, T* to);

}  // namespace kernels

}  // namespace tandem
