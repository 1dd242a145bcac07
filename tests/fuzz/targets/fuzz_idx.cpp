// IDX files: src/prepare/images/image_batch_files.cpp src/prepare/images/image_collector.cpp
// src/prepare/images/image_store.cpp
#include "src/prepare/images/image_collector.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

// The first two bytes are the length of the file of images, which follows; the rest is the file of
// labels.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) {
    return 0;
  }
  const std::string files = fuzz::text_of(data + 2, size - 2);
  const size_t cut = std::min<size_t>(data[0] | data[1] << 8, files.size());
  ImageStore store(fuzz::folder().path());
  BadRecords bad(INT64_MAX, BadRecords::Printing::kOff);
  fuzz::accepts(ExitCode::kData, [&] {
    ImageCollector collector(&store, &bad, RecordLimit());
    collector.add({"train-labels-idx1-ubyte", "labels", "", [&] { return files.substr(cut); }});
    collector.add({"train-images-idx3-ubyte", "images", "", [&] { return files.substr(0, cut); }});
    collector.finish();
    std::vector<uint8_t> pixels(static_cast<size_t>(store.image_bytes()));
    for (const StoredImage& image : store.images()) {
      store.read(image, pixels);
      fuzz::check(hash_of(pixels.data(), store.image_bytes()) == image.hash,
                  "pixels are read as they were stored");
      fuzz::check(image.label < static_cast<int32_t>(collector.classes().size()),
                  "a label is a class");
    }
  });
  return 0;
}
