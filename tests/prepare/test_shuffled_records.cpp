#include <algorithm>

#include "src/prepare/text_reader.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

struct Read {
  std::vector<std::string> texts;
  TextReadCounts counts;
};

Read shuffled(const std::string& file, uint64_t seed) {
  Read read;
  BadRecords bad(0);
  PrepareTextOptions options;
  options.input = {file};
  options.shuffle_seed = seed;
  read.counts = for_each_document(options, &bad, [&](const TextDocument& document) {
    EXPECT_TRUE(document.is_record);
    read.texts.emplace_back(document.text);
  });
  return read;
}

TEST(ShuffledRecords, EachLineOnceInAnOrderOfTheSeed) {
  const TemporaryFolder folder;
  std::string lines, records;
  std::vector<std::string> expected;
  for (int i = 0; i < 200; ++i) {
    expected.push_back(str("line ", 1000 + i));
    lines += expected.back() + (i % 2 ? "\r\n" : "\n\n");
    records += R"({"text": ")" + expected.back() + "\"}\n";
  }
  lines.pop_back();  // no line end after the last one
  lines.pop_back();
  const std::string file = folder.write("a.txt", lines);
  const Read read = shuffled(file, 1);
  EXPECT_EQ(read.counts.documents, 200);
  EXPECT_EQ(read.counts.empty, 100);
  EXPECT_EQ(read.texts, shuffled(file, 1).texts);
  EXPECT_NE(read.texts, shuffled(file, 2).texts);
  EXPECT_NE(read.texts, expected);
  EXPECT_EQ(read.texts, shuffled(folder.write("a.jsonl", records), 1).texts);
  std::vector<std::string> sorted = read.texts;
  std::ranges::sort(sorted);
  EXPECT_EQ(sorted, expected);
}

}  // namespace
}  // namespace tandem::testing
