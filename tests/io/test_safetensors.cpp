#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "src/io/file.h"
#include "tests/io/safetensors_folder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Safetensors = SafetensorsFolder;

TEST_F(Safetensors, WidensExactlyAndReadsAnyRange) {
  // All bf16 and fp16 there are, and some f32.
  const std::string header =
      R"({"h": {"dtype": "F16", "shape": [256, 256], "data_offsets": [0, 131072]},
    "b": {"dtype": "BF16", "shape": [65536], "data_offsets": [131072, 262144]},
    "i": {"dtype": "I64", "shape": [], "data_offsets": [262144, 262152]},
    "f": {"dtype": "F32", "shape": [2, 1], "data_offsets": [262152, 262160]},
    "none": {"dtype": "F32", "shape": [3, 0], "data_offsets": [262160, 262160]}} )";
  std::string bytes = file_of(header, 0);
  std::vector<uint16_t> halves(65536);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  for (int i = 0; i < 2; ++i) {
    bytes.append(reinterpret_cast<const char*>(halves.data()), 131072);
  }
  const float floats[] = {-0.0F, std::numeric_limits<float>::denorm_min()};
  bytes += std::string(8, '\0') + std::string(reinterpret_cast<const char*>(floats), 8);
  put("model.safetensors", bytes);

  const SafetensorsReader reader(folder_.path());
  EXPECT_EQ(reader.tensors(), (Entries{{"b", "BF16", {65536}},
                                       {"f", "F32", {2, 1}},
                                       {"h", "F16", {256, 256}},
                                       {"i", "I64", {}},
                                       {"none", "F32", {3, 0}}}));
  EXPECT_EQ(reader.find("c"), nullptr);
  EXPECT_EQ(reader.find("i")->elements(), 1);
  EXPECT_EQ(reader.find("none")->elements(), 0);
  const std::vector<float> wide_halves = all_of(reader, "h"), wide_brains = all_of(reader, "b");
  for (uint32_t i = 0; i < 65536; ++i) {
    const float brain = std::bit_cast<float>(i << 16);
    ASSERT_TRUE(std::isnan(brain) ? std::isnan(wide_brains[i]) : wide_brains[i] == brain) << i;
    // IEEE 754: 1 sign, 5 bits of exponent with bias 15, 10 of fraction.
    const double fraction = i & 0x3FFU, exponent = (i >> 10) & 0x1FU;
    const double size = exponent == 0
                            ? std::ldexp(fraction, -24)
                            : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    if (exponent < 31) {
      ASSERT_EQ(wide_halves[i], i < 0x8000 ? size : -size) << i;
    } else {
      ASSERT_EQ(std::isnan(wide_halves[i]), fraction > 0) << i;
    }
  }
  EXPECT_TRUE(std::signbit(all_of(reader, "f")[0]));
  EXPECT_EQ(all_of(reader, "f")[1], floats[1]);
  std::vector<float> part(40000);
  reader.read("h", 17, part);
  EXPECT_EQ(std::memcmp(part.data(), &wide_halves[17], part.size() * sizeof(float)), 0);

  std::vector<float> one(1);
  EXPECT_NE(message_of([&] { reader.read("i", 0, one); }).find("type I64; only F32, F16 and BF16"),
            std::string::npos);
  EXPECT_NE(message_of([&] { reader.read("x", 0, one); }).find("tensor x is missing"),
            std::string::npos);
  EXPECT_THROW(reader.read("f", 2, one), Error);
  EXPECT_THROW(reader.read("f", -1, one), Error);
}

TEST_F(Safetensors, AFileThatShrinksIsAnError) {
  const std::string file =
      put("model.safetensors", file_of("{" + tensor("w", 0, 80000) + "}", 80000));
  const SafetensorsReader reader(file);
  std::vector<float> values(20000);
  reader.read("w", 0, values);
  fs::resize_file(file, 50000);
  const std::string message = message_of([&] { reader.read("w", 0, values); });
  EXPECT_TRUE(message.starts_with(file + ": cannot read byte 50000: the file was cut short"))
      << message;
  EXPECT_TRUE(message.ends_with("(tensor w)")) << message;
}

TEST_F(Safetensors, WritesOneFile) {
  std::vector<float> values(1001);
  std::iota(values.begin(), values.end(), 0.5F);
  {
    SafetensorsWriter writer(
        folder_.path(), {{"b", "F32", {10, 100}}, {"none", "F32", {0}}, {"a", "F32", {}}}, 1 << 20);
    writer.write(std::span(values).first(700));
    EXPECT_TRUE(fs::exists(path("model.safetensors.partial")));
    EXPECT_FALSE(fs::exists(path("model.safetensors")));
    EXPECT_THROW(writer.commit(), Error);
    writer.write(std::span(values).last(301));
    EXPECT_THROW(writer.write(values), Error);
    writer.commit();
  }
  EXPECT_FALSE(fs::exists(path("model.safetensors.partial")));
  const SafetensorsReader reader(folder_.path());
  EXPECT_EQ(reader.tensors(),
            (Entries{{"a", "F32", {}}, {"b", "F32", {10, 100}}, {"none", "F32", {0}}}));
  EXPECT_EQ(all_of(reader, "a"), std::vector<float>{1000.5F});
  EXPECT_EQ(all_of(reader, "b"), std::vector<float>(values.begin(), values.end() - 1));
  const std::string bytes = read_file(path("model.safetensors"));
  EXPECT_EQ((bytes.size() - 4004) % 64, 0U);
  EXPECT_NE(bytes.find(R"("__metadata__":{"format":"pt"})"), std::string::npos);
}

TEST_F(Safetensors, WritesShards) {
  const Entries entries = {
      {"a", "BF16", {30}}, {"b", "BF16", {20}}, {"c", "BF16", {51}}, {"d", "BF16", {1}}};
  std::vector<float> values(102);
  std::iota(values.begin(), values.end(), 0.0F);
  SafetensorsWriter writer(folder_.path(), entries, 100);  // c alone has 102 bytes
  writer.write(values);
  writer.commit();
  const SafetensorsReader reader(folder_.path());
  EXPECT_EQ(reader.tensors(), entries);
  EXPECT_EQ(all_of(reader, "c")[50], 100);
  EXPECT_EQ(all_of(reader, "d")[0], 101);
  for (const char* name : {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                           "model-00003-of-00003.safetensors"}) {
    EXPECT_EQ(message_of_file(path(name)), "no error");
  }
  const std::string index = read_file(path("model.safetensors.index.json"));
  EXPECT_NE(index.find("\"total_size\": 204"), std::string::npos) << index;
  EXPECT_NE(index.find("\"b\": \"model-00001-of-00003.safetensors\""), std::string::npos) << index;
}

// Numbers of 16 bits are rounded in pieces of 2^18, and widened in pieces of 2^15.
TEST_F(Safetensors, LargeTensorsGoThroughInPieces) {
  std::vector<float> values((size_t{1} << 19) + 5);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 251);  // exact in bf16
  }
  SafetensorsWriter writer(folder_.path(), {{"w", "BF16", {std::ssize(values)}}}, 1 << 21);
  writer.write(values);
  writer.commit();
  EXPECT_TRUE(all_of(SafetensorsReader(folder_.path()), "w") == values);
}

TEST_F(Safetensors, RoundsToNearestEven) {
  // Between 1 and the next numbers; the first that bf16 and fp16 round to infinity.
  const std::vector<float> values = {1 + 0x1p-8F,  1 + 0x3p-8F, 1 + 0x1p-11F,
                                     1 + 0x3p-11F, -65519.0F,   0x1p-25F,
                                     INFINITY,     -INFINITY,   NAN};
  const auto write = [&](const char* dtype, const std::vector<float>& written) {
    SafetensorsWriter writer(folder_.path(), {{"w", dtype, {std::ssize(written)}}}, 1 << 20);
    writer.write(written);
    writer.commit();
    return all_of(SafetensorsReader(folder_.path()), "w");
  };
  const std::vector<float> brains = write("BF16", values), halves = write("F16", values);
  EXPECT_EQ(std::vector(brains.begin(), brains.end() - 1),
            (std::vector<float>{1, 1 + 0x1p-6F, 1, 1, -65536, 0x1p-25F, INFINITY, -INFINITY}));
  EXPECT_EQ(std::vector(halves.begin(), halves.end() - 1),
            (std::vector<float>{1 + 0x1p-8F, 1 + 0x3p-8F, 1, 1 + 0x1p-9F, -65504, 0, INFINITY,
                                -INFINITY}));
  EXPECT_TRUE(std::isnan(brains.back()) && std::isnan(halves.back()));
  EXPECT_NE(message_of([&] {
              write("F16", {1, 65520.0F});
            }).find("tensor w has the value 65520, which is too large for F16"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              write("BF16", {std::numeric_limits<float>::max()});
            }).find("too large for BF16"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(path("model.safetensors.partial")));
  EXPECT_EQ(std::ssize(all_of(SafetensorsReader(folder_.path()), "w")), 9);  // the last good one
}

}  // namespace
}  // namespace tandem
