// CIFAR-10 batches: src/prepare/images/image_batch_files.cpp src/prepare/images/image_collector.cpp
#include "src/prepare/images/image_collector.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

// Up to an empty line the names of the classes, then a batch.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input = fuzz::text_of(data, size);
  const size_t cut = std::min(input.find("\n\n"), input.size());
  const std::string batch = input.substr(std::min(cut + 2, input.size()));
  ImageStore store(fuzz::folder().path());
  BadRecords bad(INT64_MAX, BadRecords::Printing::kOff);
  fuzz::accepts(ExitCode::kData, [&] {
    ImageCollector collector(&store, &bad, RecordLimit());
    collector.add({"batches.meta.txt", "names", "", [&] { return input.substr(0, cut); }});
    collector.add({"data_batch_1.bin", "batch", "", [&] { return batch; }});
    collector.finish();
    const auto good = static_cast<int64_t>(store.images().size());
    fuzz::check((good + bad.count()) * 3073 == static_cast<int64_t>(batch.size()),
                "each record is an image or bad");
    for (const StoredImage& image : store.images()) {
      fuzz::check(image.label < static_cast<int32_t>(collector.classes().size()),
                  "a label is a class");
    }
  });
  return 0;
}
