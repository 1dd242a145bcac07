#include <fstream>

#include "src/prepare/images/image.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

// PNG has checksums, so a flipped bit is noticed wherever it is. JPEG has none: a flipped bit may
// change pixels or be noticed, and must do nothing else.
TEST(Image, DamageAnywhereIsSurvived) {
  const std::string png = png_of(test_image(3, 9, 9, 1));
  for (const std::string& file : {jpeg_of(test_image(3, 9, 9, 1)), png}) {
    for (size_t at = 0; at < file.size(); ++at) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
      Image image;
      const bool noticed = !decode_image(damaged, &image).empty();
      EXPECT_TRUE(noticed || file != png) << "byte " << at;
      EXPECT_NE(decode_image(file.substr(0, at), &image), "") << at;
    }
  }
}

// What would take gigabytes or minutes to decode is refused after its header.
TEST(Image, HugeImagesAreRefused) {
  const auto problem_of = [](const std::string& file) {
    Image image;
    return decode_image(file, &image);
  };
  std::string jpeg = jpeg_of(test_image(3, 8, 8, 1));
  const size_t frame = jpeg.find("\xFF\xC0");
  jpeg.replace(frame + 5, 4, "\x75\x30\x75\x30");  // 30,000 x 30,000
  EXPECT_EQ(problem_of(jpeg), "unusable JPEG: more than 2^25 pixels");
  const Image large{1, 4097, 8192, std::vector<uint8_t>(4097 * 8192)};
  EXPECT_EQ(problem_of(png_of(large)), "unusable PNG: more than 2^25 pixels");
  const Image grey = test_image(1, 64, 64, 1);
  EXPECT_EQ(problem_of(jpeg_of(grey, 64)), "");
  EXPECT_EQ(problem_of(jpeg_of(grey, 66)), "unusable JPEG: more than 64 scans");
}

// The most memory that this process has had, in KiB.
int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "VmPeak:") {
  }
  int64_t kib = 0;
  status >> kib;
  return kib;
}

TEST(Image, TextInAPngTakesNoMemory) {
  std::string png = png_of(test_image(3, 8, 8, 1)).substr(0, 33);     // to the header's end
  png += std::string("\x40\0\0\0iTXtComment\0", 16) + "and no more";  // says a gigabyte
  const int64_t before = peak_memory();
  Image image;
  EXPECT_EQ(decode_image(png, &image), "unusable PNG: the file is cut short");
  EXPECT_GT(before, 0);
  EXPECT_LT(peak_memory() - before, 512 << 10);
}

}  // namespace
}  // namespace tandem::testing
