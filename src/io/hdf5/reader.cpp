#include <algorithm>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/io/hdf5/hdf5.h"
#include "src/io/hdf5/metadata.h"

namespace tandem {

using hdf5::kNowhere;
using hdf5::Object;

int64_t size_of(H5Type type) {
  constexpr int64_t kBytes[] = {1, 2, 4, 8, 4, 8, 4, 8};  // in the order of H5Type
  return kBytes[static_cast<size_t>(type)];
}

std::string_view name_of(H5Type type) {
  constexpr std::string_view kNames[] = {"u8", "u16", "u32", "u64", "i32", "i64", "f32", "f64"};
  return kNames[static_cast<size_t>(type)];
}

H5Reader::H5Reader(const std::string& path)
    : bytes_(path), metadata_(std::make_unique<hdf5::Metadata>(hdf5::read_metadata(bytes_))) {
  std::string seal(static_cast<size_t>(std::min(file_bytes() - metadata_->end, hdf5::kSealBytes)),
                   '\0');
  bytes_.read(metadata_->end, std::ssize(seal), seal.data());
  const bool is_sealed =
      !seal.empty() && hdf5::kSealMark.starts_with(seal.substr(0, hdf5::kSealMark.size()));
  if (is_sealed && seal != hdf5::seal_of(bytes_, *metadata_)) {
    fail_data(path,
              ": damaged or cut short: what it says of its datasets is not what was written; copy "
              "or create it again");
  }
}

H5Reader::~H5Reader() = default;

// The group or dataset with this absolute name; null if there is none.
const Object* H5Reader::find(const std::string& name) const {
  int64_t place = metadata_->root;
  for (size_t begin = 1; begin < name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const Object& group = metadata_->objects.at(place);
    const auto link = group.links.find(name.substr(begin, end - begin));
    if (link == group.links.end()) {
      require_readable(group, name.substr(0, begin));
      return nullptr;
    }
    place = link->second;
    if (place == kNowhere) {  // a soft or external link could stand for other data, or another file
      fail_data(path(), ": ", name.substr(0, end),
                " is a link; only what stands in the file itself is read: copy it there");
    }
    begin = end + 1;
  }
  return &metadata_->objects.at(place);
}

void H5Reader::require_readable(const Object& object, const std::string& name) const {
  if (!object.problem.empty()) {
    fail_data(path(), ": ", name, " ", object.problem);
  }
}

bool H5Reader::exists(const std::string& name) const { return find(name) != nullptr; }

std::vector<std::string> H5Reader::children(const std::string& group) const {
  const Object* found = find(group);
  if (found == nullptr || found->is_dataset) {
    fail_data(path(), ": there is no group ", group);
  }
  require_readable(*found, group);
  return mapped(std::views::keys(found->links));
}

H5Dataset H5Reader::dataset(const std::string& name) const {
  const Object* object = find(name);
  if (object == nullptr || !object->is_dataset) {
    fail_data(path(), ": there is no dataset ", name);
  }
  if (!object->type) {
    fail_data(
        path(), ": ", name,
        " has an element type that is not read here (u8, u16, u32, u64, i32, i64, f32 and f64, "
        "little-endian, are)");
  }
  require_readable(*object, name);
  H5Dataset found{
      .name = name, .type = *object->type, .shape = object->shape, .count = object->count};
  if (found.count == 0) {
    return found;
  }
  if (object->byte == kNowhere) {
    fail_data(path(), ": ", name, " was created but never written");
  }
  found.offset = object->byte;
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
  require(start >= 0 && count >= 0 && start <= dataset.count - count, path(), ": ", dataset.name,
          ": elements ", start, " to ", start + count, " of ", dataset.count);
  bytes_.read(dataset.offset + start * size_of(type), count * size_of(type), out);
}

bool H5Reader::has_attribute(const std::string& object, const std::string& name) const {
  const Object* found = find(object);
  if (found == nullptr || found->attributes.contains(name)) {
    return found != nullptr;
  }
  require_readable(*found, object);
  return false;
}

template <class T>
const T& H5Reader::attribute(const std::string& object, const std::string& name,
                             const char* kind) const {
  if (has_attribute(object, name)) {
    if (const T* value = std::get_if<T>(&find(object)->attributes.at(name))) {
      return *value;
    }
  }
  fail_data(path(), ": ", object, " has no ", kind, " attribute ", name);
}

std::string H5Reader::string_attribute(const std::string& object, const std::string& name) const {
  return attribute<std::string>(object, name, "text");
}

std::vector<int64_t> H5Reader::int_attribute(const std::string& object,
                                             const std::string& name) const {
  return attribute<std::vector<int64_t>>(object, name, "integer");
}

std::vector<double> H5Reader::double_attribute(const std::string& object,
                                               const std::string& name) const {
  return attribute<std::vector<double>>(object, name, "floating-point");
}

}  // namespace tandem
