// Holds the images of a dataset being prepared, until it is known which split each belongs to.
//
// The pixels wait in a temporary file beside the output, so that memory does not grow with their
// number.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/io/content_hash.h"
#include "src/prepare/images/image.h"
#include "src/prepare/temporary_file.h"

namespace tandem {

// The split of the input that an image came from.
enum class ImagePart : uint8_t { kTrain, kVal, kTest, kNone };

struct StoredImage {
  std::string name;  // unique; images are sorted by it
  ImagePart part = ImagePart::kNone;
  int32_t label = 0;
  int64_t slot = 0;  // place in the file
  Hash128 hash;      // of the pixels
};

class ImageStore {
 public:
  // `folder`: where the output will be written. height, width: of images, or 0.
  explicit ImageStore(const std::string& folder, int64_t height = 0, int64_t width = 0);

  // Adds an image, fitted to the size if there is one. Otherwise the first image decides height and
  // width; returns the problem with an image of another size, and nothing for others. Once one
  // image has colour, all images become RGB, earlier ones too.
  std::string add(const Image& image, const std::string& name, ImagePart part, int32_t label);

  int64_t channels() const { return channels_; }
  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  int64_t image_bytes() const { return channels_ * height_ * width_; }

  // In the order of add(). Callers may sort and relabel them.
  std::vector<StoredImage>& images() { return images_; }

  // Reads the pixels [C, H, W] of one image.
  void read(const StoredImage& image, std::span<uint8_t> pixels) const;

 private:
  void turn_to_rgb();

  std::string folder_;
  bool fits_;  // images to the size
  std::unique_ptr<TemporaryFile> file_;
  int64_t channels_ = 0;
  int64_t height_ = 0;
  int64_t width_ = 0;
  std::vector<StoredImage> images_;
};

}  // namespace tandem
