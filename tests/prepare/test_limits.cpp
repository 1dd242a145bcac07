// Input that would take much more memory or time than its size.
#include <random>

#include "src/data/bpe/bpe_tokenizer.h"
#include "src/data/bpe/trainer.h"
#include "src/io/byte_stream.h"
#include "src/prepare/prepare.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

TEST(PrepareLimits, RecordsAboveTheLimitAreErrors) {
  const TemporaryFolder folder;
  const std::string large(3 << 20, 'x');
  PrepareTextOptions options;
  options.output = folder / "out.h5";
  options.limit.mib = 2;
  options.column = "text";
  const auto expect_limit = [&](const std::string& place) {
    expect_error(ExitCode::kData,
                 {place + ": more than 2 MiB in one record; --max-record-mb allows more"},
                 [&] { prepare_text(options); });
  };
  options.input = {folder.write("a.csv", "text\ngood\n" + large)};
  expect_limit("a.csv:3");
  std::string lines = "text\n\"";
  for (int line = 0; line < 3 << 10; ++line) {
    lines += std::string(1 << 10, 'x') + "\n";
  }
  options.input = {folder.write("a.csv", lines + "\"\n")};
  expect_limit("a.csv:2");
  options.column.reset();
  options.input = {
      folder.write("a.jsonl", "{\"text\": \"good\"}\n{\"text\": \"" + large + "\"}\n")};
  expect_limit("a.jsonl:2");
  options.input = {folder.write("a.txt", gzip(large))};
  expect_limit("a.txt");
  // Plain text is a whole file: it is as large as it looks.
  options.input = {folder.write("plain.txt", large)};
  EXPECT_EQ(prepare_text(options).characters, std::ssize(large));
}

// What is not needed of a record is not stored: the row would take 30 times its size.
TEST(PrepareLimits, RowsOfTooManyFieldsAreBad) {
  const TemporaryFolder folder;
  PrepareTextOptions options;
  options.input = {folder.write("a.csv", "text\n" + std::string(70000, ',') + "\ngood\n")};
  options.output = folder / "out.h5";
  options.column = "text";
  options.max_bad = 1;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(prepare_text(options).documents, 1);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("a.csv:2: more than 65536 fields\n"),
            std::string::npos);
}

// A member of what bgzip writes may begin anywhere, and files are read in blocks of 256 KiB.
TEST(PrepareLimits, AGzipMemberMayBeginInTheLastByteOfABlock) {
  const TemporaryFolder folder;
  constexpr size_t kBlock = size_t{1} << 18;
  std::minstd_rand random(1);
  std::string noise;
  while (noise.size() < kBlock - 120 || gzip(noise).size() < kBlock - 1) {
    noise.push_back(static_cast<char>(random() >> 16));
  }
  ASSERT_EQ(gzip(noise).size(), kBlock - 1);
  const std::string file = folder.write("a.gz", gzip(noise) + gzip("end"));
  EXPECT_TRUE(read_whole_file(file) == noise + "end");
}

TEST(PrepareLimits, FilesAboveTheLimitAreErrors) {
  const TemporaryFolder folder;
  const std::string large(3 << 20, '\0');
  const auto expect_limit = [&](const std::string& input, const std::string& place) {
    PrepareImagesOptions options;
    options.input = input;
    options.output = folder / "data.h5";
    options.limit.mib = 2;
    expect_error(ExitCode::kData,
                 {place + ": more than 2 MiB in one record; --max-record-mb allows more"},
                 [&] { prepare_images(options); });
  };
  expect_limit(folder.write("a.tar.gz", gzip(tar_entry("cat/a.png", large) + tar_end())),
               "a.tar.gz: cat/a.png");
  folder.write("files/cat/a.png", large);
  expect_limit(folder / "files", "files/cat/a.png");
  folder.write("idx/train-images-idx3-ubyte", gzip(large));
  expect_limit(folder / "idx", "idx/train-images-idx3-ubyte");
}

TEST(PrepareLimits, WordsAboveFourMebibytesAreErrors) {
  constexpr size_t kLongest = size_t{4} << 20;
  const std::string longest(kLongest, 'a'), longer = longest + "a";
  const std::string message = "a word of more than 4194304 bytes";
  BpeModel model = train_bpe({{"aa", 1}}, kSmallestVocabulary + 1);
  BpeTokenizer tokenizer(model, "bpe", "model");
  EXPECT_EQ(tokenizer.encode(longest), std::vector<int32_t>(kLongest / 2, kSmallestVocabulary));
  expect_error(ExitCode::kData, {message}, [&] { tokenizer.encode(longer); });
  // Where no pattern cuts, a text is one word.
  model.pre_tokenizer =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false})";
  BpeTokenizer uncut(model, "bpe", "model");
  const std::string words(kLongest / 2, ' ');
  expect_error(ExitCode::kData, {message},
               [&] { uncut.encode(words + longer.substr(words.size())); });
  const auto counted = [](const std::string& text, size_t together) {
    WordCounter counter(2, together);
    counter.add(text);
    return counter.finish();
  };
  for (const size_t together : {size_t{1}, 4 * kLongest}) {
    EXPECT_TRUE(counted(longest, together) == (WordCounts{{longest, 1}}));
    expect_error(ExitCode::kData, {message}, [&] { counted(longer, together); });
  }
}

TEST(PrepareLimits, LongWordsAreErrorsWithAPlace) {
  const TemporaryFolder folder;
  const std::string longer((4 << 20) + 1, 'a');
  PrepareTextOptions options;
  options.input = {folder.write("a.txt", longer)};
  options.output = folder / "out.h5";
  options.val_fraction = 0;
  options.tokenizer = TokenizerKind::kBpe;
  options.vocab_size = 300;
  const auto expect_place = [&](const std::string& place, const auto& prepare) {
    expect_error(ExitCode::kData, {place + ": a word of more than 4194304 bytes"}, prepare);
  };
  expect_place("a.txt", [&] { prepare_text(options); });
  const std::string other = folder.write("b.txt", "text");
  options.input.push_back(other);
  expect_place("a.txt or another input", [&] { prepare_text(options); });
  folder.write("tokenizer.json", tokenizer_json(train_bpe({{"aa", 1}}, 258)));
  options.tokenizer = TokenizerKind::kHuggingFace;
  options.vocab = folder.path();
  options.vocab_size = 0;
  options.input = {
      folder.write("a.jsonl", "{\"text\": \"good\"}\n{\"text\": \"" + longer + "\"}\n")};
  expect_place("a.jsonl:2", [&] { prepare_text(options); });
  PrepareSftOptions sft;
  sft.input = {
      folder.write("a.jsonl", "{\"prompt\": \"good\", \"completion\": \"" + longer + "\"}\n")};
  sft.output = folder / "out.h5";
  sft.tokenizer = folder.path();
  sft.form = "plain";
  expect_place("a.jsonl:1", [&] { prepare_sft(sft); });
}

TEST(PrepareLimits, WholeFilesAboveTheLimitAreErrors) {
  const TemporaryFolder folder;
  const std::string most(16 << 20, 'a');
  EXPECT_TRUE(read_file(folder.write("a", most)) == most);
  EXPECT_TRUE(read_whole_file(folder / "a") == most);
  EXPECT_TRUE(read_whole_file(folder.write("a.gz", gzip(most))) == most);
  const auto expect_limit = [&](const std::string& place, const auto& read) {
    expect_error(ExitCode::kData, {place + ": has over 16777216 bytes, more than Tandem reads"},
                 read);
  };
  folder.write("a", most + "a");
  expect_limit("/a", [&] { read_file(folder / "a"); });
  expect_limit("/a", [&] { read_whole_file(folder / "a"); });
  folder.write("a.gz", gzip(most + "a"));
  expect_limit("/a.gz", [&] { read_whole_file(folder / "a.gz"); });
  EXPECT_TRUE(read_file(folder / "a", file_limit(17)) == most + "a");
  // Files in /proc say that they are empty, and are not.
  expect_error(ExitCode::kData, {"/proc/self/stat: has over 0 bytes"},
               [] { read_file("/proc/self/stat", file_limit(0)); });
}

}  // namespace
}  // namespace tandem::testing
