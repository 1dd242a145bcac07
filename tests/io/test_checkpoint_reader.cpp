#include <fstream>
#include <random>

#include "src/io/content_hash.h"
#include "src/io/hdf5/hdf5.h"
#include "tests/io/checkpoint_folder.h"

namespace tandem::testing {
namespace {

TEST_F(Checkpoint, GivesBackEveryBit) {
  const std::vector<Slab> slabs = model_slabs();
  const CheckpointReader reader(save(100, slabs));
  for (const Slab& slab : slabs) {
    EXPECT_EQ(read_all(reader, slab), values_of(slab.data)) << slab.name;
  }
  const std::vector<CheckpointReader::Entry> tensors = reader.tensors();
  ASSERT_EQ(tensors.size(), slabs.size());
  EXPECT_EQ(tensors[0].name, "optim/m/head.weight");
  EXPECT_EQ(tensors[0].shape, (Shape{17, 59}));
  EXPECT_EQ(tensors[0].elements, 17 * 59);
}

// A reader takes 2^20 elements at a time.
TEST_F(Checkpoint, PiecesMayBeLongerThanWhatIsReadAtOnce) {
  constexpr int64_t kElements = (int64_t{1} << 20) + 3;
  const std::vector<Slab> slabs = {{"param/w", Shape{kElements}, 0, random_values(kElements, 1)}};
  EXPECT_EQ(read_all(CheckpointReader(save(1, slabs)), slabs[0]), values_of(slabs[0].data));
}

// What other HDF5 tools see in a checkpoint file.
TEST_F(Checkpoint, LayoutOfAFile) {
  const Slice columns({4, 5}, {0, 2}, {4, 3});
  const std::vector<Slab> slabs = {{"optim/m/a.b", Shape{4, 5}, 6, random_values(9, 1)},
                                   {"param/a.b", columns, 1, random_values(4, 1)},
                                   {"param/whole", Shape{4, 5}, 0, random_values(20, 2)}};
  const H5Reader file(save(1, slabs) + "/rank-0000.h5");
  const H5Dataset dataset = file.dataset("/optim/m/a.b");
  EXPECT_EQ(dataset.type, H5Type::kF32);
  EXPECT_EQ(dataset.shape, std::vector<int64_t>{9});
  EXPECT_EQ(file.int_attribute("/optim/m/a.b", "shape"), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(file.int_attribute("/optim/m/a.b", "offset"), std::vector<int64_t>{6});
  EXPECT_FALSE(file.has_attribute("/optim/m/a.b", "start"));
  EXPECT_FALSE(file.has_attribute("/optim/m/a.b", "extent"));
  EXPECT_EQ(file.string_attribute("/optim/m/a.b", "xxh3_128"),
            hash_of(slabs[0].data.raw(), 9 * 4).hex());
  EXPECT_EQ(file.int_attribute("/param/a.b", "start"), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(file.int_attribute("/param/a.b", "extent"), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(file.dataset("/param/whole").shape, (std::vector<int64_t>{4, 5}));
  EXPECT_FALSE(file.has_attribute("/param/whole", "shape"));
  EXPECT_FALSE(file.has_attribute("/param/whole", "offset"));
}

// A dataset of two dimensions with its hash and its name takes 280 bytes of HDF5, and its place in
// a table 50 where nodes are nearly full, 80 where they are half empty.
TEST_F(Checkpoint, TablesOfNamesAreFull) {
  std::vector<Slab> slabs;
  for (int i = 0; i < 200; ++i) {
    slabs.push_back(
        {str("param/blocks.", i, ".attn.q.weight.lora_A"), Shape{2, 2}, 0, random_values(4, 1)});
  }
  const auto bytes = std::filesystem::file_size(save(1, slabs) + "/rank-0000.h5");
  EXPECT_LE(bytes, 200 * (16 + 280 + 60));
}

// All tensors one after another, cut into `ranks` shards of equal size as ZeRO does. Boundaries
// fall inside tensors, and some ranks have several tensors.
std::vector<std::vector<Slab>> cut(const std::vector<Slab>& slabs, int64_t ranks) {
  int64_t total = 0;
  for (const Slab& slab : slabs) {
    total += slab.data.elements();
  }
  const int64_t part = (total + ranks - 1) / ranks;
  std::vector<std::vector<Slab>> parts(static_cast<size_t>(ranks));
  int64_t start = 0;
  for (const Slab& slab : slabs) {
    const int64_t end = start + slab.data.elements();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t first = std::max(start, rank * part);
      const int64_t last = std::min(end, (rank + 1) * part);
      if (first < last) {
        parts[rank].push_back(
            {slab.name, slab.slice, first - start, slab.data.slice(first - start, last - first)});
      }
    }
    start = end;
  }
  return parts;
}

TEST_F(Checkpoint, ReadsAtAnyNumberOfRanks) {
  std::vector<Slab> slabs = model_slabs();
  std::erase_if(slabs, [](const Slab& slab) { return slab.data.elements() == 0; });
  for (const int writers : {1, 2, 3, 4, 7}) {
    const std::string partial = begin_checkpoint(checkpoints_, writers);
    std::vector<FileEntry> entries;
    for (const std::vector<Slab>& part : cut(slabs, writers)) {
      const int rank = static_cast<int>(entries.size());
      // As one line of text, as ranks send them.
      entries.push_back(
          FileEntry::from_text(write_rank_file(partial + "/" + rank_file_name(rank), part).text()));
    }
    Manifest manifest;
    manifest.step = manifest.world_size = writers;
    const CheckpointReader reader(commit_checkpoint(partial, manifest, entries));
    for (const int readers : {1, 2, 3, 5}) {
      for (const std::vector<Slab>& part : cut(slabs, readers)) {
        for (const Slab& slab : part) {
          const Tensor out = Tensor::zeros(test_memory(), {slab.data.elements()}, DType::kF32,
                                           MemoryClass::kParameters);
          reader.read({slab.name, slab.slice, slab.offset, out});
          ASSERT_EQ(values_of(out), values_of(slab.data))
              << slab.name << ", " << writers << " to " << readers << " ranks";
        }
      }
    }
  }
}

TEST_F(Checkpoint, SeveralPiecesInOneFile) {
  const Tensor all = random_values(10, 1);
  const std::vector<Slab> slabs = {{"param/w", Shape{10}, 7, all.slice(7, 3)},
                                   {"param/w", Shape{10}, 0, all.slice(0, 4)},
                                   {"param/w", Shape{10}, 4, all.slice(4, 3)}};
  const CheckpointReader reader(save(1, slabs));
  EXPECT_EQ(reader.tensors().size(), 1U);
  EXPECT_EQ(read_all(reader, {"param/w", Shape{10}, 0, {}}), values_of(all));
}

// The elements `range` of a slice; `all` holds the values of the logical tensor.
Slab slab_of(const std::string& name, const Slice& slice, Range range, const Tensor& all) {
  const Tensor data =
      Tensor::empty(test_memory(), {range.count()}, DType::kF32, MemoryClass::kParameters);
  for (int64_t i = 0; i < range.count(); ++i) {
    data.data<float>()[i] = all.data<float>()[slice.run_at(range.begin + i).begin];
  }
  return {name, slice, range.begin, data};
}

// Two ranks share a matrix by columns, then three ranks by rows; each slice is sharded as by ZeRO.
TEST_F(Checkpoint, SlicesOfATensorAreReadBackAsOthers) {
  const Shape whole{6, 5};
  const Tensor all = random_values(30, 1);
  const Slice left(whole, {0, 0}, {6, 2}), right(whole, {0, 2}, {6, 3});
  const std::vector<Slab> columns = {
      slab_of("param/w", left, {0, 7}, all), slab_of("param/w", right, {4, 18}, all),
      slab_of("param/w", left, {7, 12}, all), slab_of("param/w", right, {0, 4}, all)};
  const CheckpointReader reader(save(1, columns));
  EXPECT_EQ(read_all(reader, {"param/w", whole, 0, {}}), values_of(all));
  EXPECT_EQ(reader.tensors()[0].elements, 30);
  for (const Slice& slice : {Slice(whole, {0, 0}, {2, 5}), Slice(whole, {2, 0}, {2, 5}),
                             Slice(whole, {4, 0}, {2, 5}), Slice(whole, {1, 1}, {4, 2}), left}) {
    for (const Range range : {Range{0, slice.elements()}, Range{1, 4}, Range{5, 8}}) {
      const Slab expected = slab_of("param/w", slice, range, all);
      const Tensor out =
          Tensor::zeros(test_memory(), {range.count()}, DType::kF32, MemoryClass::kParameters);
      reader.read({"param/w", slice, range.begin, out});
      EXPECT_EQ(values_of(out), values_of(expected.data));
    }
  }
}

TEST_F(Checkpoint, SlicesThatOverlapAreFound) {
  const Tensor all = random_values(12, 1);
  const std::vector<Slab> slabs = {slab_of("param/w", Slice({3, 4}, {0, 0}, {3, 2}), {0, 6}, all),
                                   slab_of("param/w", Slice({3, 4}, {2, 1}, {1, 3}), {0, 3}, all)};
  const std::string path = save(1, slabs);
  expect_mentions(data_error([&] { CheckpointReader reader(path); }), {path, "param/w", "overlap"});
}

TEST_F(Checkpoint, ATensorHasAtMost1024Slices) {
  const auto read = [&](int64_t slices) {
    std::vector<CheckpointPiece> pieces;
    for (int64_t column = 0; column < slices; ++column) {
      const Slice slice({2, slices}, {0, column}, {2, 1});
      pieces.push_back({.name = "param/w", .slice = slice, .count = 2});
    }
    Manifest manifest;
    manifest.files.resize(1);
    return CheckpointReader(root_, manifest, {pieces}).tensors()[0].elements;
  };
  EXPECT_EQ(read(1024), 2 * 1024);
  expect_mentions(data_error([&] { read(1025); }), {"param/w", "more than 1024"});
}

// When ranks read together, each file is opened once, and all ranks know all tensors.
TEST_F(Checkpoint, AnIndexIsReadInShares) {
  const std::string partial = begin_checkpoint(checkpoints_, 1);
  std::vector<FileEntry> entries;
  for (const std::vector<Slab>& part : cut(model_slabs(), 5)) {
    entries.push_back(
        write_rank_file(partial + "/" + rank_file_name(static_cast<int>(entries.size())), part));
  }
  Manifest manifest;
  manifest.step = 1;
  manifest.world_size = 5;
  const std::string path = commit_checkpoint(partial, manifest, entries);
  manifest = read_manifest(path);
  CheckpointIndex together;
  for (const size_t share : {0U, 1U, 2U}) {
    const CheckpointIndex index = index_files(path, manifest, share, 3);
    EXPECT_FALSE(index.pieces.empty());
    EXPECT_TRUE(std::ranges::all_of(
        index.pieces, [&](const CheckpointPiece& piece) { return piece.file % 3 == share; }));
    together.add(index.text());
  }
  std::ranges::stable_sort(together.pieces, {}, &CheckpointPiece::file);
  EXPECT_EQ(together, index_files(path, manifest));
}

TEST_F(Checkpoint, ReadNamesWhatDoesNotFit) {
  const CheckpointReader reader(save(1, model_slabs()));
  const Tensor out = Tensor::empty(test_memory(), {1}, DType::kF32, MemoryClass::kParameters);
  expect_mentions(data_error([&] {
                    reader.read({"param/head.weight", Shape{59, 17}, 0, out});
                  }),
                  {"param/head.weight", "[17, 59]", "[59, 17]"});
  expect_mentions(data_error([&] {
                    reader.read({"param/tail.weight", Shape{3}, 0, out});
                  }),
                  {"param/tail.weight", "[3]", "step-00000001"});
}

TEST_F(Checkpoint, MissingAndDoubleElementsAreFound) {
  const Tensor all = random_values(10, 1);
  const std::vector<Slab> gap = {{"param/w", Shape{10}, 0, all.slice(0, 4)},
                                 {"param/w", Shape{10}, 5, all.slice(5, 5)}};
  const CheckpointReader reader(save(1, gap));
  EXPECT_EQ(reader.tensors()[0].elements, 9);
  const Tensor out = Tensor::empty(test_memory(), {10}, DType::kF32, MemoryClass::kParameters);
  expect_mentions(data_error([&] {
                    reader.read({"param/w", Shape{10}, 0, out});
                  }),
                  {"1 elements of param/w [10]"});
  reader.read({"param/w", Shape{10}, 5, out.slice(0, 5)});
  EXPECT_EQ(values_of(out.slice(0, 5)), values_of(all.slice(5, 5)));

  const std::vector<Slab> twice = {{"param/w", Shape{10}, 0, all.slice(0, 6)},
                                   {"param/w", Shape{10}, 5, all.slice(5, 5)}};
  const std::string path = save(2, twice);
  expect_mentions(data_error([&] { CheckpointReader again(path); }), {"element 5 of param/w"});
}

// Reads all of a checkpoint, with every hash.
void verify(const std::string& path) {
  const CheckpointReader reader(path);
  for (const CheckpointReader::Entry& entry : reader.tensors()) {
    read_all(reader, {entry.name, entry.shape, 0, {}});
  }
}

void put_byte(const std::string& file, size_t at, char byte) {
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(at))
      .put(byte);
}

// Wherever a byte of a file is changed, an error is thrown before the values are used. It names the
// file, and where the byte is one of a tensor, the tensor.
class Damage {
 public:
  explicit Damage(const std::string& checkpoint)
      : checkpoint_(checkpoint),
        file_(checkpoint + "/" + rank_file_name(0)),
        content_(read_file(file_)) {
    pieces_ = pieces_in(file_);
  }
  size_t bytes() const { return content_.size(); }

  void expect_found(size_t at, char mask) const {
    put_byte(file_, at, static_cast<char>(content_[at] ^ mask));
    const std::string message = data_error([&] { verify(checkpoint_); });
    EXPECT_NE(message.find(file_), std::string::npos) << "byte " << at << ": " << message;
    for (const CheckpointPiece& piece : pieces_) {
      const int64_t in_piece = static_cast<int64_t>(at) - piece.byte;
      if (in_piece >= 0 && in_piece < 4 * piece.count) {
        EXPECT_NE(message.find(piece.name + " "), std::string::npos)
            << "byte " << at << ": " << message;
      }
    }
    put_byte(file_, at, content_[at]);
  }

  void expect_all_found() const {
    for (size_t at = 0; at < bytes(); ++at) {
      expect_found(at, 0x10);
    }
    verify(checkpoint_);
  }

 private:
  std::string checkpoint_, file_, content_;
  std::vector<CheckpointPiece> pieces_;
};

TEST_F(Checkpoint, NoFlippedByteGoesUnnoticed) { Damage(save(1, one_slab())).expect_all_found(); }

// Each bit of the manifest. A number may be written in another way, as 1E-05 for 1e-05: what is
// read is the same then.
TEST_F(Checkpoint, NoFlippedBitOfAManifestGoesUnnoticed) {
  Manifest manifest;
  manifest.config = "[run]\nname = a\n";
  manifest.schedule = {{"loss_scale", 1e-05}, {"good_steps", 12}};
  manifest.validation_loss = 1.5;
  const std::string path = save(1, one_slab(), manifest), file = path + "/manifest.json";
  const std::string content = read_file(file);
  const Manifest written = read_manifest(path);
  int same = 0;
  for (size_t bit = 0; bit < 8 * content.size(); ++bit) {
    put_byte(file, bit / 8, static_cast<char>(content[bit / 8] ^ (1 << bit % 8)));
    Manifest read;
    const std::string message = data_error([&] { read = read_manifest(path); });
    if (read == written) {
      ++same;
    } else {
      EXPECT_NE(message.find(file), std::string::npos) << "bit " << bit << ": " << message;
    }
    put_byte(file, bit / 8, content[bit / 8]);
  }
  EXPECT_EQ(same, 1);  // the e of 1e-05
}

// 10,000 random bytes, each changed to a random other value.
TEST_F(Checkpoint, NoChangedByteOfALargerOneGoesUnnoticed) {
  std::vector<Slab> slabs = model_slabs();
  std::erase_if(slabs, [](const Slab& slab) { return slab.data.elements() == 0; });
  const std::string path = save(1, slabs);
  const Damage file(path);
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    file.expect_found(random() % file.bytes(), static_cast<char>(1 + random() % 255));
  }
  verify(path);
}

// Damage of a piece is found when that piece is read, not before.
TEST_F(Checkpoint, PiecesAreVerifiedWhenTheyAreRead) {
  const std::vector<Slab> slabs = model_slabs();
  const std::string path = save(1, slabs);
  const std::string file = path + "/rank-0000.h5";
  const H5Dataset state = H5Reader(file).dataset("/optim/v/head.weight");
  std::string content = read_file(file);
  content[static_cast<size_t>(state.offset + 4 * state.count - 1)] ^= 1;
  FileWriter(file, FileWriter::Start::kEmpty).write(content);
  const CheckpointReader reader(path);
  EXPECT_EQ(read_all(reader, slabs[0]), values_of(slabs[0].data));
  const Tensor one = Tensor::empty(test_memory(), {1}, DType::kF32, MemoryClass::kParameters);
  expect_mentions(data_error([&] {
                    reader.read({"optim/v/head.weight", Shape{17, 59}, 0, one});
                  }),
                  {file, "damaged", "optim/v/head.weight"});
}

}  // namespace
}  // namespace tandem::testing
