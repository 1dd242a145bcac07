#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <vector>

#include "src/core/error.h"
#include "src/report/writers/tensorboard.h"
#include "tests/support/temporary_folder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// The reader shares no code with the writer: this checksum is a polynomial division bit by bit.
uint32_t slow_crc32c(std::string_view bytes) {
  uint32_t remainder = 0xffffffffU;
  for (const char byte : bytes) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      const uint32_t in = (static_cast<unsigned char>(byte) >> bit & 1U) ^ (remainder & 1U);
      remainder >>= 1U;
      if (in != 0) {
        remainder ^= 0x82F63B78U;
      }
    }
  }
  return ~remainder;
}

uint32_t unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8U;
  return rotated >> 17U | rotated << 15U;
}

template <class T>
T take(std::string_view* bytes) {
  T value{};
  EXPECT_GE(bytes->size(), sizeof(T));
  std::memcpy(&value, bytes->data(), std::min(bytes->size(), sizeof(T)));
  bytes->remove_prefix(std::min(bytes->size(), sizeof(T)));
  return value;
}

std::vector<std::string> records_of(const std::string& path) {
  const std::string file = read_file(path);
  std::string_view rest = file;
  std::vector<std::string> records;
  while (!rest.empty()) {
    const std::string_view header = rest.substr(0, 8);
    const auto length = take<uint64_t>(&rest);
    EXPECT_EQ(unmask(take<uint32_t>(&rest)), slow_crc32c(header));
    records.emplace_back(rest.substr(0, length));
    rest.remove_prefix(length);
    EXPECT_EQ(unmask(take<uint32_t>(&rest)), slow_crc32c(records.back()));
  }
  return records;
}

uint64_t take_varint(std::string_view* bytes) {
  uint64_t value = 0;
  for (unsigned shift = 0; !bytes->empty(); shift += 7) {
    const auto byte = take<uint8_t>(bytes);
    value |= static_cast<uint64_t>(byte & 0x7fU) << shift;
    if (byte < 0x80) {
      break;
    }
  }
  return value;
}

// The fields of a message, in order: number and content.
std::multimap<uint64_t, std::string> fields_of(std::string_view bytes) {
  std::multimap<uint64_t, std::string> fields;
  while (!bytes.empty()) {
    const uint64_t tag = take_varint(&bytes);
    std::string value;
    if ((tag & 7U) == 0) {
      const uint64_t number = take_varint(&bytes);
      value.assign(reinterpret_cast<const char*>(&number), 8);
    } else {
      const size_t length = (tag & 7U) == 1   ? 8
                            : (tag & 7U) == 5 ? 4
                                              : static_cast<size_t>(take_varint(&bytes));
      value = bytes.substr(0, length);
      bytes.remove_prefix(std::min(bytes.size(), length));
    }
    fields.emplace(tag >> 3U, value);
  }
  return fields;
}

template <class T>
T only(const std::multimap<uint64_t, std::string>& fields, uint64_t field) {
  EXPECT_EQ(fields.count(field), 1U) << field;
  std::string_view bytes = fields.find(field)->second;
  return take<T>(&bytes);
}

class TensorBoard : public ::testing::Test {
 protected:
  const testing::TemporaryFolder folder_;
  const std::string& root_ = folder_.path();
};

TEST_F(TensorBoard, ChecksumIsCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);              // the check value of CRC-32C
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);  // likewise
  EXPECT_EQ(crc32c(""), 0U);
}

TEST_F(TensorBoard, WritesEventsThatReadBack) {
  const std::string directory = root_ + "/run/tensorboard";
  TensorBoardWriter writer(directory);
  const double before = static_cast<double>(std::time(nullptr)) - 1;
  writer.add_metrics(128, "train", {{"loss", 2.5}, {"lr", 1e-3}});
  writer.add_metrics(
      int64_t{1} << 40, "long",
      {{"a tag of more than 127 characters " + std::string(200, 'x'), std::nan("")}});
  EXPECT_EQ(fs::path(writer.path()).parent_path(), directory);
  EXPECT_EQ(fs::path(writer.path()).filename().string().find("events.out.tfevents."), 0U);

  const std::vector<std::string> records = records_of(writer.path());
  ASSERT_EQ(records.size(), 3U);
  const auto version = fields_of(records[0]);
  EXPECT_EQ(version.find(3)->second, "brain.Event:2");

  const auto event = fields_of(records[1]);
  EXPECT_GE(only<double>(event, 1), before);
  EXPECT_LE(only<double>(event, 1), before + 60);
  EXPECT_EQ(only<int64_t>(event, 2), 128);
  const auto summary = fields_of(event.find(5)->second);
  ASSERT_EQ(summary.count(1), 2U);
  const auto loss = fields_of(summary.find(1)->second);
  EXPECT_EQ(loss.find(1)->second, "train/loss");
  EXPECT_EQ(only<float>(loss, 2), 2.5F);
  const auto lr = fields_of(std::next(summary.find(1))->second);
  EXPECT_EQ(lr.find(1)->second, "train/lr");
  EXPECT_EQ(only<float>(lr, 2), 1e-3F);

  const auto late = fields_of(records[2]);
  EXPECT_EQ(only<int64_t>(late, 2), int64_t{1} << 40);
  const auto value = fields_of(fields_of(late.find(5)->second).find(1)->second);
  EXPECT_EQ(value.find(1)->second.size(), 239U);
  EXPECT_TRUE(std::isnan(only<float>(value, 2)));
}

// A run of ten steps that is started again from its sixth. tests/report/tensorboard_reads.py passes
// a directory to this test, and then reads that directory with TensorBoard.
TEST_F(TensorBoard, ResumeBeginsWithAPurge) {
  const char* given = std::getenv("TANDEM_TENSORBOARD_DIR");
  const std::string directory = given != nullptr ? given : root_;
  std::string first, second;
  {
    TensorBoardWriter writer(directory);
    for (int64_t step = 1; step <= 10; ++step) {
      writer.add_metrics(step, "train", {{"loss", 1.0 / static_cast<double>(step)}, {"lr", 0.5}});
    }
    first = writer.path();
  }
  {
    TensorBoardWriter writer(directory, 6);
    for (int64_t step = 7; step <= 8; ++step) {
      writer.add_metrics(step, "train",
                         {{"loss", 100.0 + static_cast<double>(step)}, {"lr", 0.25}});
    }
    second = writer.path();
  }
  EXPECT_LT(first, second);  // the order in which TensorBoard reads, even within one second
  const std::vector<std::string> records = records_of(second);
  ASSERT_EQ(records.size(), 4U);
  const auto purge = fields_of(records[1]);
  EXPECT_EQ(only<int64_t>(purge, 2), 7);
  EXPECT_EQ(only<int64_t>(fields_of(purge.find(7)->second), 1), 1);  // START
}

using Fields = std::multimap<uint64_t, std::string>;

// The values of the one summary in a record.
std::vector<Fields> values_of(const std::string& record) {
  const Fields event = fields_of(record), summary = fields_of(event.find(5)->second);
  std::vector<Fields> values;
  for (const auto& [field, value] : summary) {
    EXPECT_EQ(field, 1U);
    values.push_back(fields_of(value));
  }
  return values;
}

std::string text_of(const Fields& fields, uint64_t field) {
  EXPECT_EQ(fields.count(field), 1U) << field;
  return fields.find(field)->second;
}

// Name and content of the plugin in a value's metadata.
std::pair<std::string, std::string> plugin_of(const Fields& value) {
  const Fields plugin = fields_of(text_of(fields_of(text_of(value, 9)), 1));
  return {text_of(plugin, 1), text_of(plugin, 2)};
}

TEST_F(TensorBoard, MetricsAreScalars) {
  TensorBoardWriter writer(root_);
  writer.add_metrics(5, "train",
                     {{"loss", std::nan("")},
                      {"mfu", std::nan("")},
                      {"wire", std::vector<Metric>{{"sum", int64_t{3}}, {"host", "a"}}},
                      {"own_ms", std::vector<double>{1}}});
  const std::vector<Fields> values = values_of(records_of(writer.path())[1]);
  ASSERT_EQ(values.size(), 2U);
  EXPECT_EQ(text_of(values[0], 1), "train/loss");
  EXPECT_TRUE(std::isnan(only<float>(values[0], 2)));
  EXPECT_EQ(text_of(values[1], 1), "train/wire/sum");
  EXPECT_EQ(only<float>(values[1], 2), 3);
}

TEST_F(TensorBoard, TextAndPictures) {
  TensorBoardWriter writer(root_);
  writer.add_text(5, "samples/text", "a *b*");
  writer.add_picture(6, "samples/picture", {.height = 2, .width = 3, .png = "bytes"});
  const std::vector<std::string> records = records_of(writer.path());
  const Fields text = values_of(records[1]).at(0), picture = values_of(records[2]).at(0);
  EXPECT_EQ(text_of(text, 1), "samples/text");
  EXPECT_EQ(plugin_of(text).first, "text");
  const Fields tensor = fields_of(text_of(text, 8));
  EXPECT_EQ(only<int64_t>(tensor, 1), 7);  // DT_STRING
  EXPECT_EQ(only<int64_t>(fields_of(text_of(fields_of(text_of(tensor, 2)), 2)), 1), 1);
  EXPECT_EQ(text_of(tensor, 8), "a *b*");
  EXPECT_EQ(text_of(picture, 1), "samples/picture");
  const Fields image = fields_of(text_of(picture, 4));
  EXPECT_EQ(only<int64_t>(image, 1), 2);
  EXPECT_EQ(only<int64_t>(image, 2), 3);
  EXPECT_EQ(only<int64_t>(image, 3), 3);
  EXPECT_EQ(text_of(image, 4), "bytes");
}

TEST_F(TensorBoard, Histograms) {
  Histograms histograms;
  histograms["weights/a"].add(std::vector<float>{-1, 1, 1});
  histograms["weights/b"];
  TensorBoardWriter writer(root_);
  writer.add_histograms(5, histograms);
  const std::vector<Fields> values = values_of(records_of(writer.path())[1]);
  ASSERT_EQ(values.size(), 2U);
  EXPECT_EQ(text_of(values[0], 1), "weights/a");
  const Fields content = fields_of(text_of(values[0], 5));
  const std::vector<double> numbers = {-1.125, 1.125, 3, 1, 3};  // min, max, num, sum, squares
  for (uint64_t field = 1; field <= 5; ++field) {
    EXPECT_EQ(only<double>(content, field), numbers[field - 1]) << field;
  }
  const std::string limits = text_of(content, 6), counts = text_of(content, 7);
  EXPECT_EQ(limits.size(), counts.size());
  double last = 0;
  std::memcpy(&last, counts.data() + counts.size() - sizeof last, sizeof last);
  EXPECT_EQ(last, 2);
  EXPECT_EQ(only<double>(fields_of(text_of(values[1], 5)), 3), 0);
}

TEST_F(TensorBoard, HParams) {
  TensorBoardWriter writer(root_);
  writer.add_hparams(std::vector<Assignment>{
      {"optim.lr", "5e-1", ""}, {"optim.nesterov", "true", ""}, {"model.kind", "gpt", ""}});
  writer.end_hparams();
  const std::vector<std::string> records = records_of(writer.path());
  const Fields start = values_of(records[1]).at(0), end = values_of(records[2]).at(0);
  EXPECT_EQ(text_of(start, 1), "_hparams_/session_start_info");
  EXPECT_EQ(plugin_of(start).first, "hparams");
  const Fields info = fields_of(text_of(fields_of(plugin_of(start).second), 3));
  ASSERT_EQ(info.count(1), 3U);
  auto entry = info.find(1);
  EXPECT_EQ(text_of(fields_of(entry->second), 1), "optim.lr");
  EXPECT_EQ(only<double>(fields_of(text_of(fields_of(entry->second), 2)), 2), 0.5);
  ++entry;
  EXPECT_EQ(only<int64_t>(fields_of(text_of(fields_of(entry->second), 2)), 4), 1);
  ++entry;
  EXPECT_EQ(text_of(fields_of(text_of(fields_of(entry->second), 2)), 3), "gpt");
  EXPECT_EQ(text_of(end, 1), "_hparams_/session_end_info");
  EXPECT_EQ(only<int64_t>(fields_of(text_of(fields_of(plugin_of(end).second), 4)), 1), 1);
}

TEST_F(TensorBoard, UnwritablePlaceIsNamed) {
  FileWriter(root_ + "/file", FileWriter::Start::kEmpty).write("not a directory");
  try {
    const TensorBoardWriter writer(root_ + "/file/tensorboard");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_NE(std::string(error.what()).find(root_ + "/file/tensorboard"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem
