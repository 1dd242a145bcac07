// The metadata of an HDF5 file: its groups, datasets and attributes. Private to
// src/io/hdf5/reader.cpp and src/io/hdf5/writer.cpp.
//
// They are read here and not by the HDF5 library, because the library trusts what a file says of
// itself: one changed byte can crash it, or keep it busy for ever. Here each address must lie in
// the file and each size must fit. In all, at most four times the file's bytes and at most 64 MiB
// are read, so time and memory have a limit.
//
// Follows the "HDF5 File Format Specification Version 3.0" (The HDF Group), for what the library
// writes unless asked otherwise: superblocks 0, 2 and 3, object headers 1 and 2, groups as symbol
// tables or link messages, contiguous datasets, numbers and texts. Other objects have a `problem`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/io/hdf5/bytes.h"
#include "src/io/hdf5/hdf5.h"

namespace tandem::hdf5 {

// The value of an attribute. It is std::monostate if its type or shape is one that is not read
// here.
using Attribute =
    std::variant<std::monostate, std::string, std::vector<int64_t>, std::vector<double>>;

struct Object {
  // A dataset. Its elements are contiguous; `count` is the product of the shape.
  bool is_dataset = false;
  std::optional<H5Type> type{};  // nothing: one that is not read here
  std::vector<int64_t> shape{};
  int64_t count = 0;
  int64_t byte = kNowhere;  // place of the first element

  std::map<std::string, int64_t> links{};  // of a group: the places of its members' headers
  std::map<std::string, Attribute> attributes{};
  std::string problem{};  // why this object cannot be read; empty if it can
};

struct Metadata {
  int64_t root = 0;                     // the place of its header
  int64_t end = 0;                      // bytes of the file, as HDF5 knows it
  std::map<int64_t, Object> objects{};  // by the place of their header
};

// Throws Error(kData) naming the file when it is no HDF5 file, cut short, or damaged.
Metadata read_metadata(const FileReader& file);

// What H5Writer adds after the end: a mark, and a hash of all bytes before it that are not elements
// of datasets.
inline constexpr std::string_view kSealMark = "tandem seal ";
inline constexpr int64_t kSealBytes = kSealMark.size() + 32;
std::string seal_of(const FileReader& file, const Metadata& metadata);

}  // namespace tandem::hdf5
