#include "src/inference/image_classifier.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "src/data/image_dataset.h"
#include "src/kernels/convert.h"
#include "src/weights/run_directory.h"

namespace tandem {

namespace {

std::vector<double> softmax(std::span<const float> logits) {
  if (!std::ranges::all_of(logits, [](float value) { return std::isfinite(value); })) {
    fail(ExitCode::kNumerical, "the model's logits are not finite; use an earlier checkpoint");
  }
  const double largest = *std::ranges::max_element(logits);
  std::vector<double> result;
  double total = 0;
  for (const float logit : logits) {
    result.push_back(std::exp(logit - largest));
    total += result.back();
  }
  for (double& value : result) {
    value /= total;
  }
  return result;
}

}  // namespace

DatasetInfo classes_of(const std::string& checkpoint, const Config& config) {
  const RunDirectory run = RunDirectory::of(checkpoint);
  return std::filesystem::exists(run.classes()) ? kept_classes(run.classes())
                                                : inspect_dataset(run.find(config.data.path));
}

ImageClassifier::ImageClassifier(const TrainedModel& trained, Machine& machine,
                                 const DatasetInfo& images, DType dtype)
    : trained_(trained),
      machine_(machine),
      images_(images),
      uploader_(machine.stream, machine.memory, machine.staging, images, dtype) {}

std::vector<std::vector<double>> ImageClassifier::probabilities(std::vector<uint8_t> pixels) {
  const int64_t count = std::ssize(pixels) / (images_.channels * images_.height * images_.width);
  const MicroBatch batch{.samples = count,
                         .targets = std::vector<int32_t>(static_cast<size_t>(count)),
                         .pixels = std::move(pixels),
                         .placements = std::vector<ImagePlacement>(static_cast<size_t>(count)),
                         .target_count = count};
  uploader_.send({&batch, 1});
  Context context = trained_.context(machine_);
  const Flow logits =
      run_blocks(context, trained_.model->blocks(), {Variable(uploader_.fetch(0).input)});
  Memory host(Device::kCpu);
  const Tensor values = copied_as_f32(machine_.stream, logits[0].value(), host);
  const int64_t columns = values.elements() / count;  // the classes, and padding
  std::vector<std::vector<double>> result;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(softmax(
        values.as<float>().subspan(static_cast<size_t>(i * columns), images_.classes.size())));
  }
  return result;
}

}  // namespace tandem
