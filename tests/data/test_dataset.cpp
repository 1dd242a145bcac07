#include <filesystem>
#include <limits>
#include <numeric>
#include <set>

#include "src/data/augment.h"
#include "src/data/dataset.h"
#include "src/data/image_dataset.h"
#include "src/data/sampler.h"
#include "src/data/token_dataset.h"
#include "tests/data/data_files.h"
#include "tests/data/text_dataset.h"

namespace tandem::testing {
namespace {

// Images of 2 x 3 pixels and two channels; pixel values count up over all images of a split.
std::string write_images(const std::string& path, const std::vector<int32_t>& train_labels,
                         const std::vector<int32_t>& val_labels, int64_t train_images) {
  H5Writer file(path);
  const auto write = [&](const std::string& group, int64_t count,
                         const std::vector<int32_t>& labels) {
    file.create_dataset(group + "/images", H5Type::kU8, {count, 2, 2, 3});
    file.write<uint8_t>(group + "/images", 0, counting<uint8_t>(count * 12));
    file.write_all<int32_t>(group + "/labels", labels);
  };
  write("/train", train_images, train_labels);
  write("/val", static_cast<int64_t>(val_labels.size()), val_labels);
  file.set_attribute("/", "kind", std::string("images"));
  const std::string_view names = "cat\nold dog\n";
  file.write_all<uint8_t>("/class_names", std::vector<uint8_t>(names.begin(), names.end()));
  file.set_attribute("/", "mean", std::vector<double>{0.5, 0.25});
  file.set_attribute("/", "std", std::vector<double>{0.5, 1.0});
  file.set_attribute("/", "format", std::vector<int64_t>{kDatasetFormat});
  file.set_attribute("/", "content_hash", kHash);
  file.commit();
  return path;
}

TEST(Dataset, TextIsDescribed) {
  const TemporaryFolder folder;
  const std::string path =
      write_text<uint16_t>(folder / "a.h5", counting<uint16_t>(100), counting<uint16_t>(10), 256);
  const DatasetInfo info = inspect_dataset(path);
  EXPECT_EQ(info.kind, DatasetKind::kText);
  EXPECT_EQ(info.train_count, 100);
  EXPECT_EQ(info.val_count, 10);
  EXPECT_EQ(info.vocab_size, 256);
  EXPECT_EQ(info.tokenizer, "char");
  EXPECT_EQ(info.fingerprint(), str(kHash, ":", std::filesystem::file_size(path)));
  EXPECT_TRUE(info.has_documents());
}

TEST(Dataset, ImagesAreDescribed) {
  const TemporaryFolder folder;
  const DatasetInfo info = inspect_dataset(write_images(folder / "a.h5", {0, 1, 1}, {0}, 3));
  EXPECT_EQ(info.kind, DatasetKind::kImages);
  EXPECT_EQ(info.train_count, 3);
  EXPECT_EQ(info.val_count, 1);
  EXPECT_EQ(info.channels, 2);
  EXPECT_EQ(info.height, 2);
  EXPECT_EQ(info.width, 3);
  EXPECT_EQ(info.classes, (std::vector<std::string>{"cat", "old dog"}));
  EXPECT_EQ(info.mean, (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(info.std, (std::vector<double>{0.5, 1.0}));
}

template <class Token>
void check_training_windows(Token first) {
  const TemporaryFolder folder;
  std::vector<Token> train = counting<Token>(100);
  train[50] = first;
  const auto dataset =
      open_dataset(write_text<Token>(folder / "a.h5", train, {}, int64_t{first} + 1));
  const int64_t windows = dataset->windows(Split::kTrain, 8);
  ASSERT_EQ(windows, 11);
  const TrainingOptions options{.seed = 3, .context = 8};
  // Past the end of the first epoch.
  const MicroBatch batch = dataset->training_batch(options, 5, 20);
  EXPECT_EQ(batch.samples, 20);
  EXPECT_EQ(batch.target_count, 160);
  for (int64_t i = 0; i < 20; ++i) {
    const Sample sample = sample_at(3, windows, 5 + i);
    const int64_t start = training_window_start(3, sample.epoch, sample.index, 100, 8);
    for (int64_t t = 0; t < 8; ++t) {
      const auto at = static_cast<size_t>(i * 8 + t);
      EXPECT_EQ(batch.tokens[at], static_cast<int32_t>(train[static_cast<size_t>(start + t)]));
      EXPECT_EQ(batch.targets[at], static_cast<int32_t>(train[static_cast<size_t>(start + t + 1)]));
    }
  }
}

TEST(Dataset, TrainingWindowsComeFromTheStream) {
  check_training_windows<uint16_t>(65535);
  check_training_windows<uint32_t>(70000);
}

TEST(Dataset, AnEpochTrainsOnEachTokenOnce) {
  const TemporaryFolder folder;
  const auto dataset =
      open_dataset(write_text<uint16_t>(folder / "a.h5", counting<uint16_t>(1000), {}, 1000));
  const int64_t windows = dataset->windows(Split::kTrain, 16);
  for (const int64_t epoch : {0, 1}) {
    const MicroBatch batch =
        dataset->training_batch({.seed = 1, .context = 16}, epoch * windows, windows);
    std::vector<int> visits(1000);
    for (const int32_t token : batch.tokens) {
      ++visits[static_cast<size_t>(token)];
    }
    EXPECT_EQ(*std::max_element(visits.begin(), visits.end()), 1);
    EXPECT_EQ(std::accumulate(visits.begin(), visits.end(), 0), windows * 16);
    EXPECT_GT(windows * 16, 1000 - 2 * 16);
  }
}

TEST(Dataset, ValidationPredictsEveryTokenOnce) {
  const TemporaryFolder folder;
  for (const int64_t count : {2, 4, 5, 6, 9, 11}) {
    const auto dataset =
        open_dataset(write_text<uint16_t>(folder / "a.h5", {0, 1}, counting<uint16_t>(count), 256));
    const int64_t windows = dataset->windows(Split::kVal, 4);
    std::vector<int32_t> predicted;
    int64_t targets = 0;
    // Two windows at a time; the last request asks for more than there are.
    for (int64_t first = 0; first < windows; first += 2) {
      const MicroBatch batch = dataset->validation_batch(4, first, 2);
      EXPECT_EQ(batch.samples, std::min<int64_t>(2, windows - first));
      EXPECT_EQ(batch.tokens.size(), static_cast<size_t>(batch.samples * 4));
      targets += batch.target_count;
      for (size_t i = 0; i < batch.targets.size(); ++i) {
        if (batch.targets[i] != kIgnoreTarget) {
          EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
          predicted.push_back(batch.targets[i]);
        }
      }
    }
    EXPECT_EQ(targets, count - 1);
    std::vector<int32_t> expected = counting<int32_t>(count);
    expected.erase(expected.begin());
    EXPECT_EQ(predicted, expected);
    EXPECT_EQ(dataset->validation_batch(4, windows, 2).samples, 0);
  }
}

TEST(Dataset, ImagesComeAsStored) {
  const TemporaryFolder folder;
  const auto dataset = open_dataset(write_images(folder / "a.h5", {0, 1, 1}, {1, 0}, 3));
  const MicroBatch batch = dataset->validation_batch(0, 1, 5);
  EXPECT_EQ(batch.samples, 1);
  EXPECT_EQ(batch.target_count, 1);
  EXPECT_EQ(batch.targets, std::vector<int32_t>{0});
  std::vector<uint8_t> second(12);
  std::iota(second.begin(), second.end(), uint8_t{12});
  EXPECT_EQ(batch.pixels, second);
  EXPECT_EQ(batch.placements, std::vector<ImagePlacement>(1));
  const MicroBatch train = dataset->training_batch({.seed = 1}, 0, 3);
  EXPECT_EQ(std::accumulate(train.targets.begin(), train.targets.end(), 0), 2);
  EXPECT_EQ(train.placements, std::vector<ImagePlacement>(3));
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(train.pixels[static_cast<size_t>(i * 12)], sample_at(1, 3, i).index * 12);
  }
}

// 9 shifts in each direction and 2 flips; 9000 draws. A shift is expected 1000 times with standard
// deviation sqrt(9000 * 1/9 * 8/9) = 30, a flip 4500 times with 47; five deviations are allowed.
TEST(Augmentation, DrawsEveryPlacementEquallyOften) {
  std::vector<int> y_counts(9), x_counts(9);
  std::set<std::pair<int, int>> places;
  int flips = 0;
  for (int64_t position = 0; position < 9000; ++position) {
    const ImagePlacement placement = random_crop_and_flip(5, 0, position);
    ++y_counts.at(static_cast<size_t>(placement.shift_y) + 4);
    ++x_counts.at(static_cast<size_t>(placement.shift_x) + 4);
    places.emplace(placement.shift_y, placement.shift_x);
    flips += placement.flip;
  }
  for (int i = 0; i < 9; ++i) {
    EXPECT_NEAR(y_counts[static_cast<size_t>(i)], 1000, 150);
    EXPECT_NEAR(x_counts[static_cast<size_t>(i)], 1000, 150);
  }
  EXPECT_NEAR(flips, 4500, 235);
  EXPECT_EQ(places.size(), 81U);
}

TEST(Augmentation, DependsOnSeedEpochAndPositionAlone) {
  const TemporaryFolder folder;
  const auto dataset = open_dataset(write_images(folder / "a.h5", {0, 1, 1, 0, 1}, {0}, 5));
  const TrainingOptions options{.seed = 8, .augment = true};
  const MicroBatch whole = dataset->training_batch(options, 0, 10);
  const MicroBatch part = dataset->training_batch(options, 7, 2);
  EXPECT_EQ(std::vector<uint8_t>(whole.pixels.begin() + 7 * 12, whole.pixels.begin() + 9 * 12),
            part.pixels);
  EXPECT_EQ(std::vector<ImagePlacement>(whole.placements.begin() + 7, whole.placements.begin() + 9),
            part.placements);
  const auto placements = [&](const TrainingOptions& other) {
    return dataset->training_batch(other, 0, 10).placements;
  };
  EXPECT_NE(placements({.seed = 9, .augment = true}), whole.placements);
  EXPECT_EQ(placements({.seed = 8, .augment = false}), std::vector<ImagePlacement>(10));
}

TEST(Dataset, WrongFilesAreNamed) {
  const TemporaryFolder folder;
  const std::string text =
      write_text<uint16_t>(folder / "text.h5", counting<uint16_t>(100), {}, 50);
  expect_error(ExitCode::kData,
               {"none.h5: cannot open: No such file",
                "a shipped configuration says in its first lines how to make"},
               [&] { open_dataset(folder / "none.h5"); });
  expect_error(ExitCode::kData, {"note.txt: not an HDF5 file"},
               [&] { open_dataset(folder.write("note.txt", "hello hello hello")); });
  const std::string bytes = read_bytes(text);
  expect_error(ExitCode::kData, {"cut.h5: cut short"},
               [&] { open_dataset(folder.write("cut.h5", bytes.substr(0, bytes.size() - 50))); });
  {
    H5Writer other(folder / "other.h5");
    other.write_all<float>("/x", {});
    other.commit();
  }
  expect_error(ExitCode::kData, {"other.h5: an HDF5 file, but not a dataset"},
               [&] { open_dataset(folder / "other.h5"); });
  const std::string images = write_images(folder / "images.h5", {0}, {}, 1);
  expect_error(ExitCode::kData,
               {"model gpt needs a text dataset", "images.h5 holds images", "tandem prepare text"},
               [&] { require_kind(inspect_dataset(images), DatasetKind::kText, "gpt"); });
  expect_error(
      ExitCode::kData,
      {"model resnet needs an image dataset", "text.h5 holds text", "tandem prepare images"},
      [&] { require_kind(inspect_dataset(text), DatasetKind::kImages, "resnet"); });
}

// A dataset with one image, and with attributes that may be wrong.
struct ImageAttributes {
  std::vector<double> mean{0.5}, std{0.5};
  std::string hash = kHash;
  std::vector<int64_t> format{kDatasetFormat};

  std::string write(const std::string& path) const {
    H5Writer file(path);
    for (const std::string group : {"/train", "/val"}) {
      file.create_dataset(group + "/images", H5Type::kU8, {1, 1, 2, 2});
      file.write<uint8_t>(group + "/images", 0, counting<uint8_t>(4));
      file.write_all<int32_t>(group + "/labels", std::vector<int32_t>{0});
    }
    file.set_attribute("/", "kind", std::string("images"));
    file.write_all<uint8_t>("/class_names", std::vector<uint8_t>{'c', 'a', 't', '\n'});
    file.set_attribute("/", "format", format);
    file.set_attribute("/", "mean", mean);
    file.set_attribute("/", "std", std);
    file.set_attribute("/", "content_hash", hash);
    file.commit();
    return path;
  }
};

TEST(Dataset, AttributesWithoutSenseAreNamed) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.h5";
  inspect_dataset(ImageAttributes{}.write(path));
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double mean : {kNan, -0.1, 1.1}) {
    expect_error(ExitCode::kData, {"a.h5: the attributes mean and std", "mean in [0, 1]"},
                 [&] { inspect_dataset(ImageAttributes{.mean = {mean}}.write(path)); });
  }
  for (const double std : {kNan, 0.0, 1e-300, 1.1}) {
    expect_error(ExitCode::kData, {"a.h5: the attributes mean and std", "std in [1e-6, 1]"},
                 [&] { inspect_dataset(ImageAttributes{.std = {std}}.write(path)); });
  }
  for (const std::string& hash : {std::string(), kHash + "0", "z" + kHash.substr(1)}) {
    expect_error(ExitCode::kData, {"a.h5: the attribute content_hash is damaged"},
                 [&] { inspect_dataset(ImageAttributes{.hash = hash}.write(path)); });
  }
  for (const std::vector<int64_t>& format : {std::vector<int64_t>{2}, {5}, {}}) {
    expect_error(ExitCode::kData, {"a.h5: dataset format ", "where 3 and 4 are read"},
                 [&] { inspect_dataset(ImageAttributes{.format = format}.write(path)); });
  }
  const auto write_vocabulary = [&](int64_t attribute) {
    H5Writer file(path);
    make_bytes_tokenizer()->save(&file);
    file.write_all<uint16_t>("/train/tokens", counting<uint16_t>(10));
    file.write_all<uint16_t>("/val/tokens", {});
    file.set_attribute("/", "kind", std::string("text"));
    file.set_attribute("/", "format", std::vector<int64_t>{3});
    file.set_attribute("/", "vocab_size", std::vector<int64_t>{attribute});
    file.set_attribute("/", "content_hash", kHash);
    file.commit();
  };
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    write_vocabulary(size);
    expect_error(ExitCode::kData, {str("a.h5: vocab_size = ", size, " is not the size")},
                 [&] { inspect_dataset(path); });
  }
  write_vocabulary(257);
  expect_error(ExitCode::kData, {"a.h5: vocab_size = 257, but its tokenizer has 256"},
               [&] { open_dataset(path); });
}

// The content is read in chunks of 2^20 values.
TEST(Dataset, TheHashKnowsEveryChunk) {
  const TemporaryFolder folder;
  std::vector<uint16_t> tokens((size_t{1} << 20) + 5, 1);
  tokens.back() = 2;
  const std::string path = write_text<uint16_t>(folder / "a.h5", tokens, {}, 100);
  ContentHash expected;
  add_to_hash(*load_tokenizer(H5Reader(path)), &expected);
  expected.add(tokens.data(), std::ssize(tokens) * 2);
  const uint64_t starts[] = {0, tokens.size(), 0};  // of train, then of val
  expected.add(starts, sizeof starts);
  add_to_hash(inspect_dataset(path), &expected);
  EXPECT_EQ(compute_content_hash(path), expected.digest().hex());
}

TEST(Dataset, WrongContentIsNamed) {
  const TemporaryFolder folder;
  const auto text =
      open_dataset(write_text<uint16_t>(folder / "text.h5", counting<uint16_t>(100), {}, 50));
  expect_error(ExitCode::kData,
               {"text.h5: /train/tokens: token id ", " at position ", "the vocabulary of 50"},
               [&] { text->training_batch({.seed = 1, .context = 8}, 0, 11); });
  expect_error(ExitCode::kData, {"text.h5: /train/tokens: token id 50 at position 50 "}, [&] {
    std::vector<int32_t> tokens(60);
    dynamic_cast<const TokenDataset&>(*text).read(Split::kTrain, 10, tokens);
  });
  text->require_windows(Split::kTrain, 99);
  expect_error(ExitCode::kData, {"text.h5: the context of 100 tokens needs 101", "there are 100"},
               [&] { text->require_windows(Split::kTrain, 100); });
  expect_error(ExitCode::kData, {"text.h5: the validation set is empty"},
               [&] { text->require_windows(Split::kVal, 8); });
  for (const int32_t label : {-1, 2}) {
    expect_error(ExitCode::kData,
                 {str("labels.h5: /val/labels: label ", label, " at 1 is none of the 2 classes")},
                 [&] {
                   open_dataset(write_images(folder / "labels.h5", {0, 1}, {1, label}, 2));
                 });
  }
  const auto images = open_dataset(write_images(folder / "images.h5", {0, 1}, {}, 2));
  expect_error(ExitCode::kData, {"images.h5: the validation set is empty (0 images)"},
               [&] { images->require_windows(Split::kVal, 0); });
  expect_error(ExitCode::kData, {"short.h5: /train/images holds 3 images, but there are 2 labels"},
               [&] {
                 open_dataset(write_images(folder / "short.h5", {0, 1}, {}, 3));
               });
}

}  // namespace
}  // namespace tandem::testing
