// Checkpoints: src/io/checkpoint/checkpoint_index.cpp src/io/checkpoint/checkpoint_reader.cpp
// src/io/checkpoint/checkpoint.cpp src/core/slice.cpp
#include <cstring>
#include <numeric>

#include "src/core/slice.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/io/checkpoint/checkpoint_reader.h"
#include "src/io/file.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/hdf5_file.h"

using namespace tandem;

namespace {

Tensor empty_tensor(int64_t elements) {
  static Memory memory(Device::kCpu);
  return Tensor::empty(memory, {elements}, DType::kF32, MemoryClass::kParameters);
}

Slab slab(const std::string& name, const Slice& slice, int64_t offset, int64_t elements) {
  const Slab made{name, slice, offset, empty_tensor(elements)};
  const std::span<float> values = made.data.as<float>();
  std::iota(values.begin(), values.end(), static_cast<float>(offset));
  return made;
}

// Every tensor of a checkpoint that is not too large, by name.
using Tensors = std::map<std::string, std::vector<float>>;

Tensors read_all(const std::string& directory) {
  const CheckpointReader reader(directory);
  Tensors tensors;
  for (const CheckpointReader::Entry& entry : reader.tensors()) {
    fuzz::accepts(ExitCode::kData, [&] {
      const int64_t wanted = entry.shape.elements();
      if (wanted <= 4096) {
        const Slab whole{entry.name, entry.shape, 0, empty_tensor(wanted)};
        reader.read(whole);
        const auto values = whole.data.as<float>();
        tensors.emplace(entry.name, std::vector<float>(values.begin(), values.end()));
      }
    });
  }
  return tensors;
}

struct Good {
  std::string directory, manifest, rank0, rank1;
  Tensors tensors;
};

// Two ranks: slices of a matrix, a vector in two pieces.
const Good& good() {
  static const Good instance = [] {
    const std::string partial = begin_checkpoint(fuzz::folder().path(), 1);
    const Slice top(Shape{4, 3}, Shape{0, 0}, Shape{2, 3});
    const Slice bottom(Shape{4, 3}, Shape{2, 0}, Shape{2, 3});
    const std::vector<Slab> first = {slab("param/w", top, 0, 4), slab("param/w", top, 4, 2),
                                     slab("optim/m/w", Shape{12}, 0, 5),
                                     slab("stat/mean", Shape(), 0, 1)};
    const std::vector<Slab> second = {slab("param/w", bottom, 0, 6),
                                      slab("optim/m/w", Shape{12}, 5, 7)};
    const FileEntry entry0 = write_rank_file(partial + "/rank-0000.h5", first);
    const FileEntry entry1 = write_rank_file(partial + "/rank-0001.h5", second);
    Manifest manifest;
    manifest.step = 1;
    manifest.world_size = 2;
    const std::string path = commit_checkpoint(partial, manifest, {entry0, entry1});
    return Good{path, read_file(path + "/manifest.json"), read_file(path + "/rank-0000.h5"),
                read_file(path + "/rank-0001.h5"), read_all(path)};
  }();
  return instance;
}

// Changes bytes of the file and of the manifest. Whatever is read then is what was written.
void damage_bytes(fuzz::Bytes* bytes) {
  std::string rank0 = good().rank0, manifest = good().manifest;
  while (!bytes->empty()) {
    std::string& file = bytes->byte() % 2 == 0 ? rank0 : manifest;
    const size_t place = bytes->byte() * 256U + bytes->byte();
    file[place % file.size()] ^= static_cast<char>(bytes->byte());
  }
  FileWriter(good().directory + "/rank-0000.h5", FileWriter::Start::kEmpty).write(rank0);
  FileWriter(good().directory + "/manifest.json", FileWriter::Start::kEmpty).write(manifest);
  fuzz::accepts(ExitCode::kData, [&] {
    for (const auto& [name, values] : read_all(good().directory)) {
      fuzz::check(values == good().tensors.at(name), "damage is found");
    }
  });
}

// Changes what the file holds, and writes a manifest that fits.
void change_structure(fuzz::Bytes* bytes) {
  std::vector<Range> pieces;
  bool in_order = true;
  for (size_t count = bytes->below(4); count > 0; --count) {
    const int64_t begin = bytes->number(), end = bytes->number();
    in_order = in_order && begin >= (pieces.empty() ? 0 : pieces.back().end) && end >= begin;
    pieces.push_back({begin, end});
  }
  const std::string path = good().directory + "/rank-0000.h5";
  FileWriter(path, FileWriter::Start::kEmpty).write(good().rank0);
  fuzz::change_file(path, bytes);
  fuzz::accepts(ExitCode::kData, [&] {
    Manifest manifest = manifest_from_json(good().manifest, "manifest.json");
    manifest.files[0] = describe_file(path, in_order ? pieces : std::vector<Range>());
    manifest.files[0].pieces = pieces;
    FileWriter(good().directory + "/manifest.json", FileWriter::Start::kEmpty)
        .write(to_json(manifest));
    read_all(good().directory);
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  if (bytes.byte() % 4 == 0) {
    damage_bytes(&bytes);
  } else {
    change_structure(&bytes);
  }
  return 0;
}
