#include <algorithm>

#include "src/prepare/text_reader.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

using Strings = std::vector<std::string>;

struct Read {
  Strings texts;
  TextReadCounts counts;
};

Read read_records(const PrepareTextOptions& options) {
  Read read;
  BadRecords bad(0);
  read.counts = for_each_document(options, &bad, [&](const TextDocument& document) {
    EXPECT_TRUE(document.is_record);
    read.texts.emplace_back(document.text);
  });
  return read;
}

Read shuffled(const std::string& file, uint64_t seed) {
  PrepareTextOptions options;
  options.input = {file};
  options.shuffle_seed = seed;
  return read_records(options);
}

TEST(TextRecords, ShuffledIsEachLineOnceInAnOrderOfTheSeed) {
  const TemporaryFolder folder;
  std::string lines, records;
  Strings expected;
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
  Strings sorted = read.texts;
  std::ranges::sort(sorted);
  EXPECT_EQ(sorted, expected);
}

TEST(TextRecords, TheNameOfAFileSaysHowItIsRead) {
  const TemporaryFolder folder;
  const std::string lines = "{\"text\": \"red\"}\n{\"text\": \"blue\"}\n";
  const std::string rows = "text\nred\nblue\n";
  PrepareTextOptions options;
  for (const auto& [name, content] : {std::pair<std::string, std::string>{"a.ndjson", lines},
                                      {"b.JSONL", lines},
                                      {"c.jsonl.gz", gzip(lines)},
                                      {"c4-train.json.gz", gzip(lines)}}) {
    options.input = {folder.write(name, content)};
    EXPECT_EQ(read_records(options).texts, (Strings{"red", "blue"})) << name;
  }
  options.column = "text";
  for (const auto& [name, content] :
       {std::pair<std::string, std::string>{"d.CSV", rows}, {"e.csv.GZ", gzip(rows)}}) {
    options.input = {folder.write(name, content)};
    EXPECT_EQ(read_records(options).texts, (Strings{"red", "blue"})) << name;
  }
}

// Spreadsheets write a mark before the header, whose first field may have quotes.
TEST(TextRecords, AByteOrderMarkIsNoPartOfAColumn) {
  const TemporaryFolder folder;
  PrepareTextOptions options;
  options.column = "text";
  for (const char* header : {"text,id", "\"text\",\"id\""}) {
    options.input = {folder.write("a.csv", str("\357\273\277", header, "\r\nred,1\r\n"))};
    EXPECT_EQ(read_records(options).texts, Strings{"red"});
  }
}

}  // namespace
}  // namespace tandem::testing
