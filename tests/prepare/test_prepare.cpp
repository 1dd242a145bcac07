#include <algorithm>
#include <numeric>

#include "src/data/dataset.h"
#include "src/data/token_dataset.h"
#include "src/data/tokenizer.h"
#include "src/prepare/prepare.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

using Strings = std::vector<std::string>;
using Starts = std::vector<int64_t>;

PrepareTextOptions text_options(const TemporaryFolder& folder, const Strings& input,
                                TokenizerKind tokenizer = TokenizerKind::kChar,
                                double val_fraction = 0.1) {
  PrepareTextOptions options;
  options.input = input;
  options.output = folder / "out.h5";
  options.tokenizer = tokenizer;
  options.val_fraction = val_fraction;
  return options;
}

// What a prepared file holds, decoded.
struct Prepared {
  std::string train, val;
  std::string stored_hash, computed_hash;
  std::vector<int64_t> train_starts, val_starts;
};

template <class Token>
std::string decode_split(const H5Reader& file, const std::string& name) {
  const auto stored = file.read_all<Token>(name);
  return load_tokenizer(file)->decode(std::vector<int32_t>(stored.begin(), stored.end()));
}

Prepared read_prepared(const TemporaryFolder& folder) {
  const std::string path = folder / "out.h5";
  const H5Reader file(path);
  const TokenDataset dataset(inspect_dataset(path));
  return {decode_split<uint16_t>(file, "/train/tokens"),
          decode_split<uint16_t>(file, "/val/tokens"),
          dataset.info().content_hash,
          compute_content_hash(path),
          dataset.document_starts(Split::kTrain),
          dataset.document_starts(Split::kVal)};
}

TEST(PrepareText, SplitsTheCharactersAtTheLastTenth) {
  const TemporaryFolder folder;
  // 25 characters, one of which has two bytes: the split is at int(25 * 0.9) = 22.
  const std::string text = "abcdefghij\303\251lmnopqrstuvwxy";
  const std::string file = folder.write("a.txt", text);
  for (const TokenizerKind tokenizer : {TokenizerKind::kChar, TokenizerKind::kBytes}) {
    const PrepareReport report = prepare_text(text_options(folder, {file}, tokenizer));
    EXPECT_EQ(report.characters, 25);
    EXPECT_EQ(report.vocab_size, tokenizer == TokenizerKind::kChar ? 25 : 256);
    EXPECT_EQ(report.train_count, tokenizer == TokenizerKind::kChar ? 22 : 23);
    EXPECT_EQ(report.val_count, 3);
    const Prepared prepared = read_prepared(folder);
    EXPECT_EQ(prepared.train, text.substr(0, 23));
    EXPECT_EQ(prepared.val, "wxy");
    EXPECT_EQ(prepared.train_starts, (Starts{0, report.train_count}));
    EXPECT_EQ(prepared.val_starts, (Starts{0, 3}));
    EXPECT_EQ(prepared.stored_hash, prepared.computed_hash);
    EXPECT_EQ(prepared.stored_hash, report.content_hash);
  }
}

TEST(PrepareText, TheHashKnowsTheVocabulary) {
  const TemporaryFolder folder;
  // Equal token ids of different characters.
  const auto first = prepare_text(text_options(folder, {folder.write("a.txt", "abcabc")}));
  const auto second = prepare_text(text_options(folder, {folder.write("a.txt", "bcdbcd")}));
  const auto again = prepare_text(text_options(folder, {folder.write("a.txt", "abcabc")}));
  EXPECT_NE(first.content_hash, second.content_hash);
  EXPECT_EQ(first.content_hash, again.content_hash);
}

TEST(PrepareText, FilesAreJoinedByLineEnds) {
  const TemporaryFolder folder;
  const Strings files = {folder.write("a.txt", "one"), folder.write("b.txt", "two\n"),
                         folder.write("c.txt.gz", gzip("three"))};
  const PrepareReport report =
      prepare_text(text_options(folder, files, TokenizerKind::kBytes, 0.0));
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.val_count, 0);
  EXPECT_EQ(read_prepared(folder).train, "one\ntwo\nthree");
  EXPECT_EQ(read_prepared(folder).train_starts, (Starts{0, 4, 8, 13}));
  EXPECT_EQ(read_prepared(folder).val_starts, Starts{0});
  // The split may fall on the line end between two files: 13 characters, 4 of them for training.
  prepare_text(text_options(folder, files, TokenizerKind::kBytes, 0.65));
  EXPECT_EQ(read_prepared(folder).train, "one\n");
  EXPECT_EQ(read_prepared(folder).val, "two\nthree");
  EXPECT_EQ(read_prepared(folder).train_starts, (Starts{0, 4}));
  EXPECT_EQ(read_prepared(folder).val_starts, (Starts{0, 4, 9}));
  // A line end that begins the validation part belongs to the document after it.
  prepare_text(text_options(folder, files, TokenizerKind::kBytes, 0.75));
  EXPECT_EQ(read_prepared(folder).val, "\ntwo\nthree");
  EXPECT_EQ(read_prepared(folder).val_starts, (Starts{0, 5, 10}));
}

TEST(PrepareText, BrokenUtf8IsReadAndCounted) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.txt", "ab\377cd\360\237\230 ef\303");
  const PrepareReport report =
      prepare_text(text_options(folder, {file}, TokenizerKind::kChar, 0.0));
  EXPECT_EQ(report.broken_utf8, 3);
  EXPECT_EQ(report.characters, 10);
  EXPECT_EQ(read_prepared(folder).train, "ab\357\277\275cd\357\277\275 ef\357\277\275");
}

// 16 bits can number 65,536 tokens.
TEST(PrepareText, TokensAreAsWideAsTheVocabularyNeeds) {
  for (const int32_t size : {65536, 65537}) {
    const TemporaryFolder folder;
    std::string text;
    for (int32_t i = 0; i < size; ++i) {
      append_utf8(0x10000 + i, &text);
    }
    const auto report = prepare_text(
        text_options(folder, {folder.write("a.txt", text)}, TokenizerKind::kChar, 0.5));
    EXPECT_EQ(report.vocab_size, size);
    const std::string path = folder / "out.h5";
    const H5Reader file(path);
    const bool wide = size > 65536;
    for (const std::string split : {"/train/tokens", "/val/tokens"}) {
      EXPECT_EQ(file.dataset(split).type, wide ? H5Type::kU32 : H5Type::kU16) << size << split;
    }
    // Each character occurs once, in the order of code points, so the ids count from 0. One window
    // covers the validation split, and its targets are all its tokens after the first.
    std::vector<int32_t> ids(static_cast<size_t>(size - size / 2 - 1));
    std::iota(ids.begin(), ids.end(), size / 2 + 1);
    EXPECT_EQ(open_dataset(path)->validation_batch(std::ssize(ids), 0, 1).targets, ids) << size;
    const auto decoded = [&](const std::string& split) {
      return wide ? decode_split<uint32_t>(file, split) : decode_split<uint16_t>(file, split);
    };
    EXPECT_EQ(decoded("/train/tokens") + decoded("/val/tokens"), text) << size;
  }
}

TEST(PrepareText, JsonLinesAreRecords) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.jsonl",
                                        "\357\273\277{\"body\": \"first\\nline\", \"id\": 1}\r\n"
                                        "\n"
                                        "{\"body\": \"caf\\u00e9 \\ud83d\\ude00\"}\n"
                                        "{\"body\": \"\"}\n"
                                        "{\"body\": \"last\"}");
  PrepareTextOptions options = text_options(folder, {file}, TokenizerKind::kChar, 0.2);
  options.field = "body";
  const PrepareReport report = prepare_text(options);
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.empty, 1);
  // Records are kept whole: the last one reaches past character 18 of 23.
  EXPECT_EQ(read_prepared(folder).train, "first\nline\ncaf\303\251 \360\237\230\200");
  EXPECT_EQ(read_prepared(folder).val, "last");
  EXPECT_EQ(read_prepared(folder).train_starts, (Starts{0, 11, 17}));
}

TEST(PrepareText, CsvRowsAreRecords) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.csv",
                                        "id,\"the text\",note\r\n"
                                        "1,plain,\"x\"\r\n"  // as spreadsheets write each row
                                        "\r\n"
                                        "2,\"with, comma and \"\"quotes\"\"\nand a line end\",\r\n"
                                        "3,\"\",\n"
                                        "4,a \"quote\" inside,\"x\"");
  PrepareTextOptions options = text_options(folder, {file}, TokenizerKind::kBytes, 0.0);
  options.column = "the text";
  const PrepareReport report = prepare_text(options);
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.empty, 1);
  EXPECT_EQ(read_prepared(folder).train,
            "plain\nwith, comma and \"quotes\"\nand a line end\na \"quote\" inside");
}

TEST(PrepareText, EndOfTextEndsEachDocument) {
  const TemporaryFolder folder;
  // The smallest vocabulary: the bytes, one merge, end-of-text.
  std::string json;
  for (int byte = 0, other = 256; byte < 256; ++byte) {
    const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    std::string printed;
    append_utf8(plain ? byte : other++, &printed);
    json += (byte == '"' || byte == '\\' ? "\"\\" : "\"") + printed + "\": " + str(byte) + ", ";
  }
  folder.write("vocab/encoder.json", "{" + json + "\"ab\": 256, \"<|endoftext|>\": 257}");
  folder.write("vocab/vocab.bpe", "#version: 0.2\na b\n");
  const std::string records =
      folder.write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"cab\"}\n{\"text\":\"d\"}\n");
  PrepareTextOptions options = text_options(folder, {records}, TokenizerKind::kGpt2, 0.1);
  options.vocab = folder / "vocab";
  const PrepareReport report = prepare_text(options);
  EXPECT_EQ(report.vocab_size, 258);
  EXPECT_EQ(report.characters, 6);
  const H5Reader file(folder / "out.h5");
  EXPECT_EQ(file.read_all<uint16_t>("/train/tokens"),
            (std::vector<uint16_t>{256, 257, 'c', 256, 257}));
  EXPECT_EQ(file.read_all<uint16_t>("/val/tokens"), (std::vector<uint16_t>{'d', 257}));
  EXPECT_EQ(read_prepared(folder).train_starts, (Starts{0, 2, 5}));
  // A document that the split cuts ends once.
  options.input = {folder.write("a.txt", "abcd")};
  options.val_fraction = 0.5;
  prepare_text(options);
  const H5Reader cut(folder / "out.h5");
  EXPECT_EQ(cut.read_all<uint16_t>("/train/tokens"), (std::vector<uint16_t>{256}));
  EXPECT_EQ(cut.read_all<uint16_t>("/val/tokens"), (std::vector<uint16_t>{'c', 'd', 257}));
}

TEST(PrepareText, TheReportBeginsWithTheFirstTokens) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.txt", "cab cab cab cab");
  const PrepareReport report = prepare_text(text_options(folder, {file}));
  EXPECT_EQ(report.first_tokens, (std::vector<int32_t>{3, 1, 2, 0, 3, 1, 2, 0, 3, 1}));
  const std::string one = folder.write("b.txt", "ab");
  EXPECT_EQ(prepare_text(text_options(folder, {one})).first_tokens, (std::vector<int32_t>{0}));
}

TEST(PrepareText, RecordsInBothPartsAreLeaks) {
  const TemporaryFolder folder;
  std::string lines;
  // h occurs twice in validation and never in training: no leak.
  for (const std::string text : {"a", "b", "c", "d", "e", "f", "b", "g", "a", "a", "h", "h"}) {
    lines += "{\"text\": \"" + text + text + text + "\"}\n";
  }
  const auto report = prepare_text(
      text_options(folder, {folder.write("a.jsonl", lines)}, TokenizerKind::kChar, 0.45));
  EXPECT_EQ(read_prepared(folder).val, "bbb\nggg\naaa\naaa\nhhh\nhhh");
  EXPECT_EQ(report.leaked, 3);
}

// One line for each kind of bad record.
constexpr const char* kBadLines =
    "{\"text\": \"good\"}\n{\"text\": \"cut\n{\"other\": \"x\"}\n{\"text\": 5}\n[1]\n{\"text\": "
    "\"fine\"}\n";

TEST(PrepareText, BadRecordsAreNamedAndCounted) {
  const TemporaryFolder folder;
  PrepareTextOptions options =
      text_options(folder, {folder.write("a.jsonl", kBadLines)}, TokenizerKind::kChar, 0.0);
  options.max_bad = 4;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(prepare_text(options).bad, 4);
  const std::string shown = ::testing::internal::GetCapturedStderr();
  for (const std::string part :
       {"a.jsonl:2: not valid JSON\n", "a.jsonl:3: no field 'text'\n",
        "a.jsonl:4: field 'text' is not a string\n", "a.jsonl:5: not a JSON object\n"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << shown;
  }
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 4) << shown;
  EXPECT_EQ(read_prepared(folder).train, "good\nfine");
}

TEST(PrepareText, TooManyBadRecordsLeaveNothing) {
  const TemporaryFolder folder;
  PrepareTextOptions options = text_options(folder, {folder.write("a.jsonl", kBadLines)});
  options.max_bad = 3;
  ::testing::internal::CaptureStderr();
  expect_error(ExitCode::kData, {"4 bad records, more than --max-bad 3"},
               [&] { prepare_text(options); });
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(folder.names(), Strings{"a.jsonl"});
}

TEST(PrepareText, OnlyTwentyBadRecordsAreShown) {
  const TemporaryFolder folder;
  std::string lines = "{\"text\": \"good\"}\n";
  for (int i = 0; i < 30; ++i) {
    lines += "bad\n";
  }
  PrepareTextOptions options = text_options(folder, {folder.write("a.jsonl", lines)});
  options.max_bad = 30;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(prepare_text(options).bad, 30);
  std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 21);
  EXPECT_TRUE(shown.ends_with("bad records: 10 more\n")) << shown;
  // When no bad record is allowed, reading stops at the twentieth.
  options.max_bad = 0;
  ::testing::internal::CaptureStderr();
  expect_error(ExitCode::kData, {"20 bad records (reading stopped there)"},
               [&] { prepare_text(options); });
  shown = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 20);
}

TEST(PrepareText, BadRowsAreNamed) {
  const TemporaryFolder folder;
  PrepareTextOptions options = text_options(
      folder,
      {folder.write("a.csv",
                    "id,text\n1,good,more\n2,\"x\"y\n3,\"line\nend\"\n4,\"never closed\n5,z\n")},
      TokenizerKind::kBytes, 0.0);
  options.column = "text";
  options.max_bad = 3;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(prepare_text(options).bad, 3);
  const std::string shown = ::testing::internal::GetCapturedStderr();
  for (const std::string part : {"a.csv:2: 3 fields where the header has 2\n",
                                 "a.csv:3: text after a closing quote, at column 6\n",
                                 "a.csv:6: a quoted field that is never closed\n"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << shown;
  }
  EXPECT_EQ(read_prepared(folder).train, "line\nend");
}

// Of members with one name the last one counts, as in most JSON libraries. Nested members are none.
TEST(PrepareText, OnlyTheFieldOfARecordCounts) {
  const TemporaryFolder folder;
  PrepareTextOptions options = text_options(
      folder,
      {folder.write("a.jsonl",
                    "{\"x\":{\"text\":\"no\"},\"text\":\"a\",\"y\":[[{\"text\":\"no\"}]]}\n"
                    "{\"text\":[1],\"text\":\"b\"}\n"
                    "{\"text\":\"no\",\"text\":[\"no\"]}\n"
                    "{\"text\":{\"text\":\"no\"}}\n"
                    "[{\"text\":\"no\"}]\n\"no\"\n{\"x\":{\"text\":\"no\"}}\n")},
      TokenizerKind::kBytes, 0.0);
  options.max_bad = 5;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(prepare_text(options).bad, 5);
  const std::string shown = ::testing::internal::GetCapturedStderr();
  for (const std::string part :
       {"a.jsonl:3: field 'text' is not a string\n", "a.jsonl:4: field 'text' is not a string\n",
        "a.jsonl:5: not a JSON object\n", "a.jsonl:6: not a JSON object\n",
        "a.jsonl:7: no field 'text'\n"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << shown;
  }
  EXPECT_EQ(read_prepared(folder).train, "a\nb");
}

TEST(PrepareText, WrongInputIsNamed) {
  const TemporaryFolder folder;
  const std::string csv = folder.write("a.csv", "id,body\n1,x\n");
  const std::string text = folder.write("a.txt", "text");
  PrepareTextOptions options = text_options(folder, {csv});
  options.column = "text";
  expect_error(ExitCode::kData, {"a.csv: no column 'text' (--column); there are: id, body"},
               [&] { prepare_text(options); });
  folder.write("a.csv", "text,id,text\n1,2,3\n");
  expect_error(ExitCode::kData, {"a.csv: several columns are called 'text' (--column); rename one"},
               [&] { prepare_text(options); });
  options.column.reset();
  expect_error(ExitCode::kConfig, {"--column: name the column"}, [&] { prepare_text(options); });
  options.input = {text};
  options.column = "body";
  expect_error(ExitCode::kConfig, {"--column: there is no .csv"}, [&] { prepare_text(options); });
  options.column.reset();
  options.field = "body";
  expect_error(ExitCode::kConfig, {"--field: there is no .jsonl, .ndjson or .json file"},
               [&] { prepare_text(options); });
  const auto expect_data_error = [&](const std::string& input, const std::string& message) {
    expect_error(ExitCode::kData, {message}, [&] { prepare_text(text_options(folder, {input})); });
  };
  expect_data_error(folder.write("empty.txt", ""), "empty.txt: holds no text");
  expect_data_error(folder.write("empty.jsonl", "\n\n"), "empty.jsonl: holds no text");
  expect_data_error(folder.write("blank.jsonl", "{\"text\": \"\"}\n"), "no record holds any text");
  expect_data_error(folder / "absent.txt", "absent.txt: cannot open: No such file");
  expect_data_error(folder.path(), "not a file that can be read");
  const std::string packed = gzip(std::string(100000, 'x') + "y");
  expect_data_error(folder.write("cut.txt.gz", packed.substr(0, packed.size() - 4)),
                    "cut.txt.gz: cut short");
  std::string empty_members = packed;
  for (int i = 0; i < 20000; ++i) {  // each of them once took a frame of the stack
    empty_members += gzip("");
  }
  expect_data_error(folder.write("tail.txt.gz", empty_members + "tail"),
                    "tail.txt.gz: other bytes follow the end of the gzip data");
  expect_data_error(folder.write("tail.txt.gz", packed + "tail"),
                    "tail.txt.gz: other bytes follow the end of the gzip data");
  const Strings left = folder.names();
  EXPECT_EQ(std::count(left.begin(), left.end(), "out.h5"), 0);
  EXPECT_EQ(std::count(left.begin(), left.end(), "out.h5.partial"), 0);
}

TEST(PrepareText, WrongOptionsAreNamed) {
  const TemporaryFolder folder;
  PrepareTextOptions options = text_options(folder, {folder.write("a.txt", "text")});
  options.vocab = "x";
  expect_error(ExitCode::kConfig, {"--vocab: only"}, [&] { prepare_text(options); });
}

TEST(PrepareText, AFullDiskLeavesNothing) {
  const TemporaryFolder folder;
  const std::string text = folder.write("a.txt", std::string(1 << 20, 'x'));
  const std::string output = run_with_file_limit(
      1 << 19, [&] { return prepare_text(text_options(folder, {text})).train_count > 0 ? 0 : 1; });
  EXPECT_NE(output.find("no space left on the disk"), std::string::npos) << output;
  EXPECT_TRUE(output.ends_with("exit 3")) << output;
  EXPECT_EQ(folder.names(), Strings{"a.txt"});
}

}  // namespace
}  // namespace tandem::testing
