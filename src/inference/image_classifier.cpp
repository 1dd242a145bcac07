#include "src/inference/image_classifier.h"

#include <cmath>
#include <filesystem>

#include "src/data/image_dataset.h"
#include "src/inference/token_sampler.h"
#include "src/kernels/convert.h"
#include "src/weights/run_directory.h"

namespace tandem {

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
  const Flow output =
      run_blocks(context, trained_.model->blocks(), {Variable(uploader_.fetch(0).input)});
  Memory host(Device::kCpu);
  const Tensor values = copied_as_f32(machine_.stream, output[0].value(), host);
  const int64_t columns = values.elements() / count;  // the classes, and padding
  std::vector<std::vector<double>> result;
  for (int64_t i = 0; i < count; ++i) {
    const auto logits =
        values.as<float>().subspan(static_cast<size_t>(i * columns), images_.classes.size());
    const double total = log_sum_exp(logits);
    std::vector<double>& of_image = result.emplace_back();
    for (const float logit : logits) {
      of_image.push_back(std::exp(logit - total));
    }
  }
  return result;
}

}  // namespace tandem
