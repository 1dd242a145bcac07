#include <sys/mman.h>
#include <sys/resource.h>

#include "src/device/dispatch.h"
#include "src/estimate/estimate.h"
#include "src/estimate/host_memory.h"
#include "src/estimate/memory_check.h"
#include "tests/data/data_files.h"
#include "tests/support/set_config.h"

namespace tandem::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(HostMemory, IsWhatTheKernelCallsAvailable) {
  const TemporaryFolder root;
  EXPECT_EQ(available_host_memory(root.path()), INT64_MAX);
  root.write("proc/meminfo", "MemTotal: 9216 kB\nMemAvailable: 4096 kB\nSwapFree: 1024 kB\n");
  EXPECT_EQ(available_host_memory(root.path()), 5 * kMiB);
  root.write("proc/self/cgroup", "3:cpu,cpuacct:/\n0::/\n");
  EXPECT_EQ(available_host_memory(root.path()), 5 * kMiB);
}

// The kernel adds up usage and statistics at different times, and version 1 writes almost INT64_MAX
// where there is no limit.
TEST(HostMemory, AGroupMaySeemToHaveMoreCacheThanItUses) {
  const TemporaryFolder root;
  root.write("proc/meminfo", "MemAvailable: 4096 kB\n");
  root.write("proc/self/cgroup", "4:memory:/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", str(kMiB));
  root.write("sys/fs/cgroup/memory/memory.stat", "total_active_file " + str(2 * kMiB) + "\n");
  EXPECT_EQ(available_host_memory(root.path()), 4 * kMiB);
}

// A limit of 3 MiB, of which 2 are taken, half of them by page cache that the kernel would drop.
TEST(HostMemory, ControlGroupsLimitIt) {
  const std::string limit = str(3 * kMiB), usage = str(2 * kMiB);
  const std::string cache = str(kMiB / 4), active = str(kMiB - kMiB / 4);
  for (const std::string above : {"", "/job"}) {
    const TemporaryFolder first;
    first.write("proc/meminfo", "MemAvailable: 4096 kB\n");
    first.write("proc/self/cgroup", "4:cpu,memory:/job/step\n");
    const std::string folder = "sys/fs/cgroup/memory" + above;
    first.write(folder + "/memory.limit_in_bytes", limit + "\n");
    first.write(folder + "/memory.usage_in_bytes", usage + "\n");
    first.write(folder + "/memory.stat", "inactive_file 7\ntotal_inactive_file " + cache +
                                             "\ntotal_active_file " + active + "\n");
    EXPECT_EQ(available_host_memory(first.path()), 2 * kMiB) << above;

    const TemporaryFolder second;
    second.write("proc/meminfo", "MemAvailable: 4096 kB\n");
    second.write("proc/self/cgroup", "0::/job/step\n");
    second.write("sys/fs/cgroup/job/step/memory.max", "max\n");
    second.write("sys/fs/cgroup/job/step/memory.current", "5\n");
    EXPECT_EQ(available_host_memory(second.path()), 4 * kMiB) << above;
    second.write("sys/fs/cgroup" + above + "/memory.max", limit + "\n");
    second.write("sys/fs/cgroup" + above + "/memory.current", usage + "\n");
    second.write("sys/fs/cgroup" + above + "/memory.stat",
                 "inactive_file " + cache + "\nactive_file " + active + "\n");
    EXPECT_EQ(available_host_memory(second.path()), 2 * kMiB) << above;
  }
}

TEST(HostMemory, AddressSpaceIsWhatTheLimitLeaves) {
  EXPECT_EQ(available_address_space(), INT64_MAX);
  const rlimit limit{.rlim_cur = rlim_t{1} << 44, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  const int64_t before = available_address_space();
  void* taken = mmap(nullptr, kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(before - available_address_space(), kMiB);
  EXPECT_LT(before, int64_t{1} << 44);
  EXPECT_EQ(available_memory(Device::kCpu, 1).host,
            std::min(available_host_memory(), before - kMiB));
  munmap(taken, kMiB);
  const rlimit none{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
}

struct Case {
  Config config;
  DatasetInfo data{.vocab_size = 64};
  int ranks;

  explicit Case(int ranks_of_job) : ranks(ranks_of_job) {
    for (const auto& [key, value] :
         {std::pair{"layers", "2"}, {"heads", "2"}, {"width", "16"}, {"context", "16"}}) {
      set(config, str("model.", key), value);
    }
    config.train.global_batch = int64_t{12} * ranks;
    config.dist.zero = 1;
  }
  Job job() const { return {.ranks = ranks, .node_size = ranks}; }

  void check(int64_t available) const {
    check_memory(config, data, 0, std::vector<int>(ranks, 0), Device::kCpu,
                 {.device = available, .host = available});
  }
};

TEST(MemoryCheck, AllowsExactlyWhatAStepNeeds) {
  for (const int ranks : {1, 4}) {
    for (const bool async : {true, false}) {
      Case job(ranks);
      job.config.checkpoint.async = async;
      const Estimate need = memory_of_rank(job.config, job.data, job.job(), 0);
      EXPECT_EQ(need.peak_bytes, estimate(job.config, job.data, job.job()).peak_bytes);
      EXPECT_EQ(need.checkpoint_bytes > 0, async);
      const int64_t enough = need.peak_bytes + need.checkpoint_bytes;
      job.check(enough);
      expect_error(
          ExitCode::kOutOfMemory,
          {"out of cpu memory: a step needs " + format_bytes(need.peak_bytes),
           async ? "and the copy for checkpoints" : "; there are ", "train.micro_batch = 6 fits"},
          [&] { job.check(enough - 1); });
    }
  }
}

// The check runs some of many micro-batches. Later ones have a message of the one before in flight,
// which the first has not.
TEST(MemoryCheck, OfManyMicroBatchesIsThatOfTheWholeStep) {
  for (int64_t zero = 0; zero < 4; ++zero) {
    for (const bool overlap : {true, false}) {
      for (const Reduce reduce : {Reduce::kRing, Reduce::kExact}) {
        for (const int64_t micro_batches : {2, 4, 40}) {
          SCOPED_TRACE(str("zero ", zero, overlap ? " overlapped " : " ", micro_batches));
          Case job(2);
          job.config.dist.zero = zero;
          job.config.dist.overlap = overlap;
          job.config.dist.reduce = reduce;
          job.config.dist.bucket_mb = 0.02;
          job.config.train.micro_batch = 1;
          job.config.train.global_batch = job.ranks * micro_batches;
          int64_t most = 0;
          for (int rank = 0; rank < job.ranks; ++rank) {
            most = std::max(most, memory_of_rank(job.config, job.data, job.job(), rank).peak_bytes);
          }
          EXPECT_EQ(most, estimate(job.config, job.data, job.job()).peak_bytes);
        }
      }
    }
  }
}

// The advice divides the batch, and is true.
TEST(MemoryCheck, AdvisesTheLargestMicroBatchThatFits) {
  Case small(2);
  small.config.checkpoint.async = false;
  const auto peak_of = [&](int64_t micro_batch) {
    Case tried = small;
    tried.config.train.micro_batch = micro_batch;
    return memory_of_rank(tried.config, tried.data, tried.job(), 0).peak_bytes;
  };
  expect_error(ExitCode::kOutOfMemory, {"train.micro_batch = 4 fits"},
               [&] { small.check(std::max(peak_of(4), peak_of(3))); });
  expect_error(ExitCode::kOutOfMemory, {"no micro-batch fits: use more ranks"},
               [&] { small.check(peak_of(1) / 2); });
}

// A GPU's rank needs the state, and the copy of a checkpoint. The advice is true.
TEST(MemoryCheck, OffloadNeedsMemoryOfTheHost) {
  if (!kHasCuda) {
    GTEST_SKIP() << "offload is for GPUs";
  }
  Case large(4);
  large.config.train.offload = Offload::kOptimizer;
  large.config.dist.zero = 0;
  const auto host_bytes = [&](int64_t zero) {
    Case tried = large;
    tried.config.dist.zero = zero;
    Job job = tried.job();
    job.hardware.device = Device::kCuda;
    const Estimate need = memory_of_rank(tried.config, tried.data, job, 0);
    EXPECT_GT(need.host_bytes, 0);
    return need.host_bytes + need.checkpoint_bytes;
  };
  const auto check = [&](int64_t host) {
    check_memory(large.config, large.data, 0, std::vector<int>(4, 0), Device::kCuda,
                 {.device = INT64_MAX / 2, .host = host});
  };
  check(host_bytes(0));
  expect_error(
      ExitCode::kConfig,
      {"train.offload = optimizer needs " + format_bytes(host_bytes(0)) + " of the host's memory",
       "there are " + format_bytes(host_bytes(0) - 1), "dist.zero = 1 fits"},
      [&] { check(host_bytes(0) - 1); });
  expect_error(ExitCode::kConfig, {"no stage fits: use train.offload = none, or more nodes"}, [&] {
    check(std::min({host_bytes(1), host_bytes(2), host_bytes(3)}) - 1);
  });
}

// Weights and two moments; with a stage each rank copies its share.
TEST(MemoryCheck, CountsTheCopyOfACheckpoint) {
  const Case one(1);
  const Estimate alone = memory_of_rank(one.config, one.data, one.job(), 0);
  const int64_t width = 16, attention = 4 * width * width + 4 * width,
                mlp = 8 * width * width + 5 * width;
  const int64_t parameters = (64 + 16) * width + 2 * (4 * width + attention + mlp) + 2 * width;
  EXPECT_EQ(alone.checkpoint_bytes, 3 * parameters * 4);
}

}  // namespace
}  // namespace tandem::testing
