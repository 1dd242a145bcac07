#include <algorithm>
#include <type_traits>

#include "src/core/error.h"
#include "src/io/hdf5/hdf5.h"
#include "src/io/hdf5/hdf5_library.h"

namespace tandem {

using namespace hdf5;

int64_t size_of(H5Type type) {
  constexpr int64_t kBytes[] = {1, 2, 4, 4, 8, 4, 8};  // in the order of H5Type
  return kBytes[static_cast<size_t>(type)];
}

std::string_view name_of(H5Type type) {
  constexpr std::string_view kNames[] = {"u8", "u16", "u32", "i32", "i64", "f32", "f64"};
  return kNames[static_cast<size_t>(type)];
}

H5Reader::H5Reader(const std::string& path) : bytes_(path) {
  const LibraryLock lock;
  const Id access(access_list(), H5Pclose);
  file_ = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  if (file_ >= 0) {
    return;
  }
  std::string problem = library_message();
  if (H5Fis_hdf5(path.c_str()) <= 0) {
    problem = file_bytes() == 0 ? "empty file" : "not an HDF5 file";
  }
  if (problem.find("truncated") != std::string::npos) {
    problem = str("cut short: its ", file_bytes(),
                  " bytes are fewer than its header says; copy or create it again");
  }
  fail_data(path, ": ", problem);
}

H5Reader::~H5Reader() {
  const LibraryLock lock;
  H5Fclose(file_);
}

bool H5Reader::exists(const std::string& name) const {
  const LibraryLock lock;
  // The library only accepts a path whose parents exist, so each parent is checked first.
  for (size_t end = name.find('/', 1);; end = name.find('/', end + 1)) {
    const std::string part = name.substr(0, end);
    if (part != "/" && H5Lexists(file_, part.c_str(), H5P_DEFAULT) <= 0) {
      return false;
    }
    // A soft or external link could stand for other data, or for another file.
    H5L_info_t link{};
    if (part != "/" &&
        (H5Lget_info(file_, part.c_str(), &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD)) {
      fail_data(path(), ": ", part,
                " is a link; only what stands in the file itself is read: copy it there");
    }
    if (end == std::string::npos) {
      return true;
    }
  }
}

std::vector<std::string> H5Reader::children(const std::string& group) const {
  const LibraryLock lock;
  std::vector<std::string> names;
  const herr_t status = H5Literate_by_name(
      file_, group.c_str(), H5_INDEX_NAME, H5_ITER_INC, nullptr,
      [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
        static_cast<std::vector<std::string>*>(out)->emplace_back(name);
        return 0;
      },
      &names, H5P_DEFAULT);
  if (status < 0) {
    fail_data(path(), ": there is no group ", group);
  }
  std::sort(names.begin(), names.end());
  return names;
}

H5Dataset H5Reader::dataset(const std::string& name) const {
  const LibraryLock lock;
  const Id id(exists(name) ? H5Dopen2(file_, name.c_str(), H5P_DEFAULT) : H5I_INVALID_HID,
              H5Dclose);
  if (!id.ok()) {
    fail_data(path(), ": there is no dataset ", name);
  }
  H5Dataset found;
  found.name = name;
  const Id type(H5Dget_type(id), H5Tclose);
  if (!type_from_library(type, &found.type)) {
    fail_data(path(), ": ", name,
              " has an element type that is not read here (u8, u16, u32, i32, i64, f32 and f64, "
              "little-endian, are)");
  }
  const Id properties(H5Dget_create_plist(id), H5Pclose);
  if (H5Pget_layout(properties) != H5D_CONTIGUOUS) {
    fail_data(path(), ": ", name,
              " is chunked, compact, compressed or virtual; store it contiguous");
  }
  if (H5Pget_external_count(properties) != 0) {
    fail_data(path(), ": ", name,
              " lies in another file; only what stands in the file itself is read: copy it there");
  }
  const Id space(H5Dget_space(id), H5Sclose);
  std::vector<hsize_t> dims(static_cast<size_t>(std::max(0, H5Sget_simple_extent_ndims(space))));
  H5Sget_simple_extent_dims(space, dims.data(), nullptr);
  found.shape.assign(dims.begin(), dims.end());
  found.count = H5Sget_simple_extent_npoints(space);
  if (found.count <= 0) {
    found.count = 0;
    return found;
  }
  const haddr_t offset = H5Dget_offset(id);
  if (offset == HADDR_UNDEF) {
    fail_data(path(), ": ", name, " was created but never written");
  }
  found.offset = static_cast<int64_t>(offset);
  if (found.count > (file_bytes() - found.offset) / size_of(found.type)) {
    fail_data(path(), ": cut short: ", name, " begins at byte ", found.offset, " and has ",
              found.count, " elements, the file ends at byte ", file_bytes(),
              "; copy or create it again");
  }
  return found;
}

void H5Reader::read_bytes(const H5Dataset& dataset, H5Type type, int64_t start, int64_t count,
                          void* out) const {
  if (type != dataset.type) {
    fail_data(path(), ": ", dataset.name, " holds ", name_of(dataset.type), " elements where ",
              name_of(type), " was expected");
  }
  require(start >= 0 && count >= 0 && start <= dataset.count - count, [&] {
    return str(path(), ": ", dataset.name, ": elements ", start, " to ", start + count, " of ",
               dataset.count);
  });
  bytes_.read(dataset.offset + start * size_of(type), count * size_of(type), out);
}

bool H5Reader::has_attribute(const std::string& object, const std::string& name) const {
  const LibraryLock lock;
  return exists(object) && H5Aexists_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT) > 0;
}

// The library's id, negative if there is none. Called under the lock.
int64_t H5Reader::open_attribute(const std::string& object, const std::string& name) const {
  return exists(object)
             ? H5Aopen_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT)
             : H5I_INVALID_HID;
}

std::string H5Reader::string_attribute(const std::string& object, const std::string& name) const {
  const LibraryLock lock;
  const Id id(open_attribute(object, name), H5Aclose);
  const Id type(id.ok() ? H5Aget_type(id) : H5I_INVALID_HID, H5Tclose);
  if (!id.ok() || H5Tget_class(type) != H5T_STRING) {
    fail_data(path(), ": ", object, " has no text attribute ", name);
  }
  const Id space(H5Aget_space(id), H5Sclose);
  if (const auto count = H5Sget_simple_extent_npoints(space); count != 1) {
    fail_data(path(), ": attribute ", name, " of ", object, " holds ", count,
              " texts where one is expected");
  }
  if (H5Tis_variable_str(type) > 0) {
    const Id memory(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(memory, H5T_VARIABLE);
    H5Tset_cset(memory, H5Tget_cset(type));
    char* text = nullptr;
    if (H5Aread(id, memory, &text) < 0) {
      fail_data(path(), ": attribute ", name, " of ", object, ": ", library_message());
    }
    std::string value = text == nullptr ? "" : text;
    H5free_memory(text);
    return value;
  }
  std::string value(H5Tget_size(type), '\0');
  if (H5Aread(id, type, value.data()) < 0) {
    fail_data(path(), ": attribute ", name, " of ", object, ": ", library_message());
  }
  return value.substr(0, value.find('\0'));
}

template <class T>
std::vector<T> H5Reader::list_attribute(const std::string& object, const std::string& name) const {
  const LibraryLock lock;
  const Id id(open_attribute(object, name), H5Aclose);
  const Id type(id.ok() ? H5Aget_type(id) : H5I_INVALID_HID, H5Tclose);
  constexpr bool kIsInteger = std::is_integral_v<T>;
  if (!id.ok() || H5Tget_class(type) != (kIsInteger ? H5T_INTEGER : H5T_FLOAT)) {
    fail_data(path(), ": ", object, " has no ", kIsInteger ? "integer" : "floating-point",
              " attribute ", name);
  }
  const Id space(H5Aget_space(id), H5Sclose);
  const auto count = H5Sget_simple_extent_npoints(space);
  std::vector<T> values(static_cast<size_t>(std::max<hssize_t>(count, 0)));
  if (count < 0 || (count > 0 && H5Aread(id, file_type(h5_type_of<T>), values.data()) < 0)) {
    fail_data(path(), ": attribute ", name, " of ", object, ": ", library_message());
  }
  return values;
}

std::vector<int64_t> H5Reader::int_attribute(const std::string& object,
                                             const std::string& name) const {
  return list_attribute<int64_t>(object, name);
}

std::vector<double> H5Reader::double_attribute(const std::string& object,
                                               const std::string& name) const {
  return list_attribute<double>(object, name);
}

}  // namespace tandem
