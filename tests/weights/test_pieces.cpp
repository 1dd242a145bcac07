#include "comm/transport/local_control.h"
#include "src/weights/make_model.h"
#include "src/weights/piece_source.h"
#include "tests/io/checkpoint_folder.h"
#include "tests/support/small_transformer.h"

namespace tandem::testing {
namespace {

using Pieces = Checkpoint;

// A checkpoint of format 2 has whole parameters. Pieces are rows of them, also a box of a piece.
TEST_F(Pieces, AreCutFromStacks) {
  Transformer model(small(true));
  std::vector<Slab> stacks;
  for (const Parameter* parameter : parameters_of(model)) {
    const int64_t elements = parameter->shape.elements();
    for (const std::string prefix : {"param/", "optim/m/"}) {
      stacks.push_back({prefix + parameter->name, parameter->shape, 0,
                        random_values(elements, std::size(stacks))});
    }
  }
  const std::string path = save(1, stacks);
  Manifest manifest = read_manifest(path);
  const CheckpointIndex index = index_files(path, manifest);
  manifest.format_version = 2;
  const PieceSource old(CheckpointReader(path, manifest, index), model);
  size_t i = 0;
  for (const Parameter* parameter : parameters_of(model)) {
    for (const std::string prefix : {"param/", "optim/m/"}) {
      const std::vector<double> all = values_of(stacks[i++].data);
      std::vector<double> together;
      for (const Piece& piece : pieces_of(*parameter)) {
        old.require_tensor(prefix + piece.name, piece.slice.whole());
        const std::vector<double> rows = read_all(old, {prefix + piece.name, piece.slice, 0, {}});
        together.insert(together.end(), rows.begin(), rows.end());
      }
      EXPECT_EQ(together, all) << parameter->name;
    }
  }
  // Rows 1 and 2 of the keys are rows of the stack, after the queries.
  const Piece keys = pieces_of(*parameters_of(model)[2])[1];
  const Shape whole = keys.slice.whole();
  const Slice box(whole, {1, 2}, {2, 3});
  const std::vector<double> all = read_all(old, {"param/" + keys.name, whole, 0, {}});
  std::vector<double> expected;
  for (int64_t j = 0; j < box.elements(); j += 3) {
    const auto first = all.begin() + box.run_at(j).begin;
    expected.insert(expected.end(), first, first + 3);
  }
  EXPECT_EQ(keys.name, "blocks.0.attn.k.weight");
  EXPECT_EQ(read_all(old, {"param/" + keys.name, box, 0, {}}), expected);
  // The newest format is not cut, so these files have no pieces for it.
  const PieceSource now(CheckpointReader(path), model);
  expect_mentions(data_error([&] { now.require_tensor("param/" + keys.name, whole); }),
                  {"has no tensor param/blocks.0.attn.k.weight"});
}

// State and statistics of what the model has not are no better than its parameters. The first is
// named.
TEST_F(Pieces, ATensorThatTheModelHasNot) {
  Transformer model(small(true));
  const Piece piece = pieces_of(*parameters_of(model)[0])[0];
  const Slab known{"param/" + piece.name, piece.slice, 0, random_values(piece.slice.elements(), 1)};
  for (const char* name : {"param/w", "optim/m/w", "stat/w", "stat/wte"}) {
    const std::vector<Slab> slabs = {known,
                                     {"stat/x", Shape{2}, 0, random_values(2, 2)},
                                     {name, Shape{2}, 0, random_values(2, 3)}};
    const std::string path = save(1, slabs);
    const PieceSource source(CheckpointReader(path), model);
    expect_mentions(data_error([&] { read_all(source, known); }),
                    {str("has a tensor ", name, ", which the model has not")});
    fs::remove_all(path);
  }
}

// Manifests with a hash that is right, as only a program can write them.
TEST_F(Pieces, BasesThatCannotBe) {
  Transformer model(small(true));
  LocalControl control;
  const std::string path = checkpoints_ + "/step-00000001";
  const auto opened = [&](const std::string& folder, const std::string& tensor) {
    fs::remove_all(path);
    Manifest manifest;
    manifest.bases = {{folder, "00", {tensor}}};
    save(1, {}, manifest);
    return data_error([&] {
      PieceSource source = open_checkpoint(control, path, model);
      open_bases(control, source, model, "");
    });
  };
  expect_mentions(opened(path, "param/wte"),
                  {path + " refers to weights in " + path, "has no tensor param/wte"});
  expect_mentions(opened(path, "param/other"), {"the model has no tensor param/other"});
  expect_mentions(opened(root_ + "/gone", "param/wte"), {root_ + "/gone: no checkpoint here"});
}

TEST(Freeze, StacksWholeOrNotAtAll) {
  const auto frozen = [](const std::string& patterns) {
    Transformer model(small(true));
    freeze(model, patterns);
    std::string names;
    for (const Parameter* parameter : parameters_of(model)) {
      names += parameter->frozen ? parameter->name + " " : "";
    }
    return names;
  };
  const std::string both = "blocks.0.attn.qkv.weight blocks.1.attn.qkv.weight ";
  EXPECT_EQ(frozen("*.attn.[qkv].*"), both);
  EXPECT_EQ(frozen("*.attn.qkv.*"), both);
  EXPECT_EQ(frozen("blocks.1.mlp.[gu]*"), "blocks.1.mlp.gate_up.weight ");
}

TEST(Freeze, OnePieceOfAStackIsAnError) {
  Transformer model(small(true));
  try {
    freeze(model, "wte,*.attn.k.weight");
    FAIL() << "a third of a parameter cannot be frozen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    expect_mentions(error.what(),
                    {"model.freeze: *.attn.k.weight fits blocks.0.attn.k.weight, but not "
                     "blocks.0.attn.q.weight, blocks.0.attn.v.weight",
                     "blocks.0.attn.qkv.weight"});
  }
}

}  // namespace
}  // namespace tandem::testing
