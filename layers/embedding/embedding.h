// Token embedding, with or without learned positions.
//
// The gradient uses no atomics: each of its elements is a sum over tokens in their order. On a GPU
// a token that occurs often is summed in a fixed number of stretches. So the bits depend neither on
// the number of threads nor on their timing.
#pragma once

#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

// y[b, t, :] = tokens_weight[tokens[b, t], :] + positions_weight[p, :], where p is t or, if
// there are any, context.positions[b, t]. tokens is i32 [B, T], tokens_weight [V, C],
// positions_weight [context, C] or null. Returns [B, T, C] of the weights' dtype. Throws
// Error(kData) for a token outside [0, V) on the CPU; for a GPU the host must check.
//
// If ranks cut the rows of tokens_weight, y is a rank's part of the sum over them: 0 instead of the
// rows of tokens that it has not, and instead of positions outside of context.rows.
Variable embedding(Context& context, const Tensor& tokens, Parameter& tokens_weight,
                   Parameter* positions_weight);

namespace kernels {

struct EmbeddingSizes {
  int64_t batch = 0, length = 0, width = 0, vocab = 0;
  Range tokens{0, vocab};          // those whose rows the weight has
  Range placed{0, batch* length};  // the rows of y that get positions
  int64_t count() const { return batch * length; }
  int64_t rows() const { return tokens.count(); }  // of the weight
};

// tokens [batch * length], weight [tokens.count(), width]. `of_positions` [context, width] may be
// null. positions [batch * length], or null: those in a row of the batch.
// y [batch * length, width]. On the CPU throws Error(kData) for a token outside [0, vocab); on a
// GPU the host must have checked them.
template <class T>
void embedding_forward(Cuda, const int32_t* tokens, const T* weight, const int32_t* positions,
                       const T* of_positions, T* y, const EmbeddingSizes& sizes);

// Workspace for embedding_backward_tokens, in i32 elements; count is below 2^31.
int64_t embedding_workspace(Device device, int64_t count, int64_t vocab);

// dweight [tokens.count(), width] = beta * dweight, then dweight[tokens[n] - first] += dy[n] for n
// in [0, count).
template <class T>
void embedding_backward_tokens(Cuda, const int32_t* tokens, const T* dy, Wide<T>* dweight,
                               Wide<T> beta, const EmbeddingSizes& sizes, int32_t* workspace);

// dweight [context, width] = beta * dweight, then dweight[t] += sum over b of dy[b, t]. If
// positions are given, their gradient is that of tokens.
template <class T>
void embedding_backward_positions(Cuda, const T* dy, Wide<T>* dweight, Wide<T> beta,
                                  int64_t context, const EmbeddingSizes& sizes);

}  // namespace kernels
}  // namespace tandem
