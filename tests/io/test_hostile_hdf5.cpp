// HDF5 files that no writer of ours makes: what they hold is elsewhere, or not what a reader takes
// it for.
#include <hdf5.h>

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
    expect_error(ExitCode::kData, {"hostile.h5: attribute " + name + " of / holds 4 texts"},
                 [&] { reader.string_attribute("/", name); });
  }
}

}  // namespace
}  // namespace tandem::testing
