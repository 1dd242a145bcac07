#include "tests/support/foreign_dataset.h"

#include <hdf5.h>

#include <cstdint>
#include <vector>

#include "src/data/dataset.h"

namespace tandem::testing {
namespace {

class ForeignFile {
 public:
  ForeignFile(const std::string& path, Hdf5Form form) : path_(path) {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access,
                         form == Hdf5Form::kLatest ? H5F_LIBVER_LATEST : H5F_LIBVER_EARLIEST,
                         H5F_LIBVER_LATEST);
    file_ = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
  }

  void add_group(const char* name) {
    H5Gclose(H5Gcreate2(file_, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  }

  template <class T>
  void add_dataset(const char* name, hid_t type, const std::vector<hsize_t>& shape,
                   const std::vector<T>& values) {
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t made = H5Dcreate2(file_, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(made, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    H5Dclose(made);
    H5Sclose(space);
  }

  template <class T>
  void add_attribute(const char* name, hid_t type, const std::vector<T>& values) {
    const hsize_t count = values.size();
    const hid_t space = H5Screate_simple(1, &count, nullptr);
    write_attribute("/", name, type, space, values.data());
  }

  void add_text(const char* object, const char* name, const std::string& text) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    const char* begin = text.c_str();
    write_attribute(object, name, type, H5Screate(H5S_SCALAR), &begin);
    H5Tclose(type);
  }

  // Ends the file. Its content hash is that of what it holds.
  void close() {
    add_text("/", "content_hash", std::string(32, '0'));
    H5Fclose(file_);
    const std::string hash = compute_content_hash(path_);
    file_ = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    H5Adelete(file_, "content_hash");
    add_text("/", "content_hash", hash);
    H5Fclose(file_);
  }

 private:
  void write_attribute(const char* object, const char* name, hid_t type, hid_t space,
                       const void* values) {
    const hid_t made =
        H5Acreate_by_name(file_, object, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(made, type, values);
    H5Aclose(made);
    H5Sclose(space);
  }

  std::string path_;
  hid_t file_;
};

}  // namespace

void write_foreign_text(const std::string& path, Hdf5Form form) {
  ForeignFile file(path, form);
  for (const char* group : {"/train", "/val", "/tokenizer"}) {
    file.add_group(group);
  }
  file.add_dataset<int32_t>("/tokenizer/code_points", H5T_STD_I32LE, {3}, {'a', 'b', 0x20AC});
  file.add_dataset<uint16_t>("/train/tokens", H5T_STD_U16LE, {9}, {0, 1, 2, 1, 0, 2, 1, 1, 0});
  file.add_dataset<uint16_t>("/val/tokens", H5T_STD_U16LE, {4}, {1, 2, 1, 0});
  file.add_dataset<uint64_t>("/train/starts", H5T_STD_U64LE, {3}, {0, 4, 9});
  file.add_dataset<uint64_t>("/val/starts", H5T_STD_U64LE, {2}, {0, 4});
  file.add_attribute<int64_t>("format", H5T_STD_I64LE, {kDatasetFormat});
  file.add_attribute<int32_t>("vocab_size", H5T_STD_I32LE, {3});
  file.add_text("/", "kind", "text");
  file.add_text("/tokenizer", "kind", "char");
  file.close();
}

void write_foreign_images(const std::string& path, Hdf5Form form) {
  ForeignFile file(path, form);
  file.add_group("/train");
  file.add_group("/val");
  file.add_dataset<uint8_t>("/train/images", H5T_STD_U8LE, {3, 1, 2, 2},
                            {0, 50, 100, 150, 200, 250, 3, 5, 7, 9, 11, 13});
  file.add_dataset<int32_t>("/train/labels", H5T_STD_I32LE, {3}, {0, 1, 0});
  file.add_dataset<uint8_t>("/val/images", H5T_STD_U8LE, {2, 1, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  file.add_dataset<int32_t>("/val/labels", H5T_STD_I32LE, {2}, {1, 0});
  file.add_attribute<int64_t>("format", H5T_STD_I64LE, {kDatasetFormat});
  file.add_attribute<double>("mean", H5T_IEEE_F64LE, {0.25});
  file.add_attribute<float>("std", H5T_IEEE_F32LE, {0.5});
  const std::string_view names = "cat\nold dog\n";
  file.add_dataset<uint8_t>("/class_names", H5T_STD_U8LE, {names.size()},
                            {names.begin(), names.end()});
  file.add_text("/", "kind", "images");
  file.close();
}

}  // namespace tandem::testing
