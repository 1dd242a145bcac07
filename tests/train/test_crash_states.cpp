// What a power failure may leave of a run. Every change that three ranks make to the files of a run
// is recorded. Then this test builds each state that the disk may have had, opens it, and lets the
// run go on from there.
//
// After each recorded call, calls that were not synced may be on the disk or not: all of them, none
// of them, all but one, and all with one write cut at the end of its first page. This is the method
// of ALICE (Pillai et al., OSDI 2014).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>

#include "src/device/ranks/agreement.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/io/checkpoint/checkpoint_reader.h"
#include "src/io/content_hash.h"
#include "src/prepare/prepare.h"
#include "src/train/trainer.h"
#include "tests/support/file_calls.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"
#include "tests/support/set_config.h"

namespace tandem::testing {
namespace {

namespace fs = std::filesystem;
using Calls = std::vector<FileCall>;
using Kind = FileCall::Kind;
using Json = nlohmann::json;

constexpr int kRanks = 3;
constexpr int64_t kSteps = 4, kSaveEvery = 2;
constexpr size_t kPage = 4096;

// What the program says is of no interest here.
class Silence {
 public:
  Silence() {
    const int nowhere = ::open("/dev/null", O_WRONLY);
    for (const int file : {STDOUT_FILENO, STDERR_FILENO}) {
      saved_.push_back(::dup(file));
      ::dup2(nowhere, file);
    }
    ::close(nowhere);
  }
  ~Silence() {
    std::fflush(nullptr);
    ::dup2(saved_[0], STDOUT_FILENO);
    ::dup2(saved_[1], STDERR_FILENO);
    ::close(saved_[0]);
    ::close(saved_[1]);
  }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  std::vector<int> saved_;
};

// A run that saves twice, the second time also as the best, and keeps one checkpoint.
Config config_of_run(const std::string& folder, const std::string& dir) {
  Config config;
  config.run = {.name = "run", .dir = dir, .seed = 1, .device = Device::kCpu, .threads = 1};
  config.data.path = folder + "/data.h5";
  set(config, "model.layers", "1");
  set(config, "model.heads", "1");
  set(config, "model.width", "24");
  set(config, "model.context", "8");
  config.train = {.steps = kSteps,
                  .global_batch = 3,
                  .micro_batch = 1,
                  .eval_every = 2,
                  .eval_batches = 1,
                  .log_every = 1};
  config.optim.warmup_steps = 0;
  config.dist.reduce = Reduce::kExact;  // so that one rank can go on to the same bits
  config.checkpoint.every_steps = kSaveEvery;
  config.checkpoint.keep = 1;
  config.log = {.progress = ProgressMode::kNone, .tensorboard = false};
  return config;
}

void train(const Config& config) {
  const Silence silence;
  EXPECT_EQ(Trainer(config, test_world()).run(), ExitCode::kOk);
}

// The calls of all ranks by time, with a new number for each file: inodes are used again.
Calls recorded_calls(const std::string& folder) {
  Calls all;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::ranges::move(unpack(read_file(str(folder, "/calls-", rank))), std::back_inserter(all));
  }
  std::ranges::stable_sort(all, {}, &FileCall::time_ns);
  std::map<uint64_t, uint64_t> number_of;
  uint64_t numbers = 0;
  const auto number = [&](uint64_t inode) {
    return inode == 0                                         ? 0
           : number_of.try_emplace(inode, numbers + 1).second ? ++numbers
                                                              : number_of[inode];
  };
  for (FileCall& call : all) {
    call.name.folder = number(call.name.folder);
    call.target.folder = number(call.target.folder);
    if (call.kind == Kind::kCreate || call.kind == Kind::kMakeFolder) {
      number_of.erase(call.file);
    }
    call.file = number(call.file);
  }
  return all;
}

// The state after the first `count` calls, without call `dropped`, and with call `cut` only up to
// the end of a page.
FileTree state(const Calls& calls, size_t count, const std::set<size_t>& dropped,
               size_t cut = SIZE_MAX) {
  FileTree tree(calls[0].name.folder);  // the run's folder is made first
  for (size_t i = 0; i < count; ++i) {
    if (i == cut) {
      FileCall call = calls[i];
      call.bytes.resize(kPage - static_cast<size_t>(call.at) % kPage);
      tree.apply(call);
    } else if (!dropped.contains(i)) {
      tree.apply(calls[i]);
    }
  }
  return tree;
}

bool can_be_cut(const FileCall& call) {
  return call.kind == Kind::kWrite &&
         static_cast<size_t>(call.at) % kPage + call.bytes.size() > kPage;
}

struct Crash {
  size_t count = 0;  // calls before it
  std::set<size_t> dropped{};
  size_t cut = SIZE_MAX;
  int64_t saved_step = 0;  // of the newest checkpoint that the log had named: it must not be lost

  FileTree tree(const Calls& calls) const { return state(calls, count, dropped, cut); }
};

std::string text_of(const Crash& crash, const Calls& calls) {
  const auto name = [&](size_t i) {
    return str(i + 1, " (kind ", static_cast<int>(calls[i].kind), ", ", calls[i].path, ")");
  };
  std::string text = "after call " + name(crash.count - 1) + ", without";
  for (const size_t i : crash.dropped) {
    text += " " + name(i);
  }
  return crash.cut < calls.size() ? text + ", cut: " + name(crash.cut) : text;
}

std::vector<Crash> crashes_in(const Calls& calls) {
  std::vector<Crash> found;
  int64_t saved_step = 0;
  for (size_t count = 1; count <= calls.size(); ++count) {
    const FileCall& last = calls[count - 1];
    if (last.kind == Kind::kWrite && last.bytes.find("\"checkpoint\"") != std::string::npos &&
        last.path.ends_with("/metrics.jsonl")) {
      saved_step = Json::parse(last.bytes)["step"];
    }
    const std::vector<size_t> open = unsynced(calls, count);
    found.push_back({.count = count, .saved_step = saved_step});
    found.push_back(
        {.count = count, .dropped = {open.begin(), open.end()}, .saved_step = saved_step});
    for (const size_t i : open) {
      found.push_back({.count = count, .dropped = {i}, .saved_step = saved_step});
      if (can_be_cut(calls[i])) {
        found.push_back({.count = count, .cut = i, .saved_step = saved_step});
      }
    }
  }
  return found;
}

// The manifest of the last checkpoint is written again when its loss is known. A run whose manifest
// has the loss does not log it again.
void expect_the_loss_comes_after_its_line(const Calls& calls) {
  const std::string again = "/" + step_name(kSteps) + "/manifest.json.partial ";
  const auto rename = std::ranges::find_if(calls, [&](const FileCall& call) {
    return call.kind == Kind::kRename && call.path.find(again) != std::string::npos;
  });
  ASSERT_NE(rename, calls.end());
  for (const size_t i : unsynced(calls, static_cast<size_t>(rename - calls.begin()))) {
    EXPECT_FALSE(calls[i].path.ends_with("/metrics.jsonl")) << calls[i].bytes;
  }
}

// The step of the newest checkpoint in which every tensor can be read; 0: there is none.
int64_t newest_whole_step(const std::string& checkpoints) {
  auto names = list_checkpoints(checkpoints);
  for (const CheckpointName& name : names | std::views::reverse) {
    try {
      const CheckpointReader reader(name.path);
      for (const CheckpointReader::Entry& tensor : reader.tensors()) {
        reader.read({tensor.name, tensor.shape, 0, random_tensor(tensor.shape, DType::kF32, 1)});
      }
      return name.step;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
    }
  }
  return 0;
}

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

// The training and validation lines of a run, without times.
std::string curve(const std::string& run) {
  std::string text;
  for (const Json& line : lines_of(run + "/metrics.jsonl")) {
    if (line.contains("loss")) {
      text += str(line["step"].dump(), " ", line["loss"].dump(), "\n");
    } else if (line.contains("val_loss")) {
      text += str("val ", line["step"].dump(), " ", line["val_loss"].dump(), "\n");
    }
  }
  return text;
}

// The hashes of all tensors of a checkpoint.
std::string weights(const std::string& checkpoint) {
  const CheckpointReader reader(checkpoint);
  std::string text;
  for (const CheckpointReader::Entry& tensor : reader.tensors()) {
    Tensor values = random_tensor(tensor.shape, DType::kF32, 1);
    reader.read({tensor.name, tensor.shape, 0, values});
    text += str(tensor.name, " ", hash_of(values.raw(), values.bytes()).hex(), "\n");
  }
  return text;
}

// The folder that both tests share; it holds the dataset, and the calls of each rank.
std::string shared_folder() {
  const char* folder = std::getenv("TANDEM_CRASH_FOLDER");
  require(folder != nullptr, "TANDEM_CRASH_FOLDER is not set: start tests/train/crash_states.sh");
  return folder;
}

TEST(CrashStates, Record) {
  Control& control = test_world().control();
  const std::string folder = shared_folder(), recorded = folder + "/recorded";
  if (control.rank() == 0) {
    std::ofstream text(folder + "/text");
    for (int i = 0; i < 60; ++i) {
      text << "the line " << i * i << " of a short text\n";
    }
    text.close();
    PrepareTextOptions options;
    options.input = {folder + "/text"};
    options.output = folder + "/data.h5";
    prepare_text(options);
    fs::create_directories(recorded);
  }
  control.barrier();
  record_file_calls(recorded);
  refuse_folder_renames(std::getenv("TANDEM_CRASH_NO_FOLDER_RENAMES") != nullptr);
  train(config_of_run(folder, recorded));
  const std::vector<FileCall> calls = take_file_calls();
  record_file_calls("");
  std::ofstream(str(folder, "/calls-", control.rank()), std::ios::binary) << pack(calls);
}

TEST(CrashStates, EachGoesOnToTheSameEnd) {
  const std::string folder = shared_folder(), recorded = folder + "/recorded";
  const Calls calls = recorded_calls(folder);
  const std::string run = "/run", last = run + "/checkpoints/" + step_name(kSteps),
                    best = run + "/checkpoints/best";
  const std::string expected_curve = curve(recorded + run),
                    expected_weights = weights(recorded + last);
  expect_the_loss_comes_after_its_line(calls);
  const std::vector<Crash> crashes = crashes_in(calls);
  const char* wanted = std::getenv("TANDEM_CRASH_STATES");
  const size_t stride = wanted ? std::max<size_t>(1, crashes.size() / std::stoul(wanted)) : 1;
  std::map<int64_t, int64_t> opened;  // states by the step they go on from
  std::set<std::pair<std::string, int64_t>> tried;
  for (size_t i = 0; i < crashes.size(); i += stride) {
    const Crash& crash = crashes[i];
    const FileTree tree = crash.tree(calls);
    const std::string text = tree.text();
    const std::string hash = hash_of(text.data(), static_cast<int64_t>(text.size())).hex();
    if (!tried.emplace(hash, crash.saved_step).second) {
      continue;
    }
    SCOPED_TRACE(text_of(crash, calls));
    const std::string dir = folder + "/state";
    fs::remove_all(dir);
    tree.write_to(dir);
    const int64_t step = newest_whole_step(dir + run + "/checkpoints");
    ++opened[step];
    EXPECT_GE(step, crash.saved_step);
    try {
      train(config_of_run(folder, dir));
      EXPECT_EQ(curve(dir + run), expected_curve);
      EXPECT_EQ(weights(dir + last), expected_weights);
      EXPECT_EQ(weights(dir + best), weights(dir + last));
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
  std::printf("%zu calls, %zu states; %zu different ones tried, by the step they go on from:",
              calls.size(), crashes.size(), tried.size());
  for (const auto& [step, count] : opened) {
    std::printf("  %ld: %ld", step, count);
  }
  std::printf("\n");
  EXPECT_EQ(opened.size(), 3U);  // steps 0, 2 and 4
}

}  // namespace
}  // namespace tandem::testing
