// Reading and writing HDF5 files: datasets of tokens and images, and the pieces of a checkpoint.
//
// Files are written by the HDF5 library (src/io/hdf5/writer.cpp), and read without it
// (src/io/hdf5/metadata.h), because it does not survive damaged ones. Datasets are contiguous and
// uncompressed, so their bytes move with pread and pwrite at the dataset's offset in the file.
//
// After what HDF5 wrote, H5Writer adds a seal: a hash of all bytes that are not in datasets. HDF5
// ignores it. H5Reader compares it, so a changed byte in a description is found when the file is
// opened. Files without a seal are read, too.
//
// Assumes a little-endian machine. Any thread may use these classes. Every failure throws
// Error(ExitCode::kData) with one line that begins with the path of the file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/dtype.h"
#include "src/io/file.h"

namespace tandem {

namespace hdf5 {
struct Metadata;
struct Object;
}  // namespace hdf5

// Element types stored in files, all little-endian. size_of, name_of, h5_type_of and
// H5Writer list them in this order.
enum class H5Type : uint8_t { kU8, kU16, kU32, kU64, kI32, kI64, kF32, kF64 };

int64_t size_of(H5Type type);           // bytes of one element
std::string_view name_of(H5Type type);  // "u8", "u16", ...

template <class T>
inline constexpr auto h5_type_of = static_cast<H5Type>(
    position_in_list<T, uint8_t, uint16_t, uint32_t, uint64_t, int32_t, int64_t, float, double>());

// What a dataset is and where its bytes lie.
struct H5Dataset {
  std::string name;  // absolute, such as "/train/tokens"
  H5Type type = H5Type::kU8;
  std::vector<int64_t> shape;
  int64_t count = 0;   // elements: the product of the shape
  int64_t offset = 0;  // byte offset of the first element in the file; 0 when there are no elements
};

// An HDF5 file open for reading.
class H5Reader {
 public:
  // Throws when the file is missing, is not HDF5, was cut short (it is shorter than its header
  // says), or is damaged.
  explicit H5Reader(const std::string& path);
  ~H5Reader();
  H5Reader(const H5Reader&) = delete;
  H5Reader& operator=(const H5Reader&) = delete;

  const std::string& path() const { return bytes_.path(); }
  int64_t file_bytes() const { return bytes_.bytes(); }

  // True when the group or dataset with this absolute name is there. Soft and external links are
  // errors, here and in all functions below.
  bool exists(const std::string& name) const;

  // Names of the members of a group, without the group's own name, sorted.
  std::vector<std::string> children(const std::string& group) const;

  // Describes a dataset. Throws when it is absent, chunked, compressed, virtual, stored in another
  // file, of another element type, or when the file ends before the dataset does.
  H5Dataset dataset(const std::string& name) const;

  // Reads `out.size()` elements from flat position `start`. T must be the dataset's own type.
  template <class T>
  void read(const H5Dataset& dataset, int64_t start, std::span<T> out) const {
    read_bytes(dataset, h5_type_of<T>, start, std::ssize(out), out.data());
  }

  // Reads a whole dataset.
  template <class T>
  std::vector<T> read_all(const std::string& name) const {
    const H5Dataset found = dataset(name);
    std::vector<T> values(static_cast<size_t>(found.count));
    read(found, 0, std::span<T>(values));
    return values;
  }

  // Attributes of a group or dataset ("/" is the root). The readers throw when one is absent or of
  // another kind.
  bool has_attribute(const std::string& object, const std::string& name) const;
  std::string string_attribute(const std::string& object, const std::string& name) const;
  std::vector<int64_t> int_attribute(const std::string& object, const std::string& name) const;
  std::vector<double> double_attribute(const std::string& object, const std::string& name) const;

 private:
  const hdf5::Object* find(const std::string& name) const;
  void require_readable(const hdf5::Object& object, const std::string& name) const;
  template <class T>
  const T& attribute(const std::string& object, const std::string& name, const char* kind) const;
  void read_bytes(const H5Dataset& dataset, H5Type type, int64_t start, int64_t count,
                  void* out) const;

  FileReader bytes_;
  std::unique_ptr<const hdf5::Metadata> metadata_;
};

// An HDF5 file being written. Everything goes to PATH.partial, which commit() renames to PATH.
// Without commit(), or after an error, nothing is left behind, and an older PATH stays as it was.
class H5Writer {
 public:
  // Throws when the folder is missing or not writable.
  explicit H5Writer(const std::string& path);
  ~H5Writer();
  H5Writer(const H5Writer&) = delete;
  H5Writer& operator=(const H5Writer&) = delete;

  // Creates a group and its missing parents. Names may contain dots: "/param/block.0.weight".
  void create_group(const std::string& name);

  // Creates a dataset and its missing parent groups. Every element must be written before commit().
  void create_dataset(const std::string& name, H5Type type, const std::vector<int64_t>& shape);

  // Writes `values` at flat position `start` of a dataset created with the type of T. Each element
  // is written once, in any order.
  template <class T>
  void write(const std::string& name, int64_t start, std::span<const T> values) {
    write_bytes(name, h5_type_of<T>, start, std::ssize(values), values.data());
  }

  // Creates a one-dimensional dataset and writes it.
  template <class T>
  void write_all(const std::string& name, std::span<const T> values) {
    create_dataset(name, h5_type_of<T>, {std::ssize(values)});
    write(name, 0, values);
  }

  // Attributes of an existing group or dataset ("/" is the root), together less than 64 KiB each. A
  // dataset has at most eight.
  void set_attribute(const std::string& object, const std::string& name, const std::string& value);
  template <class T>
  void set_attribute(const std::string& object, const std::string& name,
                     const std::vector<T>& values) {
    write_list(object, name, h5_type_of<T>, values.size(), values.data());
  }

  // Flushes to the disk (fsync) and renames to the final name. Nothing may be called afterwards.
  void commit();

 private:
  struct Written {
    H5Dataset dataset;
    int64_t elements = 0;
  };

  void write_bytes(const std::string& name, H5Type type, int64_t start, int64_t count,
                   const void* values);
  void write_list(const std::string& object, const std::string& name, H5Type type, size_t count,
                  const void* values);
  void discard();
  [[noreturn]] void fail_writing(const std::string& what, int error_number);

  std::string path_;
  std::string partial_path_;
  int descriptor_ = -1;
  int64_t file_ = -1;
  std::map<std::string, Written> datasets_;
};

}  // namespace tandem
