#include "src/prepare/image_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/core/error.h"

namespace tandem {
namespace {

// Creates a file and removes its name, so that it vanishes when it is closed.
int open_unnamed(const std::string& folder) {
  std::string name = folder + "/.tandem-images-XXXXXX";
  const int descriptor = ::mkstemp(name.data());
  if (descriptor < 0) {
    fail_data(folder, ": cannot write here: ", std::strerror(errno));
  }
  ::unlink(name.c_str());
  return descriptor;
}

// Repeats the grey plane three times.
std::vector<uint8_t> grey_to_rgb(std::span<const uint8_t> plane) {
  std::vector<uint8_t> planes;
  planes.reserve(plane.size() * 3);
  for (int channel = 0; channel < 3; ++channel) {
    planes.insert(planes.end(), plane.begin(), plane.end());
  }
  return planes;
}

}  // namespace

ImageStore::ImageStore(const std::string& folder)
    : folder_(folder), descriptor_(open_unnamed(folder)) {}

std::string ImageStore::add(const Image& image, const std::string& name, ImagePart part,
                            int32_t label) {
  if (images_.empty()) {
    channels_ = image.channels;
    height_ = image.height;
    width_ = image.width;
  }
  if (image.height != height_ || image.width != width_) {
    return str(image.width, " x ", image.height, " pixels (width x height) where ",
               images_.front().name, " has ", width_, " x ", height_);
  }
  if (image.channels > channels_) {
    turn_to_rgb();
  }
  const std::vector<uint8_t> widened =
      image.channels < channels_ ? grey_to_rgb(image.pixels) : std::vector<uint8_t>();
  const std::span<const uint8_t> pixels = widened.empty() ? image.pixels : widened;
  const auto slot = std::ssize(images_);
  write(slot, pixels);
  images_.push_back({name, part, label, slot, hash_of(pixels.data(), std::ssize(pixels))});
  return "";
}

void ImageStore::write(int64_t slot, std::span<const uint8_t> pixels) {
  const int problem =
      write_at(descriptor_, slot * image_bytes(), pixels.data(), std::ssize(pixels));
  if (problem != 0) {
    fail_data(folder_, ": cannot write: ", std::strerror(problem),
              "; until the dataset is complete, free space of twice its size is needed here");
  }
}

void ImageStore::read(const StoredImage& image, std::span<uint8_t> pixels) const {
  require(std::ssize(pixels) == image_bytes(), "ImageStore: wrong image size");
  int64_t at = image.slot * image_bytes();
  while (!pixels.empty()) {
    const ssize_t got = ::pread(descriptor_, pixels.data(), pixels.size(), at);
    if (got == 0 || (got < 0 && errno != EINTR)) {
      fail_data(folder_,
                ": cannot read an image back: ", got == 0 ? "the file ends" : std::strerror(errno));
    }
    pixels = pixels.subspan(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    at += std::max<ssize_t>(got, 0);
  }
}

void ImageStore::turn_to_rgb() {
  ImageStore wide(folder_);
  wide.channels_ = 3;
  wide.height_ = height_;
  wide.width_ = width_;
  std::vector<uint8_t> plane(static_cast<size_t>(image_bytes()));
  for (StoredImage& image : images_) {
    read(image, plane);
    const std::vector<uint8_t> planes = grey_to_rgb(plane);
    wide.write(image.slot, planes);
    image.hash = hash_of(planes.data(), std::ssize(planes));
  }
  descriptor_.swap(wide.descriptor_);
  channels_ = 3;
}

}  // namespace tandem
