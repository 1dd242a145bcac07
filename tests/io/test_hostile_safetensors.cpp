#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "tests/io/safetensors_folder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using HostileSafetensors = SafetensorsFolder;

// What an author of bad files may write, and what the message must say.
struct Hostile {
  std::string what, header;
  int64_t data;
  std::string message;
};

std::vector<Hostile> hostile_headers() {
  const auto with = [](const std::string& fields) { return "{\"w\": {" + fields + "}}"; };
  const auto offsets = [&](const std::string& shape, const std::string& numbers) {
    return with(R"("dtype": "F32", "shape": )" + shape + R"(, "data_offsets": )" + numbers);
  };
  const std::string deep(100000, '[');
  std::string deep_objects, many_ones;
  for (int i = 0; i < 10000; ++i) {
    deep_objects += "{\"a\":";
    many_ones += ",1";
  }
  return {
      {"an array", "[1, 2]", 0, "does not begin with {"},
      {"cut short", "{\"w\": {", 0, "not JSON"},
      {"two objects", "{}{}", 0, "not JSON"},
      {"a zero byte", std::string("{}\0{}", 5), 0, "zero byte"},
      {"bad UTF-8 in a name", "{\"\xff\xfe\": 1}", 0, "not JSON"},
      {"bad UTF-8 outside", "{\xc3\x28}", 0, "not JSON"},
      {"an unpaired surrogate", R"({"\ud800": 1})", 0, "not JSON"},
      {"a comment", "{/**/}", 0, "not JSON"},
      {"a trailing comma", "{" + tensor("w", 0, 8) + ",}", 8, "not JSON"},
      {"a name twice", "{" + tensor("w", 0, 8) + ", " + tensor("w", 8, 16) + "}", 16,
       "tensor w: it stands in the header twice"},
      {"a name twice at one place", "{" + tensor("w", 0, 8) + ", " + tensor("\\u0077", 0, 8) + "}",
       8, "tensor w: it stands in the header twice"},
      {"a field twice", with(R"("dtype": "F32", "dtype": "F32")"), 8,
       "w: dtype stands in it twice"},
      {"metadata twice", R"({"__metadata__": {}, "__metadata__": {}})", 0, "stands in it twice"},
      {"a key of the metadata twice", R"({"__metadata__": {"a": "1", "a": "2"}})", 0,
       "__metadata__ has the key a twice"},
      {"metadata that is a number", R"({"__metadata__": 1})", 0, "__metadata__: a value"},
      {"metadata in metadata", R"({"__metadata__": {"a": {}}})", 0, "__metadata__: an object"},
      {"a number in metadata", R"({"__metadata__": {"a": 1}})", 0, "not a text"},
      {"a tensor that is a text", R"({"w": "F32"})", 0, "tensor w: a value of a wrong type"},
      {"a tensor that is an array", R"({"w": [0, 8]})", 0, "tensor w: a value of a wrong type"},
      {"deep arrays", offsets(deep, "[0, 8]"), 8, "tensor w: a value of a wrong type"},
      {"deep objects", deep_objects, 0, "tensor a: unknown field a"},
      {"an object as shape", offsets("{}", "[0, 8]"), 8, "tensor w: an object where none may be"},
      {"an object in a shape", offsets("[{}]", "[0, 8]"), 8, "tensor w: an object where none may"},
      {"no dtype", with(R"("shape": [2], "data_offsets": [0, 8])"), 8, "w: dtype is missing"},
      {"no shape", with(R"("dtype": "F32", "data_offsets": [0, 8])"), 8, "w: shape is missing"},
      {"no offsets", with(R"("dtype": "F32", "shape": [2])"), 8, "w: data_offsets is missing"},
      {"another field", with(R"("dtype": "F32", "stride": [2])"), 8, "w: unknown field stride"},
      {"an unknown type", with(R"("dtype": "F33", "shape": [2], "data_offsets": [0, 8])"), 8,
       "tensor w: unknown type F33"},
      {"a type with control characters",
       with(R"("dtype": "\n\u001b[2J", "shape": [2], "data_offsets": [0, 8])"), 8,
       "unknown type \\x0A\\x1B[2J"},
      {"a type that is a number", with(R"("dtype": 32)"), 8, "w: a value of a wrong type"},
      {"a negative offset", offsets("[2]", "[-8, 0]"), 8, "w: data_offsets has a negative number"},
      {"a fractional offset", offsets("[2]", "[0, 8.5]"), 8,
       "data_offsets has a number that is not"},
      {"a whole offset with an exponent", offsets("[2]", "[0, 8e0]"), 8, "is not whole"},
      {"an offset above 64 bits", offsets("[2]", "[0, 18446744073709551624]"), 8, "or too large"},
      {"an offset of 64 bits", offsets("[2]", "[0, 18446744073709551615]"), 8,
       "which is too large"},
      {"an offset beyond the end", offsets("[4]", "[0, 16]"), 8,
       "its bytes end at 16, but the file"},
      {"reversed offsets", offsets("[2]", "[8, 0]"), 8, "they begin at 8"},
      {"one offset", offsets("[2]", "[0]"), 8, "w: data_offsets are not two numbers"},
      {"three offsets", offsets("[2]", "[0, 8, 8]"), 8, "w: data_offsets has too many numbers"},
      {"a shape of another size", offsets("[3]", "[0, 8]"), 8, "need 12 bytes, but it has 8"},
      {"a shape that overflows", offsets("[4294967296, 4294967296]", "[0, 8]"), 8, "is too large"},
      {"a shape that overflows to the right size", offsets("[4611686018427387906]", "[0, 8]"), 8,
       "its shape is too large"},
      {"a negative size", offsets("[-2, -1]", "[0, 8]"), 8, "w: shape has a negative number"},
      {"a shape of ten thousand sizes", offsets("[1" + many_ones + "]", "[0, 4]"), 4,
       "w: shape has too many numbers"},
      {"half a byte", with(R"("dtype": "F4", "shape": [3], "data_offsets": [0, 1])"), 1,
       "its shape and type need 1 bytes"},
      {"an overlap", "{" + tensor("a", 0, 8) + ", " + tensor("b", 4, 12) + "}", 12,
       "tensor b: its bytes overlap those of tensor a"},
      {"a gap", "{" + tensor("a", 0, 8) + ", " + tensor("b", 12, 16) + "}", 16,
       "tensor b: a gap of 4 bytes before it"},
      {"a gap at the start", "{" + tensor("a", 4, 8) + "}", 8, "tensor a: a gap of 4 bytes"},
      {"bytes at the end", "{" + tensor("a", 0, 8) + "}", 9, "1 bytes after the last tensor, a"},
      {"bytes of no tensor", "{}", 4, "4 bytes after the last tensor that belong to none"},
      {"a name that is a message", R"({"a\nb": 1})", 0, "tensor a\\x0Ab: a value"},
      {"a long name", "{\"" + std::string(100000, 'a') + "\": 1}", 0, "aaa...: a value"},
  };
}

TEST_F(HostileSafetensors, EachHostileHeaderIsRefused) {
  EXPECT_GE(hostile_headers().size(), 40U);
  for (const Hostile& hostile : hostile_headers()) {
    const std::string file =
        put("bad.safetensors", file_of(hostile.header, static_cast<size_t>(hostile.data)));
    const std::string message = message_of_file(file);
    EXPECT_TRUE(message.starts_with(file + ": ")) << hostile.what << ": " << message;
    EXPECT_NE(message.find(hostile.message), std::string::npos) << hostile.what << ": " << message;
  }
}

TEST_F(HostileSafetensors, LengthsOfTheHeaderAreChecked) {
  const auto with_length = [&](uint64_t length) {
    std::string bytes = file_of("{}", 0);
    std::memcpy(bytes.data(), &length, sizeof(length));
    return message_of_file(put("bad.safetensors", bytes));
  };
  EXPECT_NE(with_length(3).find("a header of 3 bytes, but the file has only 10"),
            std::string::npos);
  EXPECT_NE(with_length(0).find("not JSON"), std::string::npos);
  EXPECT_NE(with_length(100'000'001).find("at most 100000000"), std::string::npos);
  EXPECT_NE(with_length(~uint64_t{0}).find("a header of 18446744073709551615"), std::string::npos);
  for (size_t bytes = 0; bytes < 8; ++bytes) {
    const std::string message = message_of_file(put("bad.safetensors", std::string(bytes, '{')));
    EXPECT_NE(message.find(str("it has only ", bytes, " bytes")), std::string::npos) << message;
  }
}

// As torch.save writes them: zip, and the older format.
TEST_F(HostileSafetensors, PickleIsRefusedWithAdvice) {
  const std::string zip = "PK\3\4" + std::string(100, '\0');
  const std::string old = "\x80\x02\x8a\x0al\xfc\x9c" + std::string(100, '.');
  for (const std::string& bytes : {zip, old}) {
    for (const char* name : {"pytorch_model.bin", "model.pt", "model.safetensors"}) {
      const std::string message = message_of_file(put(name, bytes));
      EXPECT_NE(message.find("pickle"), std::string::npos) << message;
      EXPECT_NE(message.find("save_pretrained"), std::string::npos) << message;
      fs::remove(path(name));
    }
    const std::string file = put("pytorch_model.bin", bytes);
    EXPECT_TRUE(message_of_file(folder_.path()).starts_with(file));
    fs::remove(file);
  }
  // A header of 0x280 bytes begins with the same two bytes as a pickle.
  std::string header = "{" + tensor("w", 0, 4) + "}";
  header.resize(0x280, ' ');
  EXPECT_EQ(message_of_file(put("fine.bin", file_of(header, 4))), "no error");
}

TEST_F(HostileSafetensors, APointerOfGitLfsIsNamed) {
  const std::string file =
      put("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:" +
                                   std::string(64, 'a') + "\nsize 548105171\n");
  const std::string expected =
      file + ": only a pointer of Git LFS; fetch the file itself with `git lfs pull`";
  EXPECT_EQ(message_of_file(file), expected);
  EXPECT_EQ(message_of_file(folder_.path()), expected);
}

TEST_F(HostileSafetensors, WhatIsNoFileIsRefused) {
  EXPECT_NE(message_of_file(path("none")).find("No such file"), std::string::npos);
  EXPECT_NE(message_of_file(path(std::string(300, 'a'))).find("File name too long"),
            std::string::npos);
  EXPECT_NE(message_of_file(folder_.path()).find("there is no model.safetensors"),
            std::string::npos);
  ASSERT_EQ(::mkfifo(path("model.safetensors").c_str(), 0600), 0);
  EXPECT_NE(message_of_file(folder_.path()).find("not a file"), std::string::npos);
}

class Shards : public SafetensorsFolder {
 protected:
  // Two shards: a and b in the first, c in the second.
  void SetUp() override {
    SafetensorsFolder::SetUp();
    put("one.safetensors", file_of("{" + tensor("b", 0, 8) + "," + tensor("a", 8, 12) + "}", 12));
    put("two.safetensors", file_of("{" + tensor("c", 0, 4) + "}", 4));
  }
  std::string with_index(const std::string& json) const {
    put("model.safetensors.index.json", json);
    return message_of_file(folder_.path());
  }
  std::string with_map(const std::string& map) const {
    return with_index(R"({"metadata": {"total_size": 16}, "weight_map": )" + map + "}");
  }
};

constexpr const char* kGoodMap =
    R"({"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"})";

TEST_F(Shards, AreReadThroughTheirIndex) {
  EXPECT_EQ(with_map(kGoodMap), "no error");
  const std::string index = path("model.safetensors.index.json");
  for (const std::string& name : {folder_.path(), index}) {
    const SafetensorsReader reader(name);
    EXPECT_EQ(reader.tensors(), (Entries{{"a", "F32", {1}}, {"b", "F32", {2}}, {"c", "F32", {1}}}));
    EXPECT_EQ(all_of(reader, "c"), std::vector<float>{0});
  }
  // As the Hub's cache keeps them.
  fs::create_directory(path("blobs"));
  fs::rename(path("one.safetensors"), path("blobs/1234"));
  fs::create_symlink("blobs/1234", path("one.safetensors"));
  EXPECT_EQ(message_of_file(folder_.path()), "no error");
}

TEST_F(Shards, MustAgreeWithTheIndex) {
  const struct {
    const char *map, *message;
  } cases[] = {
      {R"({"a": "one.safetensors", "b": "one.safetensors"})", "no error"},
      {R"({"b": "one.safetensors", "c": "two.safetensors"})", "tensor a: "},
      {R"({"a": "one.safetensors", "c": "two.safetensors"})", "tensor b: "},
      {R"({"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"})", "tensor b"},
      {R"({"a": "two.safetensors", "b": "one.safetensors", "c": "two.safetensors"})", "tensor a"},
      {R"({"a": "one.safetensors", "b": "one.safetensors", "d": "two.safetensors"})", "tensor c"},
      {R"({"a": "one.safetensors", "aa": "one.safetensors", "b": "one.safetensors"})",
       "tensor aa is missing"},
      {R"({"a": "one.safetensors", "b": "one.safetensors", "z": "one.safetensors"})",
       "tensor z is missing"},
      {R"({"a": "one.safetensors", "a": "one.safetensors"})", "tensor a: it stands in weight_map"},
      {R"({"c": "three.safetensors"})", "three.safetensors: missing"},
      {R"({"c": "../two.safetensors"})", "tensor c: its shard ../two.safetensors is not the name"},
      {R"({"c": "/etc/passwd"})", "its shard /etc/passwd is not the name"},
      {R"({"c": ".."})", "is not the name of a file"},
      {R"({"c": ""})", "is not the name of a file"},
      {R"({"c": "a\nb"})", "its shard a\\x0Ab is not the name"},
      {R"({"c": 3})", "tensor c: its shard is not a text"},
      {R"({"c": {}})", "tensor c: its shard is not a text"},
      {R"({"c": []})", "tensor c: its shard is not a text"},
      {R"([])", "weight_map is not an object"},
      {R"("two.safetensors")", "weight_map is not an object"},
      {R"({})", "weight_map is missing or empty"},
  };
  for (const auto& [map, expected] : cases) {
    const std::string message = with_map(map);
    EXPECT_NE(message.find(expected), std::string::npos) << map << ": " << message;
  }
  const std::string twice =
      str(R"({"weight_map": )", kGoodMap, R"(, "weight_map": )", kGoodMap, "}");
  EXPECT_NE(with_index(twice).find("weight_map stands in it twice"), std::string::npos);
  EXPECT_NE(with_index("{}").find("weight_map is missing"), std::string::npos);
  EXPECT_NE(with_index("[]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(with_index("").find("not JSON"), std::string::npos);
  EXPECT_NE(with_index("{\"metadata\": " + std::string(100000, '[')).find("16 levels"),
            std::string::npos);
  std::string many;
  for (int i = 0; i < 600; ++i) {
    const std::string name = str("t", i);
    put(name, file_of("{" + tensor(name, 0, 4) + "}", 4));
    many += str(i ? "," : "{", '"', name, "\": \"", name, '"');
  }
  EXPECT_NE(with_map(many + "}").find("more than 512 shards"), std::string::npos);
}

}  // namespace
}  // namespace tandem
