#include <sys/stat.h>

#include <cmath>
#include <filesystem>

#include "src/data/dataset.h"
#include "src/prepare/images/fit.h"
#include "tests/prepare/image_sets.h"

namespace tandem::testing {
namespace {

// Five pictures in two classes, three for training.
std::vector<NamedFile> small_set() {
  return {{"train/dog/b.png", png_of(test_image(3, 8, 10, 1))},
          {"train/cat/a.png", png_of(test_image(3, 8, 10, 2))},
          {"train/cat/deeper/c.PNG", png_of(test_image(3, 8, 10, 3))},
          {"test/dog/d.jpg", jpeg_of(test_image(3, 8, 10, 4))},
          {"test/cat/e.png", png_of(test_image(3, 8, 10, 5))},
          {"README.txt", "about these pictures"},
          {".hidden/x.png", "not looked at"}};
}

std::string write_set(const TemporaryFolder& folder, const std::vector<NamedFile>& files) {
  for (const NamedFile& file : files) {
    folder.write("set/" + file.name, file.bytes);
  }
  return folder / "set";
}

TEST(PrepareImages, ClassFoldersWithASplit) {
  const TemporaryFolder folder;
  const PrepareReport report = prepare(folder, write_set(folder, small_set()));
  EXPECT_EQ(report.train_count, 3);
  EXPECT_EQ(report.val_count, 2);
  EXPECT_EQ(report.class_count, 2);
  EXPECT_EQ(report.ignored_files, 1);
  EXPECT_EQ(report.leaked, 0);
  const DatasetInfo info = inspect_dataset(folder / "out/data.h5");
  EXPECT_EQ(info.classes, (Strings{"cat", "dog"}));
  EXPECT_EQ(info.channels, 3);
  EXPECT_EQ(info.height, 8);
  EXPECT_EQ(info.width, 10);
  EXPECT_EQ(info.content_hash, compute_content_hash(folder / "out/data.h5"));
  // In the order of names: cat/a, cat/deeper/c, dog/b. PNG keeps every pixel.
  std::vector<uint8_t> expected;
  for (const int seed : {2, 3, 1}) {
    const Image image = test_image(3, 8, 10, seed);
    expected.insert(expected.end(), image.pixels.begin(), image.pixels.end());
  }
  EXPECT_EQ(pixels_of(folder, "train"), expected);
  EXPECT_EQ(labels_of(folder, "train"), (std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(labels_of(folder, "val"), (std::vector<int32_t>{0, 1}));
  // Mean and deviation by their definition, over the pixels of one channel.
  double mean = 0;
  double square = 0;
  for (size_t image = 0; image < 3; ++image) {
    for (size_t i = 0; i < 80; ++i) {
      const double value = expected[image * 240 + 80 + i] / 255.0;
      mean += value / 240;
      square += value * value / 240;
    }
  }
  // Both sums are of 240 numbers below 1: rounding errors stay below 240 * 2^-53 = 3e-14, and the
  // root of a variance of about 0.1 does not enlarge them tenfold.
  EXPECT_NEAR(info.mean[1], mean, 3e-13);
  EXPECT_NEAR(info.std[1], std::sqrt(square - mean * mean), 3e-13);
}

TEST(PrepareImages, JpegIsDecodedAsLibjpegDoes) {
  const TemporaryFolder folder;
  // JPEG changes an image of one colour by at most its quantisation, here 1.
  Image image{3, 16, 16, std::vector<uint8_t>(768, 200)};
  write_set(folder, {{"train/a/1.jpg", jpeg_of(image)}});
  prepare(folder, folder / "set");
  for (const uint8_t pixel : pixels_of(folder, "train")) {
    EXPECT_NEAR(pixel, 200, 1);
  }
}

TEST(PrepareImages, AnArchiveGivesTheSameAsItsFolder) {
  const TemporaryFolder folder;
  const std::vector<NamedFile> files = small_set();
  const std::string hash = prepare(folder, write_set(folder, files)).content_hash;
  EXPECT_EQ(prepare(folder, folder.write("set.tar", tar_of(files))).content_hash, hash);
  EXPECT_EQ(prepare(folder, folder.write("set.tar.gz", gzip(tar_of(files)))).content_hash, hash);
  // The same files in another order, and inside one more folder.
  const std::vector<NamedFile> reversed(files.rbegin(), files.rend());
  EXPECT_EQ(prepare(folder, folder.write("set.tar", tar_of(reversed))).content_hash, hash);
  std::vector<NamedFile> inside = files;
  for (NamedFile& file : inside) {
    file.name = "photos/" + file.name;
  }
  EXPECT_EQ(prepare(folder, folder.write("set.tar", tar_of(inside))).content_hash, hash);
}

TEST(PrepareImages, WithoutASplitAFractionOfEachClassIsValidation) {
  const TemporaryFolder folder;
  std::vector<NamedFile> files;
  for (int i = 0; i < 40; ++i) {
    files.push_back({str(i < 20 ? "cat/" : "dog/", i, ".png"), png_of(test_image(1, 4, 4, i))});
  }
  PrepareImagesOptions options = options_of(folder, write_set(folder, files));
  options.val_fraction = 0.25;
  const PrepareReport report = prepare_images(options);
  EXPECT_EQ(report.train_count, 30);
  EXPECT_EQ(labels_of(folder, "val"), (std::vector<int32_t>{0, 0, 0, 0, 0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(inspect_dataset(folder / "out/data.h5").channels, 1);
  EXPECT_EQ(prepare_images(options).content_hash, report.content_hash);
  options.val_fraction = 0.0;
  EXPECT_EQ(prepare_images(options).val_count, 0);
}

// Half an image is a whole one: 0.1 and 0.3 of five are one and two.
TEST(PrepareImages, TheShareOfAClassIsRoundedToTheNearest) {
  const TemporaryFolder folder;
  std::vector<NamedFile> files;
  for (int i = 0; i < 5; ++i) {
    files.push_back({str("cat/", i, ".png"), png_of(test_image(1, 4, 4, i))});
  }
  PrepareImagesOptions options = options_of(folder, write_set(folder, files));
  for (const auto& [fraction, count] : {std::pair{0.1, 1}, {0.3, 2}}) {
    options.val_fraction = fraction;
    EXPECT_EQ(prepare_images(options).val_count, count) << fraction;
  }
}

TEST(PrepareImages, TheHashKnowsTheAttributes) {
  const TemporaryFolder folder;
  prepare(folder, write_set(folder, small_set()));
  std::string bytes = read_bytes(folder / "out/data.h5");
  bytes.resize(bytes.rfind("tandem seal "));  // it would find the changes before
  const DatasetInfo info = inspect_dataset(folder / "out/data.h5");
  verify_content(info, false);
  const auto expect_noticed = [&](const std::string& stored, size_t at, char mask) {
    std::string changed = bytes;
    const size_t place = bytes.find(stored);
    ASSERT_NE(place, std::string::npos);
    changed[place + at] = static_cast<char>(changed[place + at] ^ mask);
    const std::string path = folder.write("changed.h5", changed);
    expect_error(ExitCode::kData, {"changed.h5: the content does not have the hash"},
                 [&] { verify_content(inspect_dataset(path), false); });
  };
  for (const double value : {info.mean[1], info.std[2]}) {
    expect_noticed({reinterpret_cast<const char*>(&value), sizeof value}, 0, 1);  // the last bit
  }
  expect_noticed("cat\ndog", 0, 1);
}

TEST(PrepareImages, ValWinsOverTest) {
  const TemporaryFolder folder;
  std::vector<NamedFile> files = small_set();
  files.push_back({"val/cat/f.png", png_of(test_image(3, 8, 10, 6))});
  EXPECT_EQ(prepare(folder, write_set(folder, files)).val_count, 1);
  EXPECT_EQ(pixels_of(folder, "val"), test_image(3, 8, 10, 6).pixels);
}

TEST(PrepareImages, SplitsHaveSeveralNames) {
  const std::string image = png_of(test_image(3, 8, 10, 1));
  for (const auto& [train, val] :
       {std::pair{"training", "validation"}, {"Train", "valid"}, {"train", "testing"}}) {
    const TemporaryFolder folder;
    const PrepareReport report = prepare(
        folder,
        write_set(folder, {{str(train, "/a/b.png"), image}, {str(val, "/a/c.png"), image}}));
    EXPECT_EQ(report.train_count, 1) << train;
    EXPECT_EQ(report.val_count, 1) << val;
    EXPECT_EQ(report.class_count, 1);
  }
}

TEST(PrepareImages, OneColourImageMakesAllRgb) {
  const TemporaryFolder folder;
  const Image grey = test_image(1, 4, 4, 1);
  const Image colour = test_image(3, 4, 4, 2);
  const Image late_grey = test_image(1, 4, 4, 3);
  // A grey image before the first colour image and one after it. The copy in val/ is still a leak.
  write_set(folder, {{"train/a/1.png", png_of(grey)},
                     {"train/a/2.png", png_of(colour)},
                     {"train/a/3.png", png_of(late_grey)},
                     {"val/a/4.png", png_of(grey)}});
  ::testing::internal::CaptureStderr();
  const PrepareReport report = prepare(folder, folder / "set");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "leakage: val/a/4.png has the pixels of train/a/1.png\n");
  EXPECT_EQ(report.leaked, 1);
  std::vector<uint8_t> expected;
  for (const Image* image : {&grey, &grey, &grey, &colour, &late_grey, &late_grey, &late_grey}) {
    expected.insert(expected.end(), image->pixels.begin(), image->pixels.end());
  }
  EXPECT_EQ(pixels_of(folder, "train"), expected);
}

TEST(PrepareImages, ImagesOfAllSizesAreFittedToOne) {
  const TemporaryFolder folder;
  const Image grey = test_image(1, 9, 30, 1), whole = test_image(3, 6, 5, 2),
              colours = test_image(3, 40, 7, 3);
  write_set(folder, {{"train/a/1.png", png_of(grey)},
                     {"train/a/2.png", png_of(whole)},
                     {"train/a/3.png", png_of(colours)}});
  const PrepareReport report = prepare_images(
      {.input = folder / "set", .output = folder / "out/data.h5", .height = 6, .width = 5});
  EXPECT_EQ(report.train_count, 3);
  std::vector<uint8_t> expected;
  for (const Image& image : {fitted(grey, 3, 6, 5), whole, fitted(colours, 3, 6, 5)}) {
    expected.insert(expected.end(), image.pixels.begin(), image.pixels.end());
  }
  EXPECT_EQ(pixels_of(folder, "train"), expected);
}

TEST(PrepareImages, BadImagesAreNamedAndCounted) {
  const TemporaryFolder folder;
  std::vector<NamedFile> files = small_set();
  const std::string jpeg = jpeg_of(test_image(3, 8, 10, 9));
  const std::string png = png_of(test_image(3, 8, 10, 9));
  std::string flipped = png;
  flipped[flipped.size() / 2] ^= 0x10;
  files.push_back({"train/cat/bad1.jpg", jpeg.substr(0, jpeg.size() - 30)});
  files.push_back({"train/cat/bad2.png", png.substr(0, png.size() - 20)});
  files.push_back({"train/cat/bad3.png", flipped});
  files.push_back({"train/cat/bad4.jpg", ""});
  files.push_back({"train/cat/bad5.jpg", "GIF89a and so on"});
  files.push_back({"train/cat/bad6.gif", "GIF89a and so on"});
  files.push_back({"train/cat/bad7.png", png_of(test_image(3, 10, 8, 9))});
  files.push_back({"train/bad8.png", png});
  const std::string input = write_set(folder, files);
  ::testing::internal::CaptureStderr();
  const PrepareReport report = prepare(folder, input, 8);
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(report.bad, 8);
  EXPECT_EQ(report.train_count, 3);
  for (const std::string part :
       {"bad1.jpg: unusable JPEG: Premature end of JPEG file\n",
        "bad2.png: unusable PNG: the file is cut short\n",
        "bad3.png: unusable PNG: ", "bad4.jpg: empty file\n", "bad5.jpg: neither JPEG nor PNG\n",
        "bad6.gif: an image format that is not read", "train/bad8.png: not in a class folder\n",
        "bad7.png: 8 x 10 pixels (width x height) where test/cat/e.png has 10 x 8; --width and "
        "--height scale all "
        "images\n"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << part << shown;
  }
  std::filesystem::remove(folder / "out/data.h5");
  ::testing::internal::CaptureStderr();
  expect_error(ExitCode::kData, {"8 bad records, more than --max-bad 7"},
               [&] { prepare(folder, input, 7); });
  ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(std::filesystem::exists(folder / "out/data.h5"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out/data.h5.partial"));
}

// On a disk that is only partly mounted, no image may be missing without a word.
TEST(PrepareImages, WhatIsNoRegularFileIsABadImage) {
  const TemporaryFolder folder;
  const std::string set = write_set(folder, small_set());
  std::filesystem::create_symlink("/nowhere/f.png", set + "/train/cat/dangling.png");
  std::filesystem::create_symlink("round.png", set + "/train/cat/round.png");
  ASSERT_EQ(::mkfifo((set + "/train/dog/fifo.png").c_str(), 0600), 0);
  std::filesystem::create_symlink("/nowhere/f.txt", set + "/train/cat/dangling.txt");
  ::testing::internal::CaptureStderr();
  const PrepareReport report = prepare(folder, set, 3);
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(report.bad, 3);
  EXPECT_EQ(report.train_count, 3);
  EXPECT_EQ(report.ignored_files, 2);
  for (const std::string part :
       {"train/cat/dangling.png: cannot be read: No such file or directory\n",
        "train/cat/round.png: cannot be read: Too many levels of symbolic links\n",
        "train/dog/fifo.png: not a regular file\n"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << part << shown;
  }
  ::testing::internal::CaptureStderr();
  expect_error(ExitCode::kData, {"3 bad records, more than --max-bad 2"},
               [&] { prepare(folder, set, 2); });
  ::testing::internal::GetCapturedStderr();
  // A batch that cannot be read is an error, and is not waited for.
  std::filesystem::remove_all(set);
  std::filesystem::create_directory(set);
  ASSERT_EQ(::mkfifo((set + "/train-images-idx3-ubyte").c_str(), 0600), 0);
  expect_error(ExitCode::kData, {"set/train-images-idx3-ubyte: not a regular file"},
               [&] { prepare(folder, set); });
}

TEST(PrepareImages, AnArchiveCutAnywhereIsAnError) {
  const TemporaryFolder folder;
  const std::string tar = tar_of(small_set());
  const size_t end = tar.size() - 1024;  // one block of zeros is enough of an end mark
  for (size_t cut = 512; cut < end + 512; cut += 128) {
    expect_error(ExitCode::kData, {"set.tar: ", " at byte "},
                 [&] { prepare(folder, folder.write("set.tar", tar.substr(0, cut))); });
  }
  const std::string packed = gzip(tar);
  expect_error(ExitCode::kData, {"set.tar.gz: cut short: the gzip data end inside the file"}, [&] {
    prepare(folder, folder.write("set.tar.gz", packed.substr(0, packed.size() / 2)));
  });
}

TEST(PrepareImages, DamagedArchivesAreErrors) {
  const TemporaryFolder folder;
  const std::string tar = tar_of(small_set());
  expect_error(ExitCode::kData, {"set.tar: other bytes follow the end of the archive at byte "},
               [&] { prepare(folder, folder.write("set.tar", tar + "tail")); });
  std::string damaged = tar;
  damaged[512 + 3] = 'X';  // in the name of the second entry
  expect_error(ExitCode::kData, {"set.tar: Damaged tar archive at byte 1024"},
               [&] { prepare(folder, folder.write("set.tar", damaged)); });
  std::string packed = gzip(tar);
  packed[packed.size() / 2] = static_cast<char>(packed[packed.size() / 2] ^ 0x20);
  expect_error(ExitCode::kData, {"set.tar.gz: "},
               [&] { prepare(folder, folder.write("set.tar.gz", packed)); });
  expect_error(ExitCode::kData,
               {R"(set.tar: the name "cat/\x1B[2J\x0A.png" has a control character)"}, [&] {
                 prepare(folder, folder.write("set.tar", tar_of({{"cat/\x1B[2J\n.png", ""}})));
               });
  expect_error(ExitCode::kData, {"set.zip: neither a folder nor a .tar"},
               [&] { prepare(folder, folder.write("set.zip", "PK\3\4")); });
  expect_error(ExitCode::kData, {"absent: no such file"},
               [&] { prepare(folder, folder / "absent"); });
}

TEST(PrepareImages, WrongLayoutsAreNamed) {
  const TemporaryFolder folder;
  expect_error(
      ExitCode::kData,
      {"set: no images found among 4 files: a.txt, b.txt, c.txt, ...; looked for class folders"},
      [&] {
        prepare(
            folder,
            write_set(folder, {{"a.txt", "x"}, {"b.txt", "x"}, {"c.txt", "x"}, {"d.txt", "x"}}));
      });
  const std::string png = png_of(test_image(3, 4, 4, 1));
  expect_error(
      ExitCode::kData,
      {"no training images; all 1 are for validation or test, such as test/cat/1.png; looked for"},
      [&] {
        prepare(folder, write_set(folder, {{"test/cat/1.png", png}}));
      });
  expect_error(ExitCode::kData,
               {"test/cat/1.png is in a folder train, val or test", "other/2.png is not"}, [&] {
                 prepare(folder, write_set(folder, {{"other/2.png", png}}));
               });
}

TEST(PrepareImages, ALinkBackToItsFolderIsNotFollowed) {
  const TemporaryFolder folder;
  const std::string set = write_set(folder, {{"cat/1.png", png_of(test_image(3, 4, 4, 1))},
                                             {"dog/1.png", png_of(test_image(3, 4, 4, 2))}});
  std::filesystem::create_directory_symlink("..", set + "/cat/up");
  std::filesystem::create_directory_symlink("dog", set + "/wolf");  // this one is another class
  const PrepareReport report = prepare(folder, set);
  EXPECT_EQ(report.train_count + report.val_count, 3);
  EXPECT_EQ(report.class_count, 3);
}

TEST(PrepareImages, AFullDiskLeavesNothing) {
  const TemporaryFolder folder;
  std::vector<NamedFile> files;
  for (int i = 0; i < 20; ++i) {
    files.push_back({str("train/a/", i, ".png"), png_of(test_image(3, 100, 100, i))});
  }
  const std::string tar = folder.write("set.tar", gzip(tar_of(files)));
  folder.write("out/other", "");
  for (const int64_t limit : {200000, 600100}) {
    const std::string output =
        run_with_file_limit(limit, [&] { return prepare(folder, tar).train_count > 0 ? 0 : 1; });
    EXPECT_TRUE(output.ends_with("exit 3")) << output;
    EXPECT_NE(output.find("space"), std::string::npos) << output;
    EXPECT_FALSE(std::filesystem::exists(folder / "out/data.h5"));
    EXPECT_FALSE(std::filesystem::exists(folder / "out/data.h5.partial"));
  }
}

}  // namespace
}  // namespace tandem::testing
