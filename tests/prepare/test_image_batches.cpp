// Datasets of IDX files and CIFAR-10 batches.
#include <filesystem>
#include <random>

#include "src/data/dataset.h"
#include "tests/prepare/image_sets.h"

namespace tandem::testing {
namespace {

TEST(ImageBatches, IdxFiles) {
  const TemporaryFolder folder;
  folder.write("set/train-images-idx3-ubyte", idx_of({3, 2, 2}, "abcdefghijkl"));
  folder.write("set/train-labels-idx1-ubyte", idx_of({3}, std::string("\5\0\2", 3)));
  folder.write("set/t10k-images-idx3-ubyte.gz", gzip(idx_of({1, 2, 2}, "abcd")));
  const std::string labels = folder.write("set/t10k-labels-idx1-ubyte.gz", gzip(idx_of({1}, "\1")));
  const PrepareReport report = prepare(folder, folder / "set");
  EXPECT_EQ(report.train_count, 3);
  EXPECT_EQ(report.val_count, 1);
  EXPECT_EQ(report.class_count, 6);
  EXPECT_EQ(report.leaked, 1);
  EXPECT_EQ(pixels_of(folder, "train").back(), 'l');
  EXPECT_EQ(labels_of(folder, "train"), (std::vector<int32_t>{5, 0, 2}));
  EXPECT_EQ(inspect_dataset(folder / "out/data.h5").classes,
            (Strings{"0", "1", "2", "3", "4", "5"}));

  folder.write("set/t10k-labels-idx1-ubyte.gz", gzip(idx_of({2}, "\1\2")));
  expect_error(ExitCode::kData, {"t10k-labels-idx1-ubyte.gz: 2 labels for the 1 images of"},
               [&] { prepare(folder, folder / "set"); });
  std::filesystem::remove(labels);
  expect_error(ExitCode::kData,
               {"t10k-images-idx3-ubyte.gz: the labels that go with it are missing"},
               [&] { prepare(folder, folder / "set"); });
  folder.write("set/t10k-labels-idx1-ubyte", idx_of({1}, "\1\2"));
  expect_error(ExitCode::kData, {"t10k-labels-idx1-ubyte: the header announces 1 records"},
               [&] { prepare(folder, folder / "set"); });
  folder.write("set/t10k-labels-idx1-ubyte", idx_of({1}, "\1"));
  folder.write("set/train-images-idx3-ubyte", idx_of({3, 2, 2}, "abcdefghijk"));
  expect_error(ExitCode::kData,
               {"train-images-idx3-ubyte: the header announces 3", "cut short at 11"},
               [&] { prepare(folder, folder / "set"); });
  folder.write("set/train-images-idx3-ubyte", idx_of({3, 0, 8}, ""));
  expect_error(ExitCode::kData, {"train-images-idx3-ubyte: images of 8 x 0 pixels"},
               [&] { prepare(folder, folder / "set"); });
  folder.write("set/train-images-idx3-ubyte", "something else");
  expect_error(ExitCode::kData, {"train-images-idx3-ubyte: not an IDX file"},
               [&] { prepare(folder, folder / "set"); });
}

// There are no images, but the size of one does not fit into 64 bits.
TEST(ImageBatches, IdxSizesThatOverflow) {
  const TemporaryFolder folder;
  folder.write("set/train-images-idx3-ubyte", idx_of({0, 0xf9fffffc, 0xfffffffc}, ""));
  folder.write("set/train-labels-idx1-ubyte", idx_of({0}, ""));
  expect_error(ExitCode::kData, {"train-images-idx3-ubyte: damaged IDX header"},
               [&] { prepare(folder, folder / "set"); });
}

TEST(ImageBatches, CifarBatches) {
  const TemporaryFolder folder;
  const auto record = [](char label, char pixel) { return label + std::string(3072, pixel); };
  const std::vector<NamedFile> files = {
      {"cifar-10-batches-bin/batches.meta.txt", "airplane\r\nfire engine \nbird\n\n"},
      {"cifar-10-batches-bin/data_batch_1.bin", record(1, 'a') + record(0, 'b')},
      {"cifar-10-batches-bin/data_batch_2.bin", record(2, 'c')},
      {"cifar-10-batches-bin/test_batch.bin", record(1, 'd')}};
  const auto report = prepare(folder, folder.write("cifar.tar.gz", gzip(tar_of(files))));
  EXPECT_EQ(report.train_count, 3);
  EXPECT_EQ(report.val_count, 1);
  EXPECT_EQ(labels_of(folder, "train"), (std::vector<int32_t>{1, 0, 2}));
  EXPECT_EQ(pixels_of(folder, "train")[3072], 'b');
  EXPECT_EQ(inspect_dataset(folder / "out/data.h5").classes,
            (Strings{"airplane", "fire engine", "bird"}));

  std::vector<NamedFile> twice = files;
  twice.push_back({"copy/batches.meta.txt", "airplane\n"});
  expect_error(ExitCode::kData, {"copy/batches.meta.txt: a second list of class names; keep one"},
               [&] { prepare(folder, folder.write("cifar.tar", tar_of(twice))); });
  std::vector<NamedFile> cut = files;
  cut[1].bytes.pop_back();
  expect_error(ExitCode::kData, {"data_batch_1.bin: 3072 bytes after record 1 "},
               [&] { prepare(folder, folder.write("cifar.tar", tar_of(cut))); });
  std::vector<NamedFile> odd = files;
  odd[1].bytes[3073] = 10;
  ::testing::internal::CaptureStderr();
  expect_error(ExitCode::kData, {"1 bad record, more than --max-bad 0"},
               [&] { prepare(folder, folder.write("cifar.tar", tar_of(odd))); });
  EXPECT_NE(::testing::internal::GetCapturedStderr().find(
                "data_batch_1.bin record 1: label 10 where 0 to 9 are allowed"),
            std::string::npos);
}

// Archives are read, and inflated, in blocks of 2^18 bytes.
TEST(ImageBatches, AnArchiveOfManyBlocks) {
  const TemporaryFolder folder;
  std::minstd_rand random(1);
  std::string batch(300 * 3073, '\0');  // noise, which does not become shorter
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i] = static_cast<char>(i % 3073 == 0 ? 0 : random() >> 16);
  }
  const std::vector<NamedFile> files = {
      {"cifar-10-batches-bin/batches.meta.txt", "airplane\n"},
      {"cifar-10-batches-bin/data_batch_1.bin", batch},
      {"cifar-10-batches-bin/test_batch.bin", std::string(3073, '\0')}};
  prepare(folder, folder.write("cifar.tar.gz", gzip(tar_of(files))));
  std::vector<uint8_t> expected;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (i % 3073 > 0) {
      expected.push_back(static_cast<uint8_t>(batch[i]));
    }
  }
  EXPECT_EQ(pixels_of(folder, "train"), expected);
}

// Images are written in blocks of 256: two whole blocks and a part of one.
TEST(ImageBatches, MoreImagesThanABlockHolds) {
  const TemporaryFolder folder;
  constexpr uint32_t kCount = 2 * 256 + 3;
  std::string pixels;
  for (uint32_t i = 0; i < kCount; ++i) {
    pixels += {static_cast<char>(i % 256), static_cast<char>(i / 256), '\0', '\7'};
  }
  folder.write("set/train-images-idx3-ubyte", idx_of({kCount, 2, 2}, pixels));
  folder.write("set/train-labels-idx1-ubyte", idx_of({kCount}, std::string(kCount, '\0')));
  PrepareImagesOptions options = options_of(folder, folder / "set");
  options.val_fraction = 0;
  EXPECT_EQ(prepare_images(options).train_count, kCount);
  EXPECT_EQ(pixels_of(folder, "train"), std::vector<uint8_t>(pixels.begin(), pixels.end()));
  verify_content(inspect_dataset(folder / "out/data.h5"), false);
}

}  // namespace
}  // namespace tandem::testing
