#include "tests/simt/launch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <vector>

#include "tests/simt/block.h"
#include "tests/simt/memory.h"
#include "tests/simt/runtime.h"
#include "tests/simt/settings.h"
#include "tests/simt/simt.h"
#include "tests/simt/streams/stream.h"

namespace simt {

namespace {

constexpr size_t kStaticShared = 48 * 1024;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kCanaryBytes = 64;
constexpr unsigned char kCanary = 0xa5;

// Shared memory of the running block, with canaries after each piece.
struct Shared {
  uint64_t block = 0;  // counts all blocks of the process
  size_t static_bytes = 0, used = 0;
  std::vector<unsigned char> static_memory =
      std::vector<unsigned char>(kStaticShared + 64 * (kCanaryBytes + 16));
  std::vector<unsigned char> dynamic_memory =
      std::vector<unsigned char>(settings().shared + kCanaryBytes + 16);
  std::vector<unsigned char*> canaries;  // each at the end of a piece
  std::vector<unsigned char*> pieces;    // their beginnings
};

Shared& shared() {
  static Shared* shared = new Shared;
  return *shared;
}

constinit thread_local const Launch* running = nullptr;

std::string text(unsigned x, unsigned y, unsigned z) {
  return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}

unsigned char* align(unsigned char* pointer, size_t alignment) {
  return pointer + (alignment - reinterpret_cast<uintptr_t>(pointer) % alignment) % alignment;
}

void* prepare(unsigned char* memory, size_t size) {
  std::memset(memory, settings().poison, size);
  std::memset(memory + size, kCanary, kCanaryBytes);
  shared().pieces.push_back(memory);
  shared().canaries.push_back(memory + size);
  return memory;
}

void start_shared_memory() {
  Shared& s = shared();
  ++s.block;
  s.static_bytes = s.used = 0;
  s.canaries.clear();
  s.pieces.clear();
  if (running->dynamic_bytes != 0) {
    prepare(align(s.dynamic_memory.data(), 16), running->dynamic_bytes);
  }
}

void check_canaries() {
  for (const unsigned char* canary : shared().canaries) {
    if (std::any_of(canary, canary + kCanaryBytes, [](auto byte) { return byte != kCanary; })) {
      fail("store past the end of shared memory",
           "block " + text(blockIdx.x, blockIdx.y, blockIdx.z));
    }
  }
}

void check_limits(const Launch& launch) {
  const auto refuse = [&](const char* what, const std::string& detail) {
    fail(std::string(what) + " in kernel " + launch.kernel, detail);
  };
  const dim3 g = launch.grid, b = launch.block;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  if (threads == 0 || threads > kMaxThreads || b.z > 64) {
    refuse("launch with too many threads or none", "block " + text(b.x, b.y, b.z));
  }
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) {
    refuse("launch with an impossible grid", text(g.x, g.y, g.z));
  }
  if (launch.dynamic_bytes > settings().shared) {
    refuse("launch with too much shared memory",
           std::to_string(launch.dynamic_bytes) + " dynamic bytes");
  }
}

// Lines that are appended to a file, each once.
class FileOfLines {
 public:
  explicit FileOfLines(const std::string& path) : path_(path) {}
  void add(const std::string& line) { lines_.insert(line); }
  void write() const {
    if (path_.empty()) {
      return;
    }
    std::string text;
    for (const std::string& line : lines_) {
      text += line + "\n";
    }
    const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0 || ::write(file, text.data(), text.size()) < 0) {
      fail("cannot write the executed kernels", path_);
    }
    close(file);
  }

 private:
  std::string path_;
  std::set<std::string> lines_;
};

// The kernels that ran, written when the process ends. They outlive every thread.
struct Executed {
  FileOfLines coverage{settings().coverage}, launches{settings().launches};
};

Executed& executed() {
  static auto* executed = [] {
    std::atexit([] {
      simt::executed().coverage.write();
      simt::executed().launches.write();
    });
    return new Executed;
  }();
  return *executed;
}

// Notes an executed kernel: for the coverage, its bare name, "row_sum_kernel" of
// "row_sum_kernel<float>".
void record(const Launch& launch) {
  const std::string& kernel = launch.kernel;
  const dim3 b = launch.block;
  executed().coverage.add(kernel.substr(0, std::min(kernel.find('<'), kernel.size())));
  executed().launches.add(kernel + "\t" + std::to_string(b.x * b.y * b.z) + "\t" +
                          std::to_string(launch.dynamic_bytes));
}

// Before CUDA loads a kernel, it may wait for all work on the GPU. That includes a collective that
// waits for another rank, which may itself be waiting here.
void load(const void* function, const std::string& kernel) {
  static auto* loaded = new std::set<const void*>;
  if (loaded->insert(function).second && others_are_awaited()) {
    fail("kernel loaded while a collective waits for other ranks", kernel);
  }
}

// While it exists, this thread counts as running a kernel.
class Running {
 public:
  explicit Running(const Launch& launch) {
    running = &launch;
    in_kernel_ = true;
    blockDim = launch.block;
    gridDim = launch.grid;
  }
  ~Running() {
    running = nullptr;
    in_kernel_ = false;
  }
};

}  // namespace

LaunchObserver& launch_observer() {
  static LaunchObserver observer;
  return observer;
}

std::string text_of_bytes(const void* bytes, size_t size) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = " ";
  for (size_t i = 0; i < size; ++i) {
    const unsigned byte = static_cast<const unsigned char*>(bytes)[i];
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

void enqueue_kernel(CUstream_st* stream, Launch launch, std::function<void()> run) {
  fail_unread_error();
  check_limits(launch);
  RuntimeLock lock;
  load(launch.function, launch.kernel);
  ++counters().launches;
  if (launch_observer()) {
    launch_observer()(launch.kernel + text(launch.grid.x, launch.grid.y, launch.grid.z) +
                      text(launch.block.x, launch.block.y, launch.block.z) +
                      std::to_string(launch.dynamic_bytes) + launch.arguments);
  }
  std::string name = launch.kernel;
  push(lock, stream, {Task::kWork, name, [launch = std::move(launch), run = std::move(run)] {
                        const Running scope(launch);
                        record(launch);
                        run();
                        return true;
                      }});
}

void for_each_thread(const std::function<void()>& body) {
  Random random(settings().thread_seed);
  const dim3 grid = running->grid;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  // Blocks are visited with a stride that has no factor in common with their number.
  const bool forward = settings().threads == ThreadOrder::kForward;
  uint64_t stride = forward ? 1 : blocks - 1, n = forward ? 0 : blocks - 1;
  if (settings().threads == ThreadOrder::kShuffled) {
    stride = random() % blocks;
    n = random() % blocks;
  }
  while (std::gcd(stride, blocks) != 1) {
    ++stride;
  }
  for (uint64_t i = 0; i < blocks; ++i, n = (n + stride) % blocks) {
    blockIdx = {static_cast<unsigned>(n % grid.x), static_cast<unsigned>(n / grid.x % grid.y),
                static_cast<unsigned>(n / grid.x / grid.y)};
    start_shared_memory();
    run_block(body, random);
    check_canaries();
  }
}

std::string kernel_name(const std::string& signature) {
  constexpr std::string_view kKey = "kKernel = ";
  size_t begin = signature.find(kKey);
  begin = begin == std::string::npos ? 0 : begin + kKey.size();
  int depth = 0;
  size_t end = begin;
  for (size_t last = begin; end < signature.size(); ++end) {
    const char c = signature[end];
    if (depth == 0 && (c == ';' || c == ']')) {
      return signature.substr(last, end - last);
    }
    if (depth == 0 && (c == ':' || c == '&' || c == '(')) {
      last = end + 1;  // leave out namespaces
    }
    depth += c == '<' ? 1 : c == '>' ? -1 : 0;
  }
  return signature.substr(begin);
}

void* shared_memory(SharedSlot& slot, size_t size, size_t alignment) {
  Shared& s = shared();
  if (slot.block != s.block) {
    s.static_bytes += size;
    if (s.static_bytes > kStaticShared ||
        s.static_bytes + running->dynamic_bytes > settings().shared) {
      fail("too much shared memory", std::to_string(s.static_bytes) + " static bytes and " +
                                         std::to_string(running->dynamic_bytes) + " dynamic ones");
    }
    unsigned char* memory = align(s.static_memory.data() + s.used, std::max(alignment, size_t{16}));
    slot = {s.block, prepare(memory, size)};
    s.used = static_cast<size_t>(memory - s.static_memory.data()) + size + kCanaryBytes;
  }
  return slot.memory;
}

void* dynamic_shared_memory() {
  if (running == nullptr || running->dynamic_bytes == 0) {
    fail("dynamic shared memory that the launch did not ask for");
  }
  return align(shared().dynamic_memory.data(), 16);
}

bool is_shared(const void* pointer, size_t bytes) {
  const auto* begin = static_cast<const unsigned char*>(pointer);
  const Shared& s = shared();
  for (size_t i = 0; i < s.pieces.size(); ++i) {
    if (begin >= s.pieces[i] && begin + bytes <= s.canaries[i]) {
      return in_thread();
    }
  }
  return false;
}

uint64_t block_number() { return shared().block; }

std::string running_place() {
  if (running == nullptr) {
    return running_task();
  }
  std::string place = "kernel " + running->kernel;
  if (in_thread()) {
    place += ", block " + text(blockIdx.x, blockIdx.y, blockIdx.z) + ", thread " +
             text(threadIdx.x, threadIdx.y, threadIdx.z);
  }
  return place;
}

}  // namespace simt

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  simt::RuntimeLock lock;
  simt::load(kernel, "by cudaFuncGetAttributes");
  return cudaSuccess;
}
