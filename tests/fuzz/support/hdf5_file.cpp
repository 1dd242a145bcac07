#include "tests/fuzz/support/hdf5_file.h"

#include <hdf5.h>

#include <algorithm>
#include <vector>

#include "src/io/file.h"

namespace tandem::fuzz {

const char* const kObjects[27] = {"/train",
                                  "/train/tokens",
                                  "/train/images",
                                  "/train/labels",
                                  "/val",
                                  "/val/tokens",
                                  "/val/images",
                                  "/val/labels",
                                  "/tokenizer",
                                  "/tokenizer/code_points",
                                  "/tokenizer/piece_bytes",
                                  "/tokenizer/piece_ends",
                                  "/tokenizer/merges",
                                  "/param",
                                  "/param/w",
                                  "/param/w@4",
                                  "/optim",
                                  "/optim/m",
                                  "/optim/m/w",
                                  "/stat",
                                  "/stat/mean",
                                  "/",
                                  "/class_names",
                                  "/train/starts",
                                  "/val/starts",
                                  "/train/loss",
                                  "/val/loss"};

const char* const kAttributes[14] = {
    "kind",  "content_hash", "vocab_size", "class_names", "mean",  "std",      "end_of_text",
    "shape", "start",        "extent",     "offset",      "count", "xxh3_128", "format"};

namespace {

constexpr hsize_t kLargest = 4096;  // elements that are written

// What our files hold, in half of all cases, or something else.
hid_t type_of(Bytes* bytes) {
  const hid_t types[] = {H5T_STD_U8LE,   H5T_STD_U16LE,  H5T_STD_U32LE,  H5T_STD_I32LE,
                         H5T_STD_I64LE,  H5T_IEEE_F32LE, H5T_IEEE_F64LE, H5T_STD_I32BE,
                         H5T_STD_U64LE,  H5T_IEEE_F32BE, H5T_STD_B32LE,  H5T_STD_I8LE,
                         H5T_STD_REF_OBJ};
  const size_t kind = bytes->below(std::size(types) + 5);
  if (kind < std::size(types)) {
    return H5Tcopy(types[kind]);
  }
  const hsize_t two = 2;
  hid_t type = H5I_INVALID_HID;
  switch (kind - std::size(types)) {
    case 0:
      type = H5Tcopy(H5T_C_S1);
      H5Tset_size(type, H5T_VARIABLE);
      return type;
    case 1:
      type = H5Tcopy(H5T_C_S1);
      H5Tset_size(type, bytes->byte() + 1U);
      H5Tset_strpad(type, static_cast<H5T_str_t>(bytes->below(3)));
      H5Tset_cset(type, static_cast<H5T_cset_t>(bytes->below(2)));
      return type;
    case 2:
      return H5Tarray_create2(H5T_STD_I32LE, 1, &two);
    case 3:
      return H5Tvlen_create(H5T_STD_U8LE);
    default:
      type = H5Tcreate(H5T_COMPOUND, 8);
      H5Tinsert(type, "a", 0, H5T_STD_I32LE);
      H5Tinsert(type, "b", 4, H5T_IEEE_F32LE);
      return type;
  }
}

// A dataspace, and its number of elements.
hid_t space_of(Bytes* bytes, hsize_t* count) {
  const size_t rank = bytes->below(8);
  if (rank >= 6) {
    *count = rank == 6 ? 1 : 0;
    return H5Screate(rank == 6 ? H5S_SCALAR : H5S_NULL);
  }
  std::vector<hsize_t> sizes(std::max<size_t>(rank, 1));
  *count = 1;
  for (hsize_t& size : sizes) {
    size = static_cast<hsize_t>(bytes->number());
    if (__builtin_mul_overflow(*count, size, count)) {
      *count = HSIZE_UNDEF;
    }
  }
  return H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr);
}

// Values of a type; texts of variable length all have the same bytes.
struct Values {
  std::string text;
  std::string bytes;

  Values(hid_t type, hsize_t count, Bytes* input) {
    if (H5Tis_variable_str(type) > 0 || H5Tget_class(type) == H5T_VLEN) {
      text = input->text(input->byte());
      const hvl_t list{text.size(), text.data()};
      const char* begin = text.c_str();
      const bool is_text = H5Tget_class(type) == H5T_STRING;
      const std::string one(
          is_text ? reinterpret_cast<const char*>(&begin) : reinterpret_cast<const char*>(&list),
          is_text ? sizeof begin : sizeof list);
      for (hsize_t i = 0; i < count; ++i) {
        bytes += one;
      }
    } else {
      // References are null: the library trusts others.
      const bool null = H5Tget_class(type) == H5T_REFERENCE;
      bytes = null ? std::string(count * H5Tget_size(type), '\0')
                   : input->text(count * H5Tget_size(type));
    }
  }
};

void make_dataset(hid_t file, const char* name, Bytes* bytes) {
  const hid_t type = type_of(bytes);
  hsize_t count = 0;
  const hid_t space = space_of(bytes, &count);
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  const size_t layout = bytes->below(8);
  if (layout == 0) {
    H5Pset_layout(properties, H5D_COMPACT);
  } else if (layout == 1) {
    const std::vector<hsize_t> chunk(std::max(1, H5Sget_simple_extent_ndims(space)), 2);
    H5Pset_chunk(properties, static_cast<int>(chunk.size()), chunk.data());
  } else if (layout == 2) {
    H5Pset_external(properties, "other.raw", 0, H5F_UNLIMITED);
  }
  const hid_t made = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  const bool is_written = layout >= 3 && bytes->byte() < 200;
  if (made >= 0 && is_written && count <= kLargest) {
    H5Dwrite(made, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, Values(type, count, bytes).bytes.data());
  }
  H5Dclose(made);
  H5Pclose(properties);
  H5Sclose(space);
  H5Tclose(type);
}

void make_attribute(hid_t file, const char* object, const char* name, Bytes* bytes) {
  const hid_t type = type_of(bytes);
  hsize_t count = 0;
  const hid_t space = space_of(bytes, &count);
  H5Adelete_by_name(file, object, name, H5P_DEFAULT);
  if (count <= kLargest) {
    const hid_t made =
        H5Acreate_by_name(file, object, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (made >= 0 && bytes->byte() < 250) {
      H5Awrite(made, type, Values(type, count, bytes).bytes.data());
    }
    H5Aclose(made);
  }
  H5Sclose(space);
  H5Tclose(type);
}

void make_link(hid_t file, const char* name, Bytes* bytes) {
  const char* target = kObjects[bytes->below(std::size(kObjects))];
  switch (bytes->below(3)) {
    case 0:
      H5Lcreate_hard(file, target, file, name, H5P_DEFAULT, H5P_DEFAULT);
      break;
    case 1:
      H5Lcreate_soft(target, file, name, H5P_DEFAULT, H5P_DEFAULT);
      break;
    default:
      H5Lcreate_external("other.h5", target, file, name, H5P_DEFAULT, H5P_DEFAULT);
  }
}

}  // namespace

void change_file(const std::string& path, Bytes* bytes) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  while (!bytes->empty()) {
    const size_t change = bytes->below(8);
    const char* object = kObjects[bytes->below(std::size(kObjects))];
    if (change < 4) {
      make_attribute(file, object, kAttributes[bytes->below(std::size(kAttributes))], bytes);
      continue;
    }
    H5Ldelete(file, object, H5P_DEFAULT);
    if (change < 6) {
      make_dataset(file, object, bytes);
    } else if (change == 6) {
      make_link(file, object, bytes);
    } else {
      H5Gclose(H5Gcreate2(file, object, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    }
  }
  H5Fclose(file);
}

void damage_file(const std::string& path, Bytes* bytes) {
  std::string file = read_file(path);
  while (!bytes->empty()) {
    const size_t place = bytes->byte() * 256U + bytes->byte();
    file[place % file.size()] = static_cast<char>(bytes->byte());
  }
  FileWriter(path, FileWriter::Start::kEmpty).write(file);
}

}  // namespace tandem::fuzz
