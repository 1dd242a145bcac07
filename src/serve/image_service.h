// Images whose classes are asked for: as many as there are, up to a batch, go through the model
// together.
#pragma once

#include <memory>
#include <vector>

#include "src/inference/image_classifier.h"
#include "src/serve/metrics.h"
#include "src/serve/model_service.h"

namespace tandem {

class ImageClient : public ModelClient {
 public:
  // How likely each class is. Called by the thread of ImageService::run().
  virtual void answer(const std::vector<double>& probabilities) = 0;
};

struct WaitingImage {
  std::shared_ptr<ImageClient> client;
  std::vector<uint8_t> pixels;  // [C, H, W] of the model's images
  ModelState::Clock::time_point came = ModelState::Clock::now();
};

class ImageService final : public ModelService<WaitingImage> {
 public:
  ImageService(int64_t queue, ServeMetrics& metrics) : ModelService(queue), metrics_(metrics) {}

  // Any thread, as ModelService::enqueue().
  void submit(std::shared_ptr<ImageClient> client, std::vector<uint8_t> pixels) {
    enqueue({std::move(client), std::move(pixels)});
  }

  // Answers, as ModelService::run(), up to `batch` images at a time.
  void run(ImageClassifier& classifier, int64_t batch, const std::function<bool()>& stops,
           std::chrono::milliseconds grace);

 private:
  void drop_gone() override {}  // none has begun between two steps
  void begin(std::deque<WaitingImage>& queue) override;
  bool is_idle() const override { return begun_.empty(); }
  void step() override;
  void fail_begun(int status, const std::string& why) override;

  ServeMetrics& metrics_;
  ImageClassifier* classifier_ = nullptr;  // of run()
  int64_t batch_ = 1;
  std::vector<WaitingImage> begun_;
};

}  // namespace tandem
