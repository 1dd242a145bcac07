// RMSNorm over each head of queries and keys, and then their rotation, in one pass (Henry et al.
// 2020, arXiv:2010.04245; Qwen3).
#pragma once

#include "layers/rope/rope.h"

namespace tandem {

// Queries and keys of qkv [B, T, layout.row()], each head normalised as by rms_norm and then
// rotated as by rope; values are not changed. gains [2 D]: those of queries, then those of keys.
// The even head width D is layout.width. Backward keeps qkv and one number for each head.
Variable norm_rope(Context& context, const Variable& qkv, Parameter& gains, double epsilon,
                   const HeadLayout& layout, const RopeFrequencies& frequencies = {});

namespace kernels {

// x and y [batch, length, row], gains [2 width], rstd [batch, length, heads + kv_heads]: what
// normalised heads were multiplied by.
template <class T>
void norm_rope_forward(Cuda, const Rotation& of, const T* x, const T* gains, T* y, Wide<T>* rstd,
                       Wide<T> epsilon);

// dx = beta * dx + gradient with respect to x. dgains [batch * length, 2 width]: the gradient of
// the gains, for each row.
template <class T>
void norm_rope_backward(Cuda, const Rotation& of, const T* dy, const T* x, const T* gains,
                        const Wide<T>* rstd, T* dx, Wide<T> beta, Wide<T>* dgains);

}  // namespace kernels
}  // namespace tandem
