#include "src/serve/image_service.h"

namespace tandem {

void ImageService::run(ImageClassifier& classifier, int64_t batch,
                       const std::function<bool()>& stops, std::chrono::milliseconds grace) {
  classifier_ = &classifier;
  batch_ = batch;
  ModelService::run(stops, grace);
}

void ImageService::begin(std::deque<WaitingImage>& queue) {
  while (std::ssize(begun_) < batch_ && !queue.empty()) {
    begun_.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  metrics_.set_load(std::ssize(queue), std::ssize(begun_));
}

void ImageService::step() {
  std::vector<uint8_t> pixels;
  for (const WaitingImage& image : begun_) {
    pixels.insert(pixels.end(), image.pixels.begin(), image.pixels.end());
  }
  const auto probabilities = classifier_->probabilities(std::move(pixels));
  for (size_t i = 0; i < begun_.size(); ++i) {
    metrics_.count_image(std::chrono::duration<double>(Clock::now() - begun_[i].came).count());
    begun_[i].client->answer(probabilities[i]);
  }
  begun_.clear();
}

void ImageService::fail_begun(int status, const std::string& why) {
  for (const WaitingImage& image : begun_) {
    image.client->fail(status, why);
  }
  begun_.clear();
}

}  // namespace tandem
