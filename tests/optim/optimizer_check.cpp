#include "tests/optim/optimizer_check.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/device/copy.h"

namespace tandem::testing {

namespace {

Tensor bytes_of(const StepState& state) {
  Tensor bytes = Tensor::empty(test_memory(), Shape{static_cast<int64_t>(sizeof state)}, DType::kU8,
                               MemoryClass::kData);
  std::memcpy(bytes.raw(), &state, sizeof state);
  return bytes;
}

void append(const Tensor& from, std::vector<double>& to) {
  const std::vector<double> values = values_of(from);
  to.insert(to.end(), values.begin(), values.end());
}

Trained outcome_of(const Optimizer& optimizer, std::span<const Shard> shards) {
  Trained trained;
  for (const Shard& shard : shards) {
    append(shard.value, trained.value);
    if (shard.working) {
      append(shard.working, trained.working);
    }
  }
  optimizer.visit([&](std::string_view slot, size_t, const Tensor& state) {
    append(state, trained.state[std::string(slot)]);
  });
  return trained;
}

void expect_same(const Trained& actual, const Trained& expected) {
  EXPECT_EQ(actual.value, expected.value);
  EXPECT_EQ(actual.working, expected.working);
  EXPECT_EQ(actual.state, expected.state);
}

// One array of random numbers, cut into shards, and an optimizer for it.
class Subject {
 public:
  // cuts: the ends of the shards. working: the type of the working copies; kF32: there are none.
  // in_parts: updates each shard by itself, in other memory.
  Subject(const MakeOptimizer& make, Device device, const std::vector<int64_t>& cuts,
          DType working = DType::kF32, bool in_parts = false)
      : device_(device), state_(device, {.loss_scale = 4}), cuts_(cuts), in_parts_(in_parts) {
    const Shape all{cuts.back()};
    const Tensor value = to_device(random_tensor(all, DType::kF32, 1), device);
    working_ = Tensor::zeros(test_memory(device), all, working, MemoryClass::kParameters);
    int64_t first = 0;
    for (const int64_t last : cuts) {
      const Tensor piece = value.slice(first, last - first);
      shards_.push_back({.value = piece, .grad = piece, .decay = true});
      if (working != DType::kF32) {
        shards_.back().working = working_.slice(first, last - first);
      }
      first = last;
    }
    optimizer_ = make(shards_, test_memory(device));
  }

  void step(uint64_t seed) { step(random_tensor({cuts_.back()}, DType::kF32, seed), 1); }

  void overflow() {
    const Tensor gradients = random_tensor({cuts_.back()}, DType::kF32, 99);
    gradients.data<float>()[cuts_.back() / 2] = std::numeric_limits<float>::infinity();
    step(gradients, std::numeric_limits<double>::infinity());
  }

  void overwrite_working(const Tensor& values) {
    copy(test_stream(device_), to_device(values, device_), working_);
  }

  Trained outcome() const { return outcome_of(*optimizer_, shards_); }

 private:
  void step(const Tensor& host_gradients, double squared_norm) {
    const Tensor gradients = to_device(host_gradients, device_);
    int64_t first = 0;
    for (size_t i = 0; i < shards_.size(); ++i) {
      shards_[i].grad = gradients.slice(first, cuts_[i] - first);
      first = cuts_[i];
    }
    state_.decide(squared_norm);
    const DeviceNumbers numbers(device_, {.lr = 1e-2});
    const StepInputs inputs{.numbers = numbers.get(), .state = state_.get()};
    in_parts_ ? update_parts(inputs) : optimizer_->step(test_stream(device_), shards_, inputs);
  }

  void update_parts(const StepInputs& inputs) {
    Stream& stream = test_stream(device_);
    optimizer_->prepare(stream, inputs);
    const StepState verdict = state_.read();
    state_.write({});  // the inputs may change
    std::vector<std::vector<Tensor>> arrays;
    for (const Shard& shard : shards_) {
      arrays.push_back({shard.value});
    }
    optimizer_->visit([&](std::string_view, size_t shard, const Tensor& state) {
      arrays[shard].push_back(state);
    });
    for (size_t i = 0; i < shards_.size(); ++i) {
      std::vector<Tensor> elsewhere;
      for (const Tensor& array : arrays[i]) {
        elsewhere.push_back(copied(stream, array, test_memory(device_)));
      }
      Shard shard = shards_[i];
      shard.value = elsewhere[0];
      optimizer_->update(stream, shard, std::span(elsewhere).subspan(1));
      for (size_t j = 0; j < arrays[i].size(); ++j) {
        copy(stream, elsewhere[j], arrays[i][j]);
      }
    }
    state_.write(verdict);
  }

  Device device_;
  DeviceState state_;
  std::vector<int64_t> cuts_;
  bool in_parts_;
  Tensor working_;
  std::vector<Shard> shards_;
  std::unique_ptr<Optimizer> optimizer_;
};

Trained train(const MakeOptimizer& make, Device device, const std::vector<int64_t>& cuts,
              DType working = DType::kF32) {
  Subject subject(make, device, cuts, working);
  for (const uint64_t seed : {11, 12, 13}) {
    subject.step(seed);
  }
  return subject.outcome();
}

// More than one block of 256 threads with 8 elements each, and enough for the CPU's threads.
constexpr int64_t kElements = 20'021;
// At element 52, f32 arrays are aligned to 16 bytes, and 16-bit arrays are not.
const std::vector<int64_t> kCuts = {1, 18, 52, 8'000, 8'000, 20'000, kElements};

}  // namespace

DeviceState::DeviceState(Device device, const StepState& state)
    : bytes_(to_device(bytes_of(state), device)) {}

void DeviceState::write(const StepState& state) {
  copy(test_stream(bytes_.device()), bytes_of(state), bytes_);
}

StepState DeviceState::read() const {
  StepState state;
  std::memcpy(&state, to_host(bytes_).raw(), sizeof state);
  return state;
}

void DeviceState::decide(double squared_norm, const StepOptions& options) {
  const Device where = bytes_.device();
  const Tensor host = Tensor::empty(test_memory(), {1}, DType::kF64, MemoryClass::kOptimizer);
  *host.data<double>() = squared_norm;
  const Tensor norm = to_device(host, where);
  on_device(test_stream(where), {}, [&](auto device) {
    kernels::decide_step(device, get(), norm.data<double>(), options);
  });
}

Tensor f32_tensor(const std::vector<double>& values, Device device) {
  const Tensor host = Tensor::empty(test_memory(), Shape{static_cast<int64_t>(values.size())},
                                    DType::kF32, MemoryClass::kParameters);
  std::ranges::transform(values, host.data<float>(),
                         [](double x) { return static_cast<float>(x); });
  return to_device(host, device);
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance) << i;
  }
}

Trained train_four_steps(const MakeOptimizer& make, Device device) {
  const std::vector<double> start = {0.5, -1.25, 2.0, -0.03125};
  const std::vector<std::vector<double>> grads = {{0.1, -0.2, 0.3, 0.0},
                                                  {-0.4, 0.25, 1e-3, 2.0},
                                                  {0.05, 0.0, -0.7, -1.0},
                                                  {1e-6, 3.0, 0.2, 0.5}};
  const std::vector<double> lr = {0.01, 0.02, 0.005, 0.03};
  std::vector<Shard> shards = {{f32_tensor(start, device), f32_tensor(start, device), true},
                               {f32_tensor(start, device), f32_tensor(start, device), false}};
  DeviceState state(device, {.loss_scale = 2});
  const auto optimizer = make(shards, test_memory(device));
  for (size_t t = 0; t < grads.size(); ++t) {
    for (Shard& shard : shards) {
      shard.grad = f32_tensor(grads[t], device);
    }
    state.decide(1);
    const DeviceNumbers numbers(device, {.lr = lr[t]});
    optimizer->step(test_stream(device), shards, {.numbers = numbers.get(), .state = state.get()});
  }
  return outcome_of(*optimizer, shards);
}

void check_cuts_and_threads_change_no_bit(const MakeOptimizer& make) {
  for_each_device([&](Device device) {
    const Trained whole = train(make, device, {kElements});
    expect_same(train(make, device, kCuts), whole);
    for (const DType working : {DType::kBf16, DType::kFp16}) {
      EXPECT_EQ(train(make, device, {kElements}, working).value, whole.value) << name_of(working);
      EXPECT_EQ(train(make, device, kCuts, working).value, whole.value) << name_of(working);
    }
  });
  const Trained whole = train(make, Device::kCpu, {kElements});
  const int threads = omp_get_max_threads();
  omp_set_num_threads(threads == 3 ? 2 : 3);
  expect_same(train(make, Device::kCpu, {kElements}), whole);
  omp_set_num_threads(threads);
}

void check_working_copy(const MakeOptimizer& make) {
  for_each_device([&](Device device) {
    for (const DType working : {DType::kBf16, DType::kFp16}) {
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{2'053}, {1, 18, 2'053}}) {
        const Trained trained = train(make, device, cuts, working);
        EXPECT_EQ(trained.working, values_of(rounded_to(f32_tensor(trained.value), working)))
            << name_of(working);
      }
    }
  });
}

void check_updates_of_one_shard(const MakeOptimizer& make) {
  for_each_device([&](Device device) {
    for (const DType working : {DType::kF32, DType::kBf16, DType::kFp16}) {
      SCOPED_TRACE(name_of(working));
      Subject at_once(make, device, kCuts, working), in_parts(make, device, kCuts, working, true);
      for (Subject* subject : {&at_once, &in_parts}) {
        subject->step(11);
        subject->overflow();
        subject->step(12);
      }
      expect_same(in_parts.outcome(), at_once.outcome());
    }
  });
}

void check_skipped_step_leaves_all_bits(const MakeOptimizer& make) {
  for_each_device([&](Device device) {
    for (const DType working : {DType::kF32, DType::kBf16, DType::kFp16}) {
      SCOPED_TRACE(name_of(working));
      const std::vector<int64_t> cuts = {300, 307};
      const Tensor mark = rounded_to(random_tensor({cuts.back()}, DType::kF32, 5), working);
      Subject clean(make, device, cuts, working), disturbed(make, device, cuts, working);
      disturbed.overflow();
      clean.step(11);
      disturbed.step(11);
      clean.overwrite_working(mark);
      disturbed.overwrite_working(mark);
      disturbed.overflow();
      expect_same(disturbed.outcome(), clean.outcome());
      clean.step(12);
      disturbed.step(12);
      expect_same(disturbed.outcome(), clean.outcome());
    }
  });
}

// All devices round every operation alike, but each chooses its own fused multiply-adds. In a step,
// an element of any array passes through at most four roundings that a fused operation can drop.
// Each is at most 2^-24 of the array's largest element: 3 * 4 * 2^-24 after three steps.
void check_devices_agree(const MakeOptimizer& make) {
  const auto expect_close = [](const std::vector<double>& actual,
                               const std::vector<double>& expected) {
    double largest = 0;
    for (const double x : expected) {
      largest = std::max(largest, std::abs(x));
    }
    expect_near(actual, expected, 3 * 4 * 0x1p-24 * largest);
  };
  const Trained expected = train(make, Device::kCpu, {3'001});
  for_each_device([&](Device device) {
    const Trained actual = train(make, device, {3'001});
    expect_close(actual.value, expected.value);
    ASSERT_EQ(actual.state.size(), expected.state.size());
    for (const auto& [slot, values] : expected.state) {
      expect_close(actual.state.at(slot), values);
    }
  });
}

void check_refuses(const std::function<void()>& make, const std::string& setting) {
  try {
    make();
    ADD_FAILURE() << setting;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find(setting), std::string::npos) << error.what();
  }
}

void check_refuses_other_shards(const MakeOptimizer& make) {
  const auto f32 = [](std::vector<double> values) { return f32_tensor(values); };
  const std::vector<Shard> shards = {{f32({1, 2}), f32({1, 2}), true}};
  const std::vector<Shard> shorter = {{f32({1}), f32({1}), true}};
  const std::vector<Shard> half_working = {
      {f32({1, 2}), f32({1, 2}), true, rounded_to(f32({1}), DType::kBf16)}};
  const StepState state{.apply = 1};
  const auto optimizer = make(shards, test_memory());
  const StepNumbers numbers{.lr = 1};
  const auto step = [&](std::span<const Shard> with, const StepState* verdict) {
    optimizer->step(test_stream(), with, {.numbers = &numbers, .state = verdict});
  };
  EXPECT_THROW(step({}, &state), Error);
  EXPECT_THROW(step(shorter, &state), Error);
  EXPECT_THROW(step(half_working, &state), Error);
  EXPECT_THROW(step(shards, nullptr), Error);
  EXPECT_THROW(optimizer->step(test_stream(), shards, {.state = &state}), Error);
}

}  // namespace tandem::testing
