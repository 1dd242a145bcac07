// Checkpoints of a model that is cut over ranks: saved with one shape of the mesh, loaded with
// another. Runs on every rank of a job of 4 ranks.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "optim/adamw.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/weights/piece_source.h"
#include "src/weights/snapshot.h"
#include "tests/step/cut_mlp.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

struct CutJob {
  CutJob(const MeshShape& shape, int zero)
      : mesh(test_world().control(), test_world().collectives(), test_memory(), {0, 0, 0, 0},
             Sharing::kWorld, shape),
        model(mesh.index(Axis::kTensor), mesh.size(Axis::kTensor)),
        training(model, {mesh.stage(), mesh.data(), mesh.tensor()}, test_stream(), memory, memory,
                 {.batch = {CutMlp::kBatch, 2, mesh.size(Axis::kData)},
                  .store = {.zero = zero},
                  .optimizer = [](std::span<const Shard> shards, const OptimizerMemory& state) {
                    return make_optimizer(AdamWOptions{.weight_decay = 0.1}, shards, state);
                  }}) {
    training.store().values.initialize(1);
  }

  void train() {
    training.run({.step = 0, .lr = 0.01, .targets = CutMlp::kBatch, .batch = [&](int64_t number) {
                    return rows_of(mesh, 2, number, DType::kF32);
                  }});
    mesh.stage().wait(mesh.stage().stream().record());
  }
  std::span<const Slab> slabs() {
    return snapshot.take(training.store(), training.optimizer(), model, mesh.stage().rank());
  }
  // Logical tensors: weights and the optimizer's state, put together from all ranks of the stage.
  std::map<std::string, std::vector<double>> tensors() {
    std::map<std::string, std::vector<double>> found;
    for (const Parameter* parameter : parameters_of(model)) {
      for (const Piece& piece : pieces_of(*parameter)) {
        for (const char* prefix : {"param/", "optim/m/", "optim/v/"}) {
          found[prefix + piece.name].resize(static_cast<size_t>(piece.slice.whole().elements()));
        }
      }
    }
    for (const Slab& slab : slabs()) {
      const std::vector<double> values = values_of(slab.data);
      for (int64_t i = 0; i < slab.data.elements(); ++i) {
        found.at(slab.name)[static_cast<size_t>(slab.slice.run_at(slab.offset + i).begin)] +=
            values[static_cast<size_t>(i)];
      }
    }
    for (auto& [name, values] : found) {
      values = mesh.stage().control().sum(values);
    }
    return found;
  }
  void save(const std::string& partial) {
    const FileEntry file =
        write_rank_file(partial + "/" + rank_file_name(mesh.job().rank()), slabs());
    std::vector<FileEntry> files;
    for (const std::string& text : mesh.job().all_gather(file.text())) {
      files.push_back(FileEntry::from_text(text));
    }
    Manifest manifest;
    manifest.step = 1;
    manifest.world_size = mesh.job().size();
    if (mesh.job().rank() == 0) {
      commit_checkpoint(partial, manifest, files);
    }
    mesh.job().barrier();
  }
  void resume(const std::string& checkpoint) {
    const PieceSource source = open_checkpoint(mesh.job(), checkpoint, model);
    for (const std::vector<Slab>& here :
         {weights_here(training.store().values, model),
          state_here(training.store().shards, training.optimizer())}) {
      require_tensors(source, here);
      load(test_stream(), source, here);
    }
    training.store().values.publish();
  }

  Memory memory{Device::kCpu};
  Mesh mesh;
  CutMlp model;
  TrainingStep training;
  Snapshot snapshot{test_stream(), true};
};

TEST(Axes, CheckpointsLoadOnAnyShapeOfTheMesh) {
  Control& job = test_world().control();
  if (job.size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  const std::vector<MeshShape> shapes = {{.data = 2, .tensor = 2},
                                         {.islands = 4, .data = 1},
                                         {.islands = 2, .tensor = 2},
                                         {.data = 4}};
  for (const int zero : {0, 2, 3}) {
    for (const MeshShape& from : {shapes[0], shapes[3]}) {
      SCOPED_TRACE(str("stage ", zero, ", from ", from.data, " x ", from.tensor));
      std::string folder = ::testing::TempDir() + "tandem-axes-XXXXXX";
      require(job.rank() > 0 || mkdtemp(folder.data()) != nullptr, "no temporary folder");
      folder = job.broadcast(folder, 0);
      CutJob saved(from, zero);
      saved.train();
      saved.save(job.broadcast(job.rank() == 0 ? begin_checkpoint(folder, 1) : "", 0));
      const auto tensors = saved.tensors();
      for (const MeshShape& to : shapes) {
        SCOPED_TRACE(str("to ", to.islands, " islands of ", to.data, " x ", to.tensor));
        CutJob resumed(to, 3 - zero);
        EXPECT_NE(resumed.tensors(), tensors);
        resumed.resume(folder + "/" + step_name(1));
        EXPECT_EQ(resumed.tensors(), tensors);
      }
      job.barrier();
      if (job.rank() == 0) {
        std::filesystem::remove_all(folder);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::testing
