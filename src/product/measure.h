// Times the ways of computing given products on the GPU in use, and chooses the fastest that is
// right. Only builds with CUDA have it; it needs neither MPI nor HDF5.
#pragma once

#include <functional>

#include "src/device/stream.h"
#include "src/product/product_choice.h"

namespace tandem {

// Names the GPU and the library of this process, and has no choices.
ProductChoices no_choices();

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
ProductChoices measure_products(const Stream& stream, const ProductSet& products,
                                const std::function<void(const std::string&)>& warn);

}  // namespace tandem
