// HDF5 files that no writer of ours makes: what they hold is elsewhere, or not what a reader takes
// it for.
#include <hdf5.h>

#include <cstring>
#include <string>
#include <vector>

#include "src/io/file.h"
#include "src/io/hdf5/hdf5.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

// A file with the dataset /numbers of three 32-bit numbers, to which a test adds something.
class HostileHdf5 : public ::testing::Test {
 protected:
  HostileHdf5() : path_(folder_ / "hostile.h5") {
    H5Writer writer(path_);
    writer.write_all<uint32_t>("/numbers", std::vector<uint32_t>{1, 2, 3});
    writer.commit();
    file_ = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  }

  void expect_no_dataset(const std::string& name, const std::string& problem) {
    H5Fclose(file_);
    const H5Reader reader(path_);
    expect_error(ExitCode::kData, {"hostile.h5: ", problem}, [&] { reader.dataset(name); });
    EXPECT_EQ(reader.read_all<uint32_t>("/numbers"), (std::vector<uint32_t>{1, 2, 3}));
  }

  // A dataset of `count` 32-bit numbers.
  void add_dataset(const char* name, hsize_t count, hid_t properties) {
    const hid_t space = H5Screate_simple(1, &count, nullptr);
    H5Dclose(H5Dcreate2(file_, name, H5T_STD_U32LE, space, H5P_DEFAULT, properties, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(properties);
  }

  TemporaryFolder folder_;
  std::string path_;
  hid_t file_;
};

TEST_F(HostileHdf5, SoftLinksAreNotFollowed) {
  H5Lcreate_soft("/numbers", file_, "/alias", H5P_DEFAULT, H5P_DEFAULT);
  expect_no_dataset("/alias", "/alias is a link");
}

TEST_F(HostileHdf5, ExternalLinksAreNotFollowed) {
  H5Writer other(folder_ / "other.h5");
  other.write_all<uint32_t>("/group/numbers", std::vector<uint32_t>{7});
  other.commit();
  H5Lcreate_external("other.h5", "/group", file_, "/group", H5P_DEFAULT, H5P_DEFAULT);
  expect_no_dataset("/group/numbers", "/group is a link");
}

TEST_F(HostileHdf5, ExternalStorageIsNotRead) {
  const std::string raw = folder_.write("raw", std::string(12, 'x'));
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_external(properties, raw.c_str(), 0, 12);
  add_dataset("/outside", 3, properties);
  expect_no_dataset("/outside", "/outside lies in another file");
}

TEST_F(HostileHdf5, VirtualDatasetsAreNotRead) {
  const hsize_t count = 3;
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_virtual(properties, space, ".", "/numbers", space);
  H5Sclose(space);
  add_dataset("/virtual", count, properties);
  expect_no_dataset("/virtual", "/virtual is chunked, compact, compressed or virtual");
}

// 2^62 elements of 4 bytes are 2^64 bytes.
TEST_F(HostileHdf5, SizesThatOverflowAreCutShort) {
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
  add_dataset("/many", 4, properties);
  H5Fclose(file_);
  std::string bytes = read_file(path_);
  // The dataspace message of /many: version 1, one dimension, with its limit, five reserved bytes;
  // then size and limit, both 4.
  const std::string four{1, 1, 1, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0};
  const size_t at = bytes.find(four);
  ASSERT_NE(at, std::string::npos);
  for (const size_t number : {at + 8, at + 16}) {
    bytes[number] = 0;
    bytes[number + 7] = 0x40;
  }
  folder_.write("hostile.h5", bytes);
  file_ = H5Fopen(path_.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  expect_no_dataset("/many", "cut short: /many");
}

// Attributes of one file share a heap, which is read once.
TEST_F(HostileHdf5, ManyTextsMayLieInOneHeap) {
  const hid_t space = H5Screate(H5S_SCALAR), type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, H5T_VARIABLE);
  for (int i = 0; i < 200; ++i) {
    const std::string name = str("text", i);
    const char* value = name.c_str();
    const hid_t made = H5Acreate2(file_, value, type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(made, type, &value);
    H5Aclose(made);
  }
  H5Tclose(type);
  H5Sclose(space);
  H5Fclose(file_);
  const H5Reader reader(path_);
  EXPECT_EQ(reader.string_attribute("/", "text0"), "text0");
  EXPECT_EQ(reader.string_attribute("/", "text199"), "text199");
}

void put(std::string* bytes, size_t place, uint64_t number) {
  bytes->replace(place, sizeof number, reinterpret_cast<const char*>(&number), sizeof number);
}

uint64_t number_at(const std::string& bytes, size_t place) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data() + place, sizeof number);
  return number;
}

// The first message of the root's header, of 16 bytes after 8 about it, becomes one that says where
// the header goes on: where it begins.
TEST_F(HostileHdf5, AHeaderThatContinuesItselfIsDamage) {
  H5Fclose(file_);
  std::string bytes = read_file(path_);
  const uint64_t header = number_at(bytes, 64), size = number_at(bytes, header + 8) & 0xffffffff;
  constexpr uint64_t kContinuation = 0x00100010;  // the type and the size
  put(&bytes, header + 16, kContinuation);
  put(&bytes, header + 24, header + 16);
  put(&bytes, header + 32, size);
  folder_.write("hostile.h5", bytes);
  expect_error(ExitCode::kData, {"hostile.h5: damaged"}, [&] { H5Reader reader(path_); });
}

// Each of 2,000 members gets a name of about a million letters, which all end in the same ones.
TEST_F(HostileHdf5, NamesThatShareTheirBytesAreDamage) {
  constexpr size_t kMembers = 2000, kLetters = size_t{1} << 20;
  for (size_t i = 0; i < kMembers; ++i) {
    H5Gclose(H5Gcreate2(file_, str("member", i).c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  }
  H5Gclose(
      H5Gcreate2(file_, std::string(kLetters, 'x').c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Fclose(file_);
  std::string bytes = read_file(path_);
  const uint64_t heap = number_at(bytes, bytes.find("HEAP") + 24);
  const uint64_t name = bytes.find(std::string(kLetters, 'x')) - heap;
  size_t changed = 0;
  for (size_t node = bytes.find("SNOD"); node != std::string::npos;
       node = bytes.find("SNOD", node + 1)) {
    for (size_t i = 0; i < (number_at(bytes, node) >> 48); ++i) {
      put(&bytes, node + 8 + 40 * i, name + changed++);
    }
  }
  ASSERT_GT(changed, kMembers);
  folder_.write("hostile.h5", bytes);
  expect_error(ExitCode::kData, {"hostile.h5: damaged"}, [&] { H5Reader reader(path_); });
}

TEST_F(HostileHdf5, AListOfTextsIsNoText) {
  const hsize_t count = 4;
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  for (const size_t size : {size_t{8}, H5T_VARIABLE}) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, size);
    H5Aclose(
        H5Acreate2(file_, size == 8 ? "fixed" : "variable", type, space, H5P_DEFAULT, H5P_DEFAULT));
    H5Tclose(type);
  }
  H5Sclose(space);
  H5Fclose(file_);
  const H5Reader reader(path_);
  for (const std::string name : {"fixed", "variable"}) {
    expect_error(ExitCode::kData, {"hostile.h5: / has no text attribute " + name},
                 [&] { reader.string_attribute("/", name); });
  }
}

}  // namespace
}  // namespace tandem::testing
