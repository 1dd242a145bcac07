// What the HDF5 reader and writer share: the lock around the library, its ids and its messages.
//
// Responsible for the only #include of <hdf5.h>. Private to src/io/hdf5/reader.cpp and
// src/io/hdf5_writer.cpp.
#pragma once

#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <string>

#include "src/io/hdf5/hdf5.h"

namespace tandem::hdf5 {

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
inline std::string library_message() {
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

inline hid_t file_type(H5Type type) {
  const hid_t types[] = {H5T_STD_U8LE,  H5T_STD_U16LE,  H5T_STD_U32LE, H5T_STD_I32LE,
                         H5T_STD_I64LE, H5T_IEEE_F32LE, H5T_IEEE_F64LE};
  return types[static_cast<size_t>(type)];
}

inline bool type_from_library(hid_t id, H5Type* type) {
  for (const H5Type candidate : {H5Type::kU8, H5Type::kU16, H5Type::kU32, H5Type::kI32,
                                 H5Type::kI64, H5Type::kF32, H5Type::kF64}) {
    if (H5Tequal(id, file_type(candidate)) > 0) {
      *type = candidate;
      return true;
    }
  }
  return false;
}

// Locks on files are off: files are never changed in place, and flock fails on some network file
// systems.
inline hid_t access_list() {
  const hid_t list = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_file_locking(list, false, true);
  return list;
}

}  // namespace tandem::hdf5
