#include <fcntl.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/io/hdf5/hdf5.h"
#include "src/io/hdf5/metadata.h"

namespace tandem {

namespace {

static_assert(std::endian::native == std::endian::little,
              "files are written in the machine's byte order");
static_assert(sizeof(hid_t) == sizeof(int64_t), "HDF5 1.10 or newer: ids have 64 bits");

// Held during every call into the library. Taking the lock also sets up the library, because the
// first call may come from any thread.
class LibraryLock {
 public:
  LibraryLock() : guard_(mutex()) {
    // Turns off the library's clean-up at exit. Files are closed one by one, and the clean-up would
    // crash on a file that could not be closed because the disk is full.
    static const herr_t no_exit_handler = H5dont_atexit();
    static_cast<void>(no_exit_handler);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex instance;
    return instance;
  }
  std::lock_guard<std::recursive_mutex> guard_;
};

// Closes an id at the end of a scope. Used under the lock only.
class Id {
 public:
  using Close = herr_t (*)(hid_t);
  Id(hid_t id, Close close) : id_(id), close_(close) {}
  ~Id() {
    if (id_ >= 0) {
      close_(id_);
    }
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  operator hid_t() const { return id_; }
  bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
  Close close_;
};

// The library's innermost explanation of the last failure, in one line.
std::string library_message() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
        auto& message = *static_cast<std::string*>(out);
        if (message.empty() && error->desc != nullptr) {
          message = error->desc;
        }
        return 0;
      },
      &text);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.empty() ? "unknown HDF5 error" : text;
}

hid_t file_type(H5Type type) {
  const hid_t types[] = {H5T_STD_U8LE,  H5T_STD_U16LE, H5T_STD_U32LE,  H5T_STD_U64LE,
                         H5T_STD_I32LE, H5T_STD_I64LE, H5T_IEEE_F32LE, H5T_IEEE_F64LE};
  return types[static_cast<size_t>(type)];
}

// Locks on files are off: files are never changed in place, and flock fails on some network file
// systems.
hid_t access_list() {
  const hid_t list = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_file_locking(list, false, true);
  return list;
}

// Datasets and attributes have the form of HDF5 1.8, which takes fewer bytes. Groups have the
// oldest form: the newer one is slow with thousands of members, or dense, which is not read here.
bool use_form(hid_t file, H5F_libver_t form) {
  return H5Fset_libver_bounds(file, form, H5F_LIBVER_V18) >= 0;
}

}  // namespace

H5Writer::H5Writer(const std::string& path)
    : path_(require_replaceable(path)), partial_path_(path + ".partial") {
  descriptor_ =
      ::open(partial_path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor_ < 0) {
    fail_data(path, ": cannot write here: ", std::strerror(errno));
  }
  const LibraryLock lock;
  const Id access(access_list(), H5Pclose);
  errno = 0;
  file_ = H5Fcreate(partial_path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  if (file_ < 0 || !use_form(file_, H5F_LIBVER_V18)) {
    fail_writing(library_message(), errno);
  }
}

H5Writer::~H5Writer() { discard(); }

// Frees the file's space before closing it: on a full disk the library could otherwise not write
// its last few bytes, and would keep the file open for good.
void H5Writer::discard() {
  if (descriptor_ < 0) {
    return;
  }
  static_cast<void>(::ftruncate(descriptor_, 0));
  if (file_ >= 0) {
    const LibraryLock lock;
    H5Fclose(file_);
    file_ = -1;
  }
  ::unlink(partial_path_.c_str());
  ::close(descriptor_);
  descriptor_ = -1;
}

void H5Writer::fail_writing(const std::string& what, int error_number) {
  const std::string reason = error_number == 0 ? "" : std::strerror(error_number);
  const int64_t needed = sum_of(std::views::values(datasets_), [](const auto& written) {
    return written.dataset.count * size_of(written.dataset.type);
  });
  // The library has the number in its message alone.
  const auto says = [&](int number) { return what.find(std::strerror(number)) != what.npos; };
  discard();
  if (is_disk_full(error_number) || says(ENOSPC) || says(EDQUOT) || says(EFBIG)) {
    fail_data(path_, ": no space left on the disk (or quota reached); this file needs more than ",
              needed, " bytes: free some space, or write elsewhere");
  }
  const bool said = what.find(reason) != std::string::npos;
  fail_data(path_, ": cannot write: ", what, said ? "" : ": " + reason);
}

void H5Writer::create_group(const std::string& name) {
  const LibraryLock lock;
  for (size_t end = 0; end < name.size();) {
    end = std::min(name.find('/', end + 1), name.size());
    const std::string group = name.substr(0, end);
    if (H5Lexists(file_, group.c_str(), H5P_DEFAULT) > 0) {
      continue;
    }
    const auto require_done = [&](bool done) {  // the next call forgets why
      if (!done) {
        fail_writing(str("group ", group, ": ", library_message()), 0);
      }
    };
    require_done(use_form(file_, H5F_LIBVER_EARLIEST));
    const Id id(H5Gcreate2(file_, group.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
    require_done(id.ok());
    require_done(use_form(file_, H5F_LIBVER_V18));
  }
}

void H5Writer::create_dataset(const std::string& name, H5Type type,
                              const std::vector<int64_t>& shape) {
  const LibraryLock lock;
  create_group(name.substr(0, name.rfind('/')));
  Written entry{{name, type, shape, 1, 0}, 0};
  for (const int64_t dim : shape) {
    require(dim >= 0, "hdf5: negative dimension");
    entry.dataset.count *= dim;
  }
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  const Id space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose);
  // Early allocation fixes the offset now, so that the bytes can be written without the library.
  const Id properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_layout(properties, H5D_CONTIGUOUS);
  H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(properties, false);
  H5Pset_dset_no_attrs_hint(properties, true);  // no room for attributes that may not come
  const Id id(
      H5Dcreate2(file_, name.c_str(), file_type(type), space, H5P_DEFAULT, properties, H5P_DEFAULT),
      H5Dclose);
  if (!id.ok()) {
    fail_writing(str("dataset ", name, ": ", library_message()), 0);
  }
  if (entry.dataset.count > 0) {
    entry.dataset.offset = static_cast<int64_t>(H5Dget_offset(id));
  }
  datasets_.emplace(name, std::move(entry));
}

void H5Writer::write_bytes(const std::string& name, H5Type type, int64_t start, int64_t count,
                           const void* values) {
  const auto found = datasets_.find(name);
  require(found != datasets_.end(), "hdf5: ", name, " was not created");
  const H5Dataset& dataset = found->second.dataset;
  require(type == dataset.type && start >= 0 && count >= 0 && start <= dataset.count - count,
          "hdf5: ", name, ": elements ", start, " to ", start + count, " of ", dataset.count,
          ", type ", name_of(type), " into ", name_of(dataset.type));
  const int64_t at = dataset.offset + start * size_of(type);
  if (const int problem = write_at(descriptor_, at, values, count * size_of(type)); problem != 0) {
    fail_writing(str(name, ": ", std::strerror(problem)), problem);
  }
  found->second.elements += count;
}

void H5Writer::set_attribute(const std::string& object, const std::string& name,
                             const std::string& value) {
  const LibraryLock lock;
  const Id type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, std::max<size_t>(1, value.size()));
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  const Id space(H5Screate(H5S_SCALAR), H5Sclose);
  const Id id(H5Acreate_by_name(file_, object.c_str(), name.c_str(), type, space, H5P_DEFAULT,
                                H5P_DEFAULT, H5P_DEFAULT),
              H5Aclose);
  if (!id.ok() || H5Awrite(id, type, value.c_str()) < 0) {
    fail_writing(str("attribute ", name, " of ", object, ": ", library_message()), 0);
  }
}

void H5Writer::write_list(const std::string& object, const std::string& name, H5Type type,
                          size_t count, const void* values) {
  const LibraryLock lock;
  const hsize_t dim = count;
  const Id space(H5Screate_simple(1, &dim, nullptr), H5Sclose);
  const Id id(H5Acreate_by_name(file_, object.c_str(), name.c_str(), file_type(type), space,
                                H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
              H5Aclose);
  if (!id.ok() || (count > 0 && H5Awrite(id, file_type(type), values) < 0)) {
    fail_writing(str("attribute ", name, " of ", object, ": ", library_message()), 0);
  }
}

void H5Writer::commit() {
  for (const auto& [name, written] : datasets_) {
    require(written.elements == written.dataset.count, "hdf5: ", name, ": ", written.elements,
            " of ", written.dataset.count, " elements were written");
  }
  {
    const LibraryLock lock;
    if (H5Fflush(file_, H5F_SCOPE_GLOBAL) < 0 || H5Fclose(std::exchange(file_, -1)) < 0) {
      fail_writing(library_message(), 0);
    }
  }
  const FileReader written(partial_path_);
  const std::string seal = hdf5::seal_of(written, hdf5::read_metadata(written));
  if (const int problem = write_at(descriptor_, written.bytes(), seal.data(), std::ssize(seal));
      problem != 0) {
    fail_writing(std::strerror(problem), problem);
  }
  if (::fsync(descriptor_) != 0 || ::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    const int error_number = errno;
    fail_writing(std::strerror(error_number), error_number);
  }
  ::close(std::exchange(descriptor_, -1));
  sync_path(parent_of(path_));  // the rename is durable only then
}

}  // namespace tandem
