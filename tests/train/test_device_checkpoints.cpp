// Checkpoints of one device are read on the other, where rows of classes have another padding, at
// other stages and rank counts, with the same bits. Over 1 to 4 ranks (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "src/io/checkpoint/checkpoint.h"
#include "src/weights/piece_source.h"
#include "src/weights/snapshot.h"
#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

// A folder of the ranks of a control; rank 0 removes it.
class Folder {
 public:
  explicit Folder(Control& control) : control_(control) {
    std::string path = ::testing::TempDir() + "tandem-devices-XXXXXX";
    require(control.rank() > 0 || mkdtemp(path.data()) != nullptr, "no temporary folder");
    path_ = control.broadcast(path, 0);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    control_.barrier();
    if (control_.rank() == 0) {
      std::filesystem::remove_all(path_);
    }
  }
  const std::string& path() const { return path_; }

 private:
  Control& control_;
  std::string path_;
};

Control& control_of(Job& job) { return job.training().store().layout.stage().control(); }

// Collective over the ranks of the job.
std::string save(Job& job, const std::string& folder) {
  Control& control = control_of(job);
  std::string partial;
  if (control.rank() == 0) {
    std::filesystem::create_directory(folder);
    partial = begin_checkpoint(folder, 1);
  }
  partial = control.broadcast(partial, 0);
  Snapshot snapshot(job.stream(), true);
  const std::span<const Slab> slabs = snapshot.take(
      job.training().store(), job.training().optimizer(), job.model(), control.rank());
  const FileEntry own = write_rank_file(partial + "/" + rank_file_name(control.rank()), slabs);
  std::vector<FileEntry> entries;
  for (const std::string& entry : control.all_gather(own.text())) {
    entries.push_back(FileEntry::from_text(entry));
  }
  std::string path;
  if (control.rank() == 0) {
    Manifest manifest;
    manifest.step = 1;
    manifest.world_size = control.size();
    path = commit_checkpoint(partial, manifest, entries);
  }
  return control.broadcast(path, 0);
}

void restore(Job& job, const std::string& checkpoint) {
  TrainingStep& training = job.training();
  const PieceSource source = open_checkpoint(control_of(job), checkpoint, job.model());
  for (const std::vector<Slab>& slabs :
       {weights_here(training.store().values, job.model()),
        state_here(training.store().shards, training.optimizer())}) {
    require_tensors(source, slabs);
    load(job.stream(), source, slabs);
  }
  training.store().values.publish();
}

// Shape and values of every tensor, by name.
std::map<std::string, std::pair<std::string, std::vector<double>>> tensors_in(
    const std::string& checkpoint) {
  const CheckpointReader reader(checkpoint);
  std::map<std::string, std::pair<std::string, std::vector<double>>> all;
  for (const CheckpointReader::Entry& entry : reader.tensors()) {
    EXPECT_EQ(entry.elements, entry.shape.elements()) << entry.name;
    const Tensor whole =
        Tensor::empty(test_memory(), {entry.elements}, DType::kF32, MemoryClass::kData);
    reader.read({entry.name, entry.shape, 0, whole});
    all[entry.name] = {entry.shape.text(), values_of(whole)};
  }
  return all;
}

double next_loss(Job& job) {
  job.step(2);
  return job.loss_of(job.record());
}

// Two steps of one job; what it saves is what the other job loads, and saves again. Then both go
// on.
void expect_to_move(const Plan& from, const Plan& to) {
  SCOPED_TRACE(str(from.model, ": ", name_of(from.device), ", stage ", from.zero, " to ",
                   name_of(to.device), ", stage ", to.zero));
  Job first(from), second(to);
  first.step(0);
  first.step(1);
  const Folder folder(test_world().control()), other(test_world().control());
  const auto place = [](const Plan& plan, const Folder& in) {  // a job of one rank has its own
    return plan.alone ? str(in.path(), "/", test_world().rank()) : in.path();
  };
  const std::string saved = save(first, place(from, folder));
  restore(second, saved);
  const std::string again = save(second, place(to, other));
  EXPECT_EQ(tensors_in(saved), tensors_in(again));
  const std::vector<double> padding = second.padding();
  EXPECT_EQ(std::ranges::count(padding, 0.0), std::ssize(padding));
  EXPECT_NEAR(next_loss(first), next_loss(second), 1e-4);  // as DeviceTraining.FollowsTheCurve
}

TEST(DeviceCheckpoints, MoveBetweenDevicesStagesAndRanks) {
  for_each_device([](Device device) {
    for (const char* model : {"gpt", "llama", "mlp"}) {
      const Plan cpu{.model = model, .alone = true};
      const Plan there{.model = model, .device = device, .zero = 3};
      expect_to_move(cpu, there);
      expect_to_move(there, cpu);
    }
  });
}

TEST(DeviceCheckpoints, MoveBetweenPaddings) {
  for_each_device([](Device device) {
    for (const int64_t classes : {65, 1025}) {
      Plan padded{.device = device, .zero = 1, .classes = classes};
      Plan plain{.device = device, .zero = 2, .classes = classes, .padded = false};
      expect_to_move(padded, plain);
      expect_to_move(plain, padded);
    }
  });
}

}  // namespace
}  // namespace tandem::testing
