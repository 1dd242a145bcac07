#include "src/serve/image_requests.h"

#include <algorithm>
#include <numeric>

#include "src/prepare/images/fit.h"
#include "src/serve/json_answer.h"

namespace tandem {

namespace {

class Predictions final : public ImageClient {
 public:
  Predictions(std::shared_ptr<HttpAnswer> answer, const DatasetInfo& images)
      : answer_(std::move(answer)), images_(images) {}

  bool is_gone() const override { return answer_->is_gone(); }
  void answer(const std::vector<double>& probabilities) override {
    constexpr int64_t kMostLikely = 5;
    std::vector<size_t> order(probabilities.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return probabilities[i]; });
    nlohmann::ordered_json predictions = nlohmann::json::array();
    for (int64_t i = 0; i < std::min(kMostLikely, std::ssize(order)); ++i) {
      predictions.push_back(
          {{"label", images_.classes[order[i]]}, {"probability", probabilities[order[i]]}});
    }
    answer_->send(200, "application/json", dumped({{"predictions", std::move(predictions)}}));
  }
  void fail(int status, const std::string& why) override { send_error(*answer_, status, why); }

 private:
  std::shared_ptr<HttpAnswer> answer_;
  const DatasetInfo& images_;
};

// SageMaker's own clients say application/x-image.
bool is_image(const std::string& content_type) {
  return content_type.starts_with("image/") || content_type == "application/x-image";
}

}  // namespace

std::map<std::string, Api::Post> image_posts(const DatasetInfo& images, ImageService& service) {
  const auto classify = [&](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    if (!is_image(request.content_type)) {
      throw HttpError(415, "this model reads images: send image/jpeg or image/png");
    }
    Image image;
    if (const std::string problem = decode_image(request.body, &image); !problem.empty()) {
      throw HttpError(400, problem);
    }
    image = fitted(image, images.channels, images.height, images.width);
    service.submit(std::make_shared<Predictions>(answer, images), std::move(image.pixels));
  };
  return {{"/invocations", classify}};
}

}  // namespace tandem
