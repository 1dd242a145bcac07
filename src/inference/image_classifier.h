// The classes of images.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/inference/trained_model.h"
#include "src/step/upload.h"

namespace tandem {

// The classes of a trained model, and the size of its images: from RUN/classes.h5 beside
// RUN/checkpoints/step-..., or from the dataset that the model was trained on. Error kData if there
// is neither.
DatasetInfo classes_of(const std::string& checkpoint, const Config& config);

class ImageClassifier {
 public:
  // All of these must outlive it. `images`: as classes_of(); `dtype`: of the model's weights.
  ImageClassifier(const TrainedModel& trained, Machine& machine, const DatasetInfo& images,
                  DType dtype);

  // `pixels`: images [C, H, W], one after the other. Returns, for each, how likely each class is:
  // the softmax of its logits; Error kNumerical where these are not finite. On the CPU an image's
  // probabilities depend, to the bit, on it alone.
  std::vector<std::vector<double>> probabilities(std::vector<uint8_t> pixels);

 private:
  const TrainedModel& trained_;
  Machine& machine_;
  const DatasetInfo& images_;
  Uploader uploader_;
};

}  // namespace tandem
