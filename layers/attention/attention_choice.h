// Who computes attention where kernels.attention = auto: Tandem's kernels, or cuDNN where it was
// measured to be faster. Only builds with CUDA have it.
#pragma once

#include "layers/attention/cudnn_attention.h"
#include "src/device/stream.h"

namespace tandem {

// Notes the choice (src/product/product_choice.h), and says what was chosen; without a choice,
// Tandem's kernels compute. Only their sizes for tensor cores, up to 131072 positions, and a cuDNN
// that can be loaded leave a choice. Where this run chose cuDNN and it cannot be loaded now, a line
// on stderr says so once.
bool is_by_cudnn(const Stream& stream, const cudnn_attention::Problem& problem);

}  // namespace tandem
