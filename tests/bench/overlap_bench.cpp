// Measures how much communication overlap hides when the compute device does not do the
// communication. Layers take a given time without using the processor, as on a GPU; tape, store and
// collectives are the real ones. tests/bench/slow_link.py runs this program over links of limited
// speed.
//
//     mpirun -np N tandem_overlap_bench [--OPTION NUMBER]...
//
// --compute (1): computation in multiples of the communication time, which is measured first;
// --zero (0): ZeRO stage; --kib (2048): size of all gradients; --blocks (8): number of blocks, each
// of which is a bucket; --steps (9). The backward pass and the reductions are timed, and for
// ZeRO-3, which gathers while it computes, the forward pass (a third of the computation), too. All
// times are medians over steps of the slowest rank's time. The five kinds of step take turns, so
// that a disturbance meets all of them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "comm/sharding/group.h"
#include "comm/sharding/param_store.h"
#include "comm/transport/local_control.h"
#include "comm/transport/self_collectives.h"
#include "comm/world.h"
#include "src/autograd/block.h"
#include "src/autograd/tape.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

struct Compute {
  double forward_s = 0, backward_s = 0;  // of a whole pass
};

void take(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// An op that sleeps for a given time in backward; its parameter's gradient is 1.
struct TimedOp final : Op {
  explicit TimedOp(double seconds) : backward_s(seconds) {}
  double backward_s;
  std::string_view name() const override { return "timed"; }
  void backward(Context& context, Tensor& dy) override {
    take(backward_s);
    const GradTarget target = grad_target(parameter(0));
    std::ranges::fill(target.into.as<float>(), 1.0f);
    if (input(0).wanted()) {
      input(0).add(context, dy);
    }
  }
};

// A model of equal blocks, one bucket each, and its store among the ranks of a group.
class Job {
 public:
  Job(Group& data, int64_t blocks, int64_t block_bytes, int zero, bool overlap)
      : ranks_(data.size()),
        tape_([this](Context& context, Parameter& parameter) {
          store_->gradients.on_final(context, parameter);
        }),
        blocks_(blocks),
        times_forward_(zero == 3) {
    std::vector<BlockParameters> layout;
    for (int64_t i = 0; i < blocks; ++i) {
      parameters_.push_back({.name = str("weight", i), .shape = Shape{block_bytes / 4}});
      layout.push_back({.name = str("block", i), .parameters = {&parameters_.back()}});
    }
    store_ = std::make_unique<ParamStore>(
        layout, data, stream_, memory_,
        StoreOptions{.bucket_bytes = block_bytes, .overlap = overlap, .zero = zero});
    store_->values.initialize(1);
  }

  // Runs one step and returns its seconds. `meet` lets the ranks begin the timed work together.
  double step(const Compute& compute, const std::function<void()>& meet) {
    Context context{.stream = stream_,
                    .memory = memory_,
                    .tape = &tape_,
                    .training = true,
                    .gate = &store_->gradients};
    store_->gradients.begin_step();
    store_->gradients.begin_backward(true);
    auto begin = Clock::now();
    const auto start = [&] {
      meet();
      begin = Clock::now();
    };
    if (times_forward_) {
      start();
    }
    store_->values.outdate();  // as after the optimizer of the previous step
    store_->values.gather();
    const Variable y = forward(context, compute);
    if (!times_forward_) {
      start();
    }
    tape_.backward(context, y, 1.0);
    require(store_->gradients.finish_backward(), "a step without exact sums is never run again");
    const double taken = std::chrono::duration<double>(Clock::now() - begin).count();
    require_sums();
    return taken;
  }

 private:
  void require_sums() const {
    for (size_t i = 0; i < store_->shards.all().size(); ++i) {
      for (const Extent& extent : store_->shards.extents(i)) {
        const float sum = store_->shards.all()[i].grad.data<float>()[extent.in_flat];
        require(sum == static_cast<float>(ranks_),
                [&] { return str(ranks_, " gradients of 1 became ", sum, " in shard ", i); });
      }
    }
  }
  Variable forward(Context& context, const Compute& compute) {
    const auto share = 1 / static_cast<double>(blocks_);
    Flow x = {Variable(Tensor::zeros(memory_, {1}, DType::kF32, MemoryClass::kActivations))};
    for (int64_t i = 0; i < blocks_; ++i) {
      const auto body = [&](Context& inner, const Flow& input) -> Flow {
        take(times_forward_ ? compute.forward_s * share : 0);
        return {inner.record(input[0].value(),
                             std::make_unique<TimedOp>(compute.backward_s * share), {input[0]},
                             {&parameters_[i]})};
      };
      x = run_block(context, static_cast<BlockId>(i), body, std::move(x));
    }
    return x[0];
  }

  int ranks_;
  Memory memory_{Device::kCpu};
  Stream stream_ = Stream::compute(Device::kCpu);
  std::deque<Parameter> parameters_;
  std::unique_ptr<ParamStore> store_;
  Tape tape_;
  int64_t blocks_;
  bool times_forward_;
};

using Settings = std::map<std::string, double>;
const Settings kDefaults = {
    {"--zero", 0}, {"--compute", 1}, {"--kib", 2048}, {"--blocks", 8}, {"--steps", 9}};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

class Bench {
 public:
  Bench(World& world, const Settings& settings)
      : control_(world.control()),
        all_(control_, world.collectives(), memory_, nodes_of(control_, world.host(), 0)),
        zero_(static_cast<int>(settings.at("--zero"))),
        blocks_(static_cast<int64_t>(settings.at("--blocks"))),
        bytes_(static_cast<int64_t>(settings.at("--kib")) * 1024),
        steps_(static_cast<int>(settings.at("--steps"))),
        compute_(settings.at("--compute")),
        alone_(job(one_, blocks_, true)),
        in_turn_(job(all_, blocks_, false)),
        overlapped_(job(all_, blocks_, true)),
        one_bucket_(job(all_, 1, true)) {}

  // Returns the line of results, on rank 0.
  std::string run() {
    seconds(*overlapped_, {});  // the first step connects the ranks
    std::vector<double> before;
    for (int i = 0; i < kFirstSteps; ++i) {
      before.push_back(seconds(*overlapped_, {}));
    }
    const double whole = compute_ * median(before);
    const Compute compute = zero_ == 3
                                ? Compute{.forward_s = whole / 3, .backward_s = whole * 2 / 3}
                                : Compute{.backward_s = whole};
    std::vector<double> computing, communicating, in_turn, overlapped, last;
    for (int i = 0; i < steps_; ++i) {
      computing.push_back(seconds(*alone_, compute));
      communicating.push_back(seconds(*overlapped_, {}));
      in_turn.push_back(seconds(*in_turn_, compute));
      overlapped.push_back(seconds(*overlapped_, compute));
      last.push_back(seconds(*one_bucket_, {}));
    }
    return line(median(computing), median(communicating), median(in_turn), median(overlapped),
                median(last));
  }

 private:
  static constexpr int kFirstSteps = 5;

  std::unique_ptr<Job> job(Group& data, int64_t blocks, bool overlap) const {
    return std::make_unique<Job>(data, blocks, bytes_ / blocks_, zero_, overlap);
  }

  // The time of one step on the slowest rank.
  double seconds(Job& job, const Compute& compute) {
    const double own = job.step(compute, [this] { control_.barrier(); });
    double slowest = 0;
    for (const std::string& text : control_.all_gather(str(own))) {
      slowest = std::max(slowest, std::stod(text));
    }
    return slowest;
  }

  std::string line(double computing, double communicating, double in_turn, double overlapped,
                   double last) const {
    const double bound = 1.1 * std::max(computing, communicating) + last;
    char text[512];
    std::snprintf(text, sizeof text,
                  R"({"ranks": %d, "zero": %d, "kib": %ld, "buckets": %ld, "compute_ms": %.2f, )"
                  R"("communication_ms": %.2f, "in_turn_ms": %.2f, "overlapped_ms": %.2f, )"
                  R"("last_bucket_ms": %.2f, "bound_ms": %.2f, "of_bound": %.3f, "hidden": %.3f})",
                  control_.size(), zero_, bytes_ / 1024, blocks_, 1e3 * computing,
                  1e3 * communicating, 1e3 * in_turn, 1e3 * overlapped, 1e3 * last, 1e3 * bound,
                  overlapped / bound, (computing + communicating - overlapped) / communicating);
    return text;
  }

  Memory memory_{Device::kCpu};
  Control& control_;
  Group all_;
  LocalControl own_control_;
  SelfCollectives self_;
  Group one_{own_control_, self_, memory_, {0}};
  int zero_;
  int64_t blocks_, bytes_;
  int steps_;
  double compute_;
  std::unique_ptr<Job> alone_, in_turn_, overlapped_, one_bucket_;
};

Settings parse(int argc, char** argv) {
  Settings settings = kDefaults;
  for (int i = 1; i < argc; i += 2) {
    const auto setting = settings.find(argv[i]);
    char* end = nullptr;
    if (setting != settings.end() && i + 1 < argc) {
      setting->second = std::strtod(argv[i + 1], &end);
    }
    if (!end || *end != '\0' || setting->second < 0) {
      fail(ExitCode::kConfig, str(argv[i],
                                  ": no such option, or no number behind it; there are "
                                  "--zero, --compute, --kib, --blocks and --steps"));
    }
  }
  if (settings["--blocks"] < 1 || settings["--kib"] < settings["--blocks"] ||
      settings["--steps"] < 1) {
    fail(ExitCode::kConfig, "--blocks and --steps start at 1, --kib at --blocks");
  }
  return settings;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::World world;
  try {
    const std::string line = tandem::Bench(world, tandem::parse(argc, argv)).run();
    if (world.rank() == 0) {
      std::printf("%s\n", line.c_str());
    }
    world.finish();
    return 0;
  } catch (const tandem::Error& error) {
    std::fprintf(stderr, "tandem_overlap_bench: rank %d: %s\n", world.rank(), error.what());
    world.abort(error.code());
  }
}
