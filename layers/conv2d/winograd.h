// Convolutions with 3 x 3 taps and stride 1 on the CPU, by the minimal filtering algorithm
// F(2 x 2, 3 x 3) of Winograd 1980, as in Lavin and Gray 2016 ("Fast algorithms for convolutional
// neural networks"). Internal to conv2d.
//
// A tile of 2 x 2 outputs reads 4 x 4 inputs d. With * for elementwise products,
//     y = A^T [sum over input channels of (G w G^T) * (B^T d B)] A
// takes 16 products for each pair of channels; the definition takes 36. The gradient of the input
// is a convolution of dy with turned weights. The gradient of the weights is the same algorithm
// transposed:
//     dw = G^T [sum over tiles of (A dy A^T) * (B^T d B)] G.
//
// Accuracy: a term of the inner sum is at most nine times as large as a term of the definition, and
// the sum has a ninth of the terms. So the bound of the error, relative to the largest possible
// output, is about the same. That of the gradient of the weights is four times as large.
#pragma once

#include "layers/conv2d/conv2d.h"

namespace tandem::kernels {

// Whether this convolution, or its weight gradient, can be computed this way with fewer products.
// It needs channels in multiples of 16 on both sides.
bool winograd_pays(const Conv2dShape& shape);

// The convolution whose result is dx: its source is dy.
Conv2dShape winograd_backward_data(const Conv2dShape& shape);

// Workspaces, in elements of T.
template <class T>
int64_t winograd_workspace(const Conv2dShape& shape);
template <class T>
int64_t winograd_weight_workspace(const Conv2dShape& shape);

// y = beta * y + convolution of x. If `turned`, w is [in, 3, 3, out], and its taps are used in
// reverse order. Here and below, the order of sums depends only on the shape and on the width of
// the machine's vectors.
template <class T>
void winograd_convolve(const Conv2dShape& shape, bool turned, const T* x, const T* w, T* y, T beta,
                       T* workspace);

// dw = beta * dw + gradient.
template <class T>
void winograd_backward_weight(const Conv2dShape& shape, const T* x, const T* dy, T* dw, T beta,
                              T* workspace);

}  // namespace tandem::kernels
