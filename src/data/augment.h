// The random crop and flip of training.
#pragma once

#include <cstdint>

#include "src/core/image_placement.h"

namespace tandem {

// Padding of four pixels on each side, a random crop of the original size, and a flip with
// probability 1/2 (He et al. 2016, "Deep residual learning", section 4.2). A pure function of its
// arguments.
ImagePlacement random_crop_and_flip(uint64_t seed, int64_t epoch, int64_t position);

}  // namespace tandem
