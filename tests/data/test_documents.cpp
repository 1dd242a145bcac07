// Where the documents of a text begin.
#include "src/data/token_dataset.h"
#include "tests/data/data_files.h"
#include "tests/data/text_dataset.h"

namespace tandem::testing {
namespace {

// The format before says nothing of documents; its hash has its own number.
TEST(Dataset, TheFormatBeforeIsRead) {
  const TemporaryFolder folder;
  const auto tokens = counting<uint16_t>(20);
  const std::string path = write_text<uint16_t>(folder / "a.h5", tokens, {}, 100, {}, 3);
  EXPECT_FALSE(inspect_dataset(path).has_documents());
  EXPECT_EQ(open_dataset(path)->windows(Split::kTrain, 4), 4);
  ContentHash expected;
  add_to_hash(*load_tokenizer(H5Reader(path)), &expected);
  expected.add(tokens.data(), std::ssize(tokens) * 2);
  add_to_hash({.format = 3, .train_count = 20, .vocab_size = 100}, &expected);
  EXPECT_EQ(compute_content_hash(path), expected.digest().hex());
}

TEST(Dataset, StartsOfDocumentsMustRise) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.h5";
  const auto starts_of = [&](const std::vector<uint64_t>& starts) {
    write_text<uint16_t>(path, counting<uint16_t>(20), {}, 100, starts);
    return TokenDataset(inspect_dataset(path)).document_starts(Split::kTrain);
  };
  EXPECT_EQ(starts_of({0, 3, 4, 20}), (std::vector<int64_t>{0, 3, 4, 20}));
  const uint64_t huge = uint64_t{1} << 63;
  struct Wrong {
    std::vector<uint64_t> starts;
    std::string named;
  };
  for (const Wrong& wrong : {Wrong{{1, 20}, "1 at place 0"},
                             {{0, 7, 7, 20}, "7 at place 2"},
                             {{0, 9, 8, 20}, "8 at place 2"},
                             {{0, 20, 20}, "20 at place 1"},
                             {{0, 19}, "19 at place 1"},
                             {{0, huge, 20}, "9223372036854775808 at place 1"},
                             {{0, 3, huge + 20}, "9223372036854775828 at place 2"},
                             {{0}, "0 at place 0"}}) {
    expect_error(ExitCode::kData, {"a.h5: /train/starts has " + wrong.named, "20; prepare"},
                 [&] { starts_of(wrong.starts); });
  }
  expect_error(ExitCode::kData, {"a.h5: /train/starts is empty"}, [&] { starts_of({}); });
  write_text<uint16_t>(path, counting<uint16_t>(20), {}, 100, {{0, 7, 7, 20}});
  expect_error(ExitCode::kData, {"a.h5: /train/starts has 7 at place 2"},
               [&] { verify_content(inspect_dataset(path), false); });
  write_text<uint16_t, int64_t>(path, counting<uint16_t>(20), {}, 100, std::vector<int64_t>{0, 20});
  expect_error(ExitCode::kData, {"a.h5: /train/starts holds i64 elements where u64"},
               [&] { TokenDataset(inspect_dataset(path)).document_starts(Split::kTrain); });
}

}  // namespace
}  // namespace tandem::testing
