// Requests for the classes of images, as SageMaker's clients send them.
#pragma once

#include "src/data/dataset.h"
#include "src/serve/api.h"
#include "src/serve/image_service.h"

namespace tandem {

// POST /invocations: a JPEG or PNG file, of any size that is decoded (src/prepare/images/image.h),
// which is fitted to the model's. The answer has the five most likely classes:
// {"predictions": [{"label": "cat", "probability": 0.9}, ...]}. `images` must outlive the API.
std::map<std::string, Api::Post> image_posts(const DatasetInfo& images, ImageService& service);

}  // namespace tandem
