// The reader of HDF5 files: src/io/hdf5/reader.cpp src/io/hdf5/metadata.cpp
#include <algorithm>

#include "src/io/file.h"
#include "src/io/hdf5/hdf5.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/hdf5_file.h"
#include "tests/support/foreign_dataset.h"

using namespace tandem;

namespace {

std::string good_file() {
  const std::string path = fuzz::folder().path() + "/good.h5";
  H5Writer writer(path);
  for (const char* group : {"/train", "/tokenizer", "/param", "/optim"}) {
    writer.create_group(group);
  }
  writer.write_all<uint16_t>("/train/tokens", std::vector<uint16_t>{1, 2, 3});
  writer.set_attribute("/", "kind", "text");
  writer.set_attribute("/train", "count", std::vector<int64_t>{3});
  writer.set_attribute("/train", "mean", std::vector<double>{0.5});
  writer.commit();
  return read_file(path);
}

template <class T>
void read_as(const H5Reader& reader, const H5Dataset& dataset) {
  fuzz::accepts(ExitCode::kData, [&] {
    const auto count = static_cast<int64_t>(reader.read_all<T>(dataset.name).size());
    fuzz::check(dataset.type == h5_type_of<T>, "a dataset is read by its own type only");
    fuzz::check(count == dataset.count, "a dataset has the elements it says");
  });
}

void read_dataset(const H5Reader& reader, const char* name) {
  H5Dataset dataset;
  if (fuzz::accepts(ExitCode::kData, [&] { dataset = reader.dataset(name); })) {
    read_as<uint8_t>(reader, dataset);
    read_as<uint16_t>(reader, dataset);
    read_as<uint32_t>(reader, dataset);
    read_as<int32_t>(reader, dataset);
    read_as<int64_t>(reader, dataset);
    read_as<float>(reader, dataset);
    read_as<double>(reader, dataset);
  }
}

void read_attribute(const H5Reader& reader, const char* object, const char* name) {
  fuzz::accepts(ExitCode::kData, [&] { reader.string_attribute(object, name); });
  fuzz::accepts(ExitCode::kData, [&] { reader.int_attribute(object, name); });
  fuzz::accepts(ExitCode::kData, [&] { reader.double_attribute(object, name); });
}

// Objects that are not there are asked for, too, but not for each of their attributes: errors take
// most of the time.
void read_object(const H5Reader& reader, const char* name) {
  bool exists = false;
  fuzz::accepts(ExitCode::kData, [&] { exists = reader.exists(name); });
  if (!exists) {
    fuzz::accepts(ExitCode::kData, [&] {
      reader.dataset(name);
      fuzz::check(false, "what is not there is an error");
    });
    return read_attribute(reader, name, fuzz::kAttributes[0]);
  }
  fuzz::accepts(ExitCode::kData, [&] {
    const auto names = reader.children(name);
    fuzz::check(std::is_sorted(names.begin(), names.end()), "names are sorted");
  });
  read_dataset(reader, name);
  for (const char* attribute : fuzz::kAttributes) {
    if (reader.has_attribute(name, attribute)) {
      read_attribute(reader, name, attribute);
    }
  }
}

// A file of the HDF5 library, with texts in a global heap.
std::string foreign_file(testing::Hdf5Form form) {
  const std::string path = fuzz::folder().path() + "/good.h5";
  testing::write_foreign_text(path, form);
  return read_file(path);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string good[] = {good_file(), foreign_file(testing::Hdf5Form::kEarliest),
                                     foreign_file(testing::Hdf5Form::kLatest)};
  const size_t is_damage = size > 0 && data[0] == fuzz::kDamage ? 1 : 0;
  fuzz::Bytes bytes(data + is_damage, size - is_damage);
  const std::string& before = good[is_damage != 0 ? bytes.below(std::size(good)) : 0];
  const std::string path = fuzz::folder().write("input.h5", before);
  is_damage != 0 ? fuzz::damage_file(path, &bytes) : fuzz::change_file(path, &bytes);
  fuzz::accepts(ExitCode::kData, [&] {
    const H5Reader reader(path);
    for (const char* object : fuzz::kObjects) {
      read_object(reader, object);
    }
    read_object(reader, "/");
  });
  return 0;
}
