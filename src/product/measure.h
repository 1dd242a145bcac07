// Times the ways of computing what a step leaves open on the GPU in use, and chooses the fastest
// that is right. Only builds with CUDA have it; it needs neither MPI nor HDF5.
#pragma once

#include "src/device/stream.h"
#include "src/product/product_choice.h"

namespace tandem {

// Names the GPU and the library of this process, and has no choices.
KernelChoices no_choices();

// Returns a choice for each product, and for each of them without its last step. The first 8
// suggestions of cuBLASLt are tried. A time is the median of several runs. A suggestion
// takes the place of an earlier one if it is 2 % faster, so that choices depend little on noise.
//
// Operands are small integers at addresses with just these alignments. So their products and all
// partial sums are exact, and each suggestion must give the result of our own kernel bit for bit;
// with GELU, whose sums are not rounded when fused, within the bounds of product.h. One that gives
// another result, or throws, is left out, and `warn` gets a line that names it.
//
// The stream is a CUDA stream, and blocks the host. Errors: kOutOfMemory if the operands of one
// product do not fit; kInternal if each suggestion for a product without a last step is wrong.
KernelChoices measure_products(const Stream& stream, const ProductSet& products, const Warn& warn);

// Measures all open choices: products as above, and each library by its own function.
KernelChoices measure(const Stream& stream, const OpenChoices& open, const Warn& warn);

// A way takes the place of an earlier one if it takes less than this share of its time.
inline constexpr double kWorth = 0.98;

// The median of the seconds that `run` takes on a CUDA stream.
double median_seconds(CUstream_st* stream, const std::function<void()>& run);

// Whether no element is further from the expected one than kernels::compare (gemm.h) allows. Blocks
// the host.
bool agree(const Stream& stream, Memory& memory, const Tensor& found, const Tensor& expected,
           const Tensor& size, double slack);

// Fills the rest of a GPU's tensor with copies of its first elements.
void repeat(const Stream& stream, const Tensor& tensor, int64_t first);

}  // namespace tandem
