// A micro-batch in host memory, ready for upload.
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/ignore_target.h"
#include "src/core/image_placement.h"

namespace tandem {

struct MicroBatch {
  int64_t samples = 0;                  // B
  std::vector<int32_t> tokens = {};     // text: [B, T]
  std::vector<int32_t> targets = {};    // text: [B, T], one token later; images: [B], classes
  std::vector<int32_t> positions = {};  // windows of documents: [B, T], in the token's document
  std::vector<uint8_t> pixels = {};     // images: [B, C, H, W], as stored
  std::vector<ImagePlacement> placements = {};  // images: [B]
  int64_t target_count = 0;                     // targets that are not kIgnoreTarget
};

}  // namespace tandem
