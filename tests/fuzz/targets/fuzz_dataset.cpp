// Datasets: src/data/dataset.cpp src/data/token_dataset.cpp src/data/image_dataset.cpp
// src/data/tokenizer.cpp src/data/bpe/stored.cpp
#include <algorithm>
#include <functional>

#include "src/data/dataset.h"
#include "src/data/token_dataset.h"
#include "src/io/file.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/hdf5_file.h"
#include "tests/fuzz/support/vocabulary.h"
#include "tests/support/foreign_dataset.h"

using namespace tandem;

namespace {

std::string text_file(const Tokenizer& tokenizer, bool is_masked = false) {
  const std::string path = fuzz::folder().path() + "/good.h5";
  H5Writer writer(path);
  writer.set_attribute("/", "kind", "text");
  writer.set_attribute("/", "content_hash", std::string(32, '0'));
  writer.set_attribute("/", "format", std::vector<int64_t>{kDatasetFormat});
  writer.set_attribute("/", "vocab_size", std::vector<int64_t>{tokenizer.vocab_size()});
  tokenizer.save(&writer);
  writer.write_all<uint16_t>("/train/tokens", std::vector<uint16_t>{0, 1, 2, 1, 0, 2, 1});
  writer.write_all<uint32_t>("/val/tokens", std::vector<uint32_t>{1, 2, 1, 0});
  writer.write_all<uint64_t>("/train/starts", std::vector<uint64_t>{0, 3, 5, 7});
  writer.write_all<uint64_t>("/val/starts", std::vector<uint64_t>{0, 4});
  if (is_masked) {
    writer.write_all<uint8_t>("/train/loss", std::vector<uint8_t>{0, 0, 1, 0, 1, 0, 1});
    writer.write_all<uint8_t>("/val/loss", std::vector<uint8_t>{0, 1, 1, 1});
  }
  writer.commit();
  return read_file(path);
}

std::string char_file(bool is_masked = false) {
  return text_file(*make_char_tokenizer({'a', 'b', 0x20AC}), is_masked);
}

std::string gpt2_file() {
  fuzz::write_vocabulary({"in"}, "i n\n");
  return text_file(*load_gpt2_tokenizer(fuzz::folder().path()));
}

std::string image_file() {
  const std::string path = fuzz::folder().path() + "/good.h5";
  H5Writer writer(path);
  writer.set_attribute("/", "kind", "images");
  writer.set_attribute("/", "content_hash", std::string(32, '0'));
  writer.set_attribute("/", "format", std::vector<int64_t>{kDatasetFormat});
  const std::string_view names = "cat\ndog\n";
  writer.write_all<uint8_t>("/class_names", std::vector<uint8_t>(names.begin(), names.end()));
  writer.set_attribute("/", "mean", std::vector<double>{0.5, 0.5, 0.5});
  writer.set_attribute("/", "std", std::vector<double>{0.25, 0.25, 0.25});
  for (const std::string split : {"/train", "/val"}) {
    writer.create_dataset(split + "/images", H5Type::kU8, {3, 3, 2, 2});
    writer.write<uint8_t>(split + "/images", 0, std::vector<uint8_t>(36, 7));
    writer.write_all<int32_t>(split + "/labels", std::vector<int32_t>{0, 1, 0});
  }
  writer.commit();
  return read_file(path);
}

// Returns the bytes of a dataset as another program writes it: its texts lie in a global heap.
template <class Write>
std::string foreign_file(Write write, testing::Hdf5Form form) {
  const std::string path = fuzz::folder().path() + "/good.h5";
  write(path, form);
  return read_file(path);
}

void check_batch(const DatasetInfo& info, const MicroBatch& batch) {
  const bool is_text = info.kind == DatasetKind::kText;
  const int64_t classes = is_text ? info.vocab_size : static_cast<int64_t>(info.classes.size());
  for (const auto* ids : {&batch.tokens, &batch.targets}) {
    fuzz::check(std::all_of(ids->begin(), ids->end(), [&](int32_t id) { return id < classes; }),
                "ids are in the vocabulary");
  }
  fuzz::check(std::ssize(batch.targets) - std::ranges::count(batch.targets, kIgnoreTarget) ==
                  batch.target_count,
              "targets are counted");
}

}  // namespace

// The first byte chooses the file that the others change; the foreign ones are only damaged.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using testing::Hdf5Form;
  static const std::string good[] = {
      char_file(),
      gpt2_file(),
      image_file(),
      char_file(true),
      foreign_file(testing::write_foreign_text, Hdf5Form::kEarliest),
      foreign_file(testing::write_foreign_text, Hdf5Form::kLatest),
      foreign_file(testing::write_foreign_images, Hdf5Form::kEarliest),
      foreign_file(testing::write_foreign_images, Hdf5Form::kLatest)};
  const size_t is_damage = size > 0 && data[0] == fuzz::kDamage ? 1 : 0;
  fuzz::Bytes bytes(data + is_damage, size - is_damage);
  const std::string& before = good[bytes.below(is_damage != 0 ? std::size(good) : 4)];
  const std::string path = fuzz::folder().write("input.h5", before);
  is_damage != 0 ? fuzz::damage_file(path, &bytes) : fuzz::change_file(path, &bytes);
  fuzz::accepts(ExitCode::kData, [&] { vocabulary_hash(path); });
  fuzz::accepts(ExitCode::kData, [&] { verify_content(inspect_dataset(path), true); });
  fuzz::accepts(ExitCode::kData, [&] {
    const DatasetInfo info = inspect_dataset(path);
    if (info.has_documents()) {
      const auto starts = TokenDataset(info).document_starts(Split::kTrain);
      fuzz::check(starts.front() == 0 && starts.back() == info.train_count,
                  "all tokens are in documents");
    }
  });
  for (const WindowKind kind : {WindowKind::kStream, WindowKind::kDocuments}) {
    fuzz::accepts(ExitCode::kData, [&] {
      constexpr int64_t kContext = 2;
      const DatasetInfo info = inspect_dataset(path);
      const bool is_known = kind == WindowKind::kDocuments ? info.has_documents() : !info.is_masked;
      if (info.kind == DatasetKind::kText && !is_known) {
        return;  // refused as a setting, not as data
      }
      const auto dataset = open_dataset(path, {kind, kContext, 1});
      if (dataset->windows(Split::kTrain, kContext) > 0) {
        const TrainingOptions options{.seed = 1, .context = kContext, .augment = true};
        check_batch(dataset->info(), dataset->training_batch(options, 0, 4));
      }
      check_batch(dataset->info(), dataset->validation_batch(kContext, 0, 2));
    });
  }
  return 0;
}
