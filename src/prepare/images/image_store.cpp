#include "src/prepare/images/image_store.h"

#include <utility>

#include "src/core/error.h"
#include "src/prepare/images/fit.h"

namespace tandem {

ImageStore::ImageStore(const std::string& folder, int64_t height, int64_t width)
    : folder_(folder),
      fits_(height > 0),
      file_(std::make_unique<TemporaryFile>(folder)),
      height_(height),
      width_(width) {}

std::string ImageStore::add(const Image& image, const std::string& name, ImagePart part,
                            int32_t label) {
  if (images_.empty()) {
    channels_ = image.channels;
    height_ = fits_ ? height_ : image.height;
    width_ = fits_ ? width_ : image.width;
  }
  if (image.height != height_ || image.width != width_) {
    if (fits_) {
      return add(fitted(image, image.channels, height_, width_), name, part, label);
    }
    return str(image.width, " x ", image.height, " pixels (width x height) where ",
               images_.front().name, " has ", width_, " x ", height_,
               "; --width and --height scale all images");
  }
  if (image.channels > channels_) {
    turn_to_rgb();
  }
  const std::vector<uint8_t> widened =
      image.channels < channels_ ? grey_to_rgb(image.pixels) : std::vector<uint8_t>();
  const std::span<const uint8_t> pixels = widened.empty() ? image.pixels : widened;
  const auto slot = std::ssize(images_);
  file_->append(pixels.data(), image_bytes());
  images_.push_back({name, part, label, slot, hash_of(pixels.data(), std::ssize(pixels))});
  return "";
}

void ImageStore::read(const StoredImage& image, std::span<uint8_t> pixels) const {
  require(std::ssize(pixels) == image_bytes(), "ImageStore: wrong image size");
  file_->read(image.slot * image_bytes(), pixels.data(), image_bytes());
}

void ImageStore::turn_to_rgb() {
  ImageStore wide(folder_, height_, width_);
  wide.channels_ = 3;
  std::vector<uint8_t> plane(static_cast<size_t>(image_bytes()));
  for (StoredImage& image : images_) {
    read(image, plane);
    const std::vector<uint8_t> planes = grey_to_rgb(plane);
    wide.file_->append(planes.data(), wide.image_bytes());
    image.hash = hash_of(planes.data(), std::ssize(planes));
  }
  file_.swap(wide.file_);
  channels_ = 3;
}

}  // namespace tandem
