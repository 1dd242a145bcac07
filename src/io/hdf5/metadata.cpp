#include "src/io/hdf5/metadata.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "src/core/error.h"
#include "src/io/content_hash.h"
#include "src/io/hdf5/bytes.h"

namespace tandem::hdf5 {
namespace {

// Types of messages in object headers.
enum : int64_t {
  kDataspace = 0x01,
  kLinkInfo = 0x02,
  kDatatype = 0x03,
  kLink = 0x06,
  kExternalFiles = 0x07,
  kLayout = 0x08,
  kAttribute = 0x0C,
  kContinuation = 0x10,
  kSymbolTable = 0x11,
  kAttributeInfo = 0x15,
};

constexpr const char* kNotContiguous =
    "is chunked, compact, compressed or virtual; store it contiguous";
constexpr const char* kLiesElsewhere =
    "lies in another file; only what stands in the file itself is read: copy it there";
constexpr const char* kIsDense =
    "has so many members or attributes that they are in a dense form, which is not read here; "
    "write the file with libver='earliest'";

// How the format describes a type, after its version: class, order and sign, size, where the bits
// are. Numbers are little-endian.
std::string description_of(H5Type type) {
  using namespace std::string_literals;
  if (type == H5Type::kF32) {
    return "\1\x20\x1f\0\4\0\0\0\0\0\x20\0\x17\x08\0\x17\x7f\0\0\0"s;
  }
  if (type == H5Type::kF64) {
    return "\1\x20\x3f\0\x08\0\0\0\0\0\x40\0\x34\x0b\0\x34\xff\x03\0\0"s;
  }
  const char sign = type == H5Type::kI32 || type == H5Type::kI64 ? 8 : 0;
  const auto size = static_cast<char>(size_of(type));
  return {0, sign, 0, 0, size, 0, 0, 0, 0, 0, static_cast<char>(8 * size), 0};
}

struct StoredType {
  std::optional<H5Type> number{};
  bool is_text = false, is_variable_text = false;
  int64_t bytes = 0;
};

StoredType read_type(Bytes bytes) {
  std::string description(bytes.take(bytes.left()));
  bytes.require(description.size() >= 8);
  description[0] &= 15;  // the upper bits are the version
  StoredType type{.is_text = description[0] == 3,
                  .is_variable_text = description[0] == 9 && (description[1] & 15) == 1};
  std::memcpy(&type.bytes, description.data() + 4, 4);
  for (const H5Type candidate : {H5Type::kU8, H5Type::kU16, H5Type::kU32, H5Type::kU64,
                                 H5Type::kI32, H5Type::kI64, H5Type::kF32, H5Type::kF64}) {
    if (description.starts_with(description_of(candidate))) {
      type.number = candidate;
    }
  }
  return type;
}

// Returns the number of elements.
int64_t read_space(Bytes bytes, std::vector<int64_t>* shape) {
  const int64_t version = bytes.number(1), rank = bytes.number(1);
  bytes.require(version == 1 || version == 2);
  bytes.take(1);
  constexpr int64_t kNull = 2;
  const bool is_null = version == 2 && bytes.number(1) == kNull;
  bytes.take(version == 1 ? 5 : 0);
  int64_t count = is_null ? 0 : 1;
  shape->clear();
  for (int64_t axis = 0; axis < rank; ++axis) {
    shape->push_back(bytes.number(8));
    if (__builtin_mul_overflow(count, shape->back(), &count)) {
      count = kNowhere;
    }
  }
  return count;
}

Attribute read_numbers(H5Type type, int64_t count, Bytes& bytes) {
  std::vector<int64_t> integers;
  std::vector<double> reals;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes.take(size_of(type)).data(), static_cast<size_t>(size_of(type)));
    if (type == H5Type::kF32) {
      reals.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    } else if (type == H5Type::kF64) {
      reals.push_back(std::bit_cast<double>(bits));
    } else {
      integers.push_back(type == H5Type::kI32 ? static_cast<int32_t>(bits)
                                              : static_cast<int64_t>(bits));
    }
  }
  const bool is_real = type == H5Type::kF32 || type == H5Type::kF64;
  return is_real ? Attribute(reals) : Attribute(integers);
}

void read_layout(Bytes& bytes, Object* object) {
  object->is_dataset = true;
  constexpr int64_t kOldest = 3, kContiguous = 1;
  if (bytes.number(1) < kOldest || bytes.number(1) != kContiguous) {
    object->problem = kNotContiguous;
  } else {
    object->byte = bytes.number(8);
  }
}

void read_link(Bytes& bytes, Object* object) {
  const int64_t version = bytes.number(1), flags = bytes.number(1);
  bytes.require(version == 1);
  const bool is_hard = (flags & 8) == 0 || bytes.number(1) == 0;
  bytes.take((flags & 4) != 0 ? 8 : 0);   // the order of creation
  bytes.take((flags & 16) != 0 ? 1 : 0);  // the encoding of the name
  const std::string name(bytes.take(bytes.number(int64_t{1} << (flags & 3))));
  object->links.emplace(name, is_hard ? bytes.number(8) : kNowhere);
}

// Says so if links or attributes are in a heap of their own, whose place comes after `size` bytes.
void read_dense(Bytes& bytes, int64_t size, Object* object) {
  bytes.take(1);
  const int64_t flags = bytes.number(1);
  bytes.take((flags & 1) != 0 ? size : 0);
  if (bytes.number(8) != kNowhere) {
    object->problem = kIsDense;
  }
}

class MetadataReader {
 public:
  explicit MetadataReader(const FileReader& file)
      : file_(file), left_(std::min(4 * file.bytes(), int64_t{64} << 20)) {}

  Metadata read() {
    Metadata metadata;
    read_superblock(&metadata);
    std::vector<int64_t> waiting = {metadata.root};
    while (!waiting.empty()) {
      const int64_t place = waiting.back();
      waiting.pop_back();
      const auto [entry, is_new] = metadata.objects.try_emplace(place);
      if (is_new) {
        read_object(place, &entry->second);
        for (const auto& [name, member] : entry->second.links) {
          if (member != kNowhere) {
            waiting.push_back(member);
          }
        }
      }
    }
    return metadata;
  }

 private:
  Bytes at(int64_t place, int64_t size) {
    left_ -= std::min(size, file_.bytes() + 1);
    return {file_, place, left_ < 0 ? -1 : size};
  }

  void read_superblock(Metadata* metadata) {
    constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
    if (file_.bytes() < 8 || at(0, 8).take(8) != kSignature) {
      fail_data(file_.path(), file_.bytes() == 0 ? ": empty file" : ": not an HDF5 file");
    }
    Bytes bytes = at(8, std::min<int64_t>(88, file_.bytes() - 8));
    const int64_t version = bytes.number(1);
    const bool is_old = version == 0;
    bytes.take(is_old ? 4 : 0);
    const bool is_long = bytes.number(1) == 8 && bytes.number(1) == 8;  // addresses and sizes
    bytes.take(is_old ? 9 : 1);
    const int64_t user_block = bytes.number(8);
    if (version == 1 || version > 3 || !is_long || user_block != 0) {
      fail_data(file_.path(), ": superblock ", version, ", short addresses or a user block, which ",
                "are not read here; write the file with libver='earliest'");
    }
    bytes.take(8);
    metadata->end = bytes.number(8);
    if (metadata->end > file_.bytes()) {
      fail_data(file_.path(), ": cut short: its ", file_.bytes(),
                " bytes are fewer than its header says; copy or create it again");
    }
    bytes.take(is_old ? 16 : 0);
    metadata->root = bytes.number(8);
  }

  // Reads an object header of version 1 or 2: its messages, in one or several blocks.
  void read_object(int64_t place, Object* object) {
    struct Block {
      int64_t place, size;
    };
    std::vector<Block> blocks;
    Bytes head = at(place, 16);
    const std::string begin(head.take(4));
    const bool is_new = begin == "OHDR";
    int64_t flags = 0;
    if (is_new) {
      head.take(1);
      flags = head.number(1);
      const int64_t before_size =
          6 + ((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0);
      const int64_t width = int64_t{1} << (flags & 3);
      const int64_t size = at(place + before_size, width).number(width);
      blocks.push_back({place + before_size + width, size});
    } else {
      head.require(begin[0] == 1);
      head.take(4);
      blocks.push_back({place + 16, head.number(4)});
    }
    const int64_t type_size = is_new ? 1 : 2, unused = !is_new ? 3 : (flags & 4) != 0 ? 2 : 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      Bytes bytes = at(blocks[i].place, blocks[i].size);
      while (bytes.left() >= type_size + 3 + unused) {
        const int64_t type = bytes.number(type_size), size = bytes.number(2);
        constexpr int64_t kShared = 2;
        const bool is_shared = (bytes.number(1) & kShared) != 0;
        bytes.take(unused);
        Bytes message = bytes.cut(size);
        if (is_shared && type != kDatatype) {  // a shared type stays unknown
          object->problem = "shares messages with other objects; write it without";
        } else if (type == kContinuation) {
          const int64_t next = message.number(8), next_size = message.number(8);
          // A new block has a signature before its messages, and a checksum after them.
          blocks.push_back(is_new ? Block{next + 4, next_size - 8} : Block{next, next_size});
        } else if (!is_shared) {
          read_message(type, message, object);
        }
      }
    }
  }

  void read_message(int64_t type, Bytes& message, Object* object) {
    switch (type) {
      case kDataspace:
        object->count = read_space(message, &object->shape);
        return;
      case kDatatype:
        object->type = read_type(message).number;
        return;
      case kLayout:
        return read_layout(message, object);
      case kExternalFiles:
        object->problem = kLiesElsewhere;
        return;
      case kAttribute:
        return read_attribute(message, object);
      case kSymbolTable:
        return read_symbol_table(message, object);
      case kLink:
        return read_link(message, object);
      case kLinkInfo:
        return read_dense(message, 8, object);
      case kAttributeInfo:
        return read_dense(message, 2, object);
      default:
        return;  // times, comments, and what else does not say what is stored where
    }
  }

  void read_attribute(Bytes& bytes, Object* object) {
    const int64_t version = bytes.number(1), flags = bytes.number(1);
    const auto padded = [&](int64_t size) { return version == 1 ? (size + 7) / 8 * 8 : size; };
    const int64_t name_size = padded(bytes.number(2));
    const int64_t type_size = padded(bytes.number(2));
    const int64_t space_size = padded(bytes.number(2));
    bytes.require(version >= 1 && version <= 3);
    bytes.take(version == 3 ? 1 : 0);
    const std::string name(bytes.cut(name_size).text_at(0));
    const Bytes stored_type = bytes.cut(type_size), stored_space = bytes.cut(space_size);
    Attribute& value = object->attributes[name];
    if (version > 1 && flags != 0) {  // type or shape stand elsewhere
      return;
    }
    std::vector<int64_t> shape;
    const StoredType type = read_type(stored_type);
    const int64_t count = read_space(stored_space, &shape);
    if (type.number) {
      value = read_numbers(*type.number, count, bytes);
    } else if (type.is_text && count == 1) {
      const std::string_view text = bytes.take(type.bytes);
      value = std::string(text.substr(0, text.find('\0')));
    } else if (type.is_variable_text && count == 1) {
      value = read_variable_text(bytes);
    }
  }

  // Reads the text in a global heap that a reference names.
  std::string read_variable_text(Bytes& reference) {
    const int64_t size = reference.number(4), heap = reference.number(8);
    if (size == 0) {
      return "";
    }
    const auto [entry, is_new] = heaps_.try_emplace(heap);
    if (is_new) {
      read_heap(heap, &entry->second);
    }
    const std::string& text = entry->second[reference.number(4)];
    reference.require(size <= std::ssize(text));
    left_ -= size;  // texts may be the same
    return text.substr(0, static_cast<size_t>(size));
  }

  void read_heap(int64_t place, std::map<int64_t, std::string>* objects) {
    Bytes head = at(place, 16);
    head.expect("GCOL");
    head.take(4);
    Bytes bytes = at(place + 16, head.number(8) - 16);
    while (bytes.left() >= 16) {
      const int64_t number = bytes.number(2);
      bytes.take(6);
      const int64_t size = bytes.number(8);
      if (number == 0) {  // free space, after all objects
        return;
      }
      objects->emplace(number, bytes.take(size));
      bytes.take(std::min((size + 7) / 8 * 8 - size, bytes.left()));
    }
  }

  void read_symbol_table(Bytes& message, Object* object) {
    const int64_t tree = message.number(8);
    Bytes heap = at(message.number(8), 32);
    heap.expect("HEAP");
    heap.take(4);
    const int64_t size = heap.number(8);
    heap.take(8);
    constexpr int64_t kAboveAllLevels = 256;
    read_tree(tree, kAboveAllLevels, at(heap.number(8), size), object);
  }

  // Reads a node of a B-tree, which must be below the level `above`.
  void read_tree(int64_t place, int64_t above, const Bytes& names, Object* object) {
    Bytes head = at(place, 24);
    head.expect(std::string_view("TREE\0", 5));
    const int64_t level = head.number(1), count = head.number(2);
    head.require(level < above);
    Bytes children = at(place + 24, 16 * count);  // each after a key
    for (int64_t i = 0; i < count; ++i) {
      children.take(8);
      const int64_t child = children.number(8);
      if (level > 0) {
        read_tree(child, level, names, object);
      } else {
        read_symbols(child, names, object);
      }
    }
  }

  void read_symbols(int64_t place, const Bytes& names, Object* object) {
    Bytes head = at(place, 8);
    head.expect("SNOD");
    head.take(2);
    const int64_t count = head.number(2);
    Bytes entries = at(place + 8, 40 * count);
    for (int64_t i = 0; i < count; ++i) {
      const std::string name(names.text_at(entries.number(8)));
      left_ -= std::ssize(name);                       // names may share bytes
      object->links.emplace(name, entries.number(8));  // of a soft link: kNowhere
      entries.take(24);
    }
  }

  const FileReader& file_;
  int64_t left_;                                               // bytes that may still be read
  std::map<int64_t, std::map<int64_t, std::string>> heaps_{};  // by place; objects by number
};

}  // namespace

Metadata read_metadata(const FileReader& file) { return MetadataReader(file).read(); }

std::string seal_of(const FileReader& file, const Metadata& metadata) {
  std::vector<Range> elements;
  for (const auto& [place, object] : metadata.objects) {
    if (object.type && object.byte < metadata.end) {
      const int64_t size = size_of(*object.type), fit = (metadata.end - object.byte) / size;
      elements.push_back({object.byte, object.byte + std::min(object.count, fit) * size});
    }
  }
  return str(kSealMark, hash_outside(file, std::move(elements), metadata.end).hex());
}

}  // namespace tandem::hdf5
