// Ways for a job to end badly, for tests/comm/test_mpi_abort.sh. The argument names the way. Every
// rank prints its process id first.
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <string>
#include <thread>

#include "comm/world.h"

namespace {

using namespace tandem;

constexpr int kOdd = 1;  // the rank that misbehaves

void sleep_s(int seconds) { std::this_thread::sleep_for(std::chrono::seconds(seconds)); }

void misbehave(World& world, const std::string& way, const Tensor& data) {
  Control& control = world.control();
  Collectives& collectives = world.collectives();
  control.barrier();
  const bool odd = world.rank() == kOdd;
  if (way == "throw") {
    if (odd) {
      fail(ExitCode::kData, "this rank's file is broken");
    }
    collectives.all_reduce(data);
    collectives.stream().synchronize();
  } else if (way == "throw-while-computing") {
    if (odd) {
      fail(ExitCode::kNumerical, "loss is not finite");
    }
    sleep_s(60);
  } else if (way == "late") {
    world.set_timeout_s(1);
    if (odd) {
      sleep_s(60);
    }
    collectives.all_reduce(data);
    collectives.stream().synchronize();
  } else if (way == "late-in-split") {  // the other half waits for this one, with more patience
    const auto half = collectives.split(std::vector<int>{0, 1, 0, 1});
    world.set_timeout_s(world.rank() % 2 == kOdd % 2 ? 1 : 20);
    if (odd) {
      sleep_s(60);
    }
    half->all_reduce(data);
    control.barrier();
  } else if (way == "other-size") {
    collectives.all_reduce(odd ? data.slice(0, data.elements() / 2) : data);
    collectives.stream().synchronize();
  } else if (way == "other-collective") {
    world.set_timeout_s(1);
    if (odd) {
      collectives.all_gather(data.slice(0, data.elements() / 2), data);
    } else {
      collectives.all_reduce(data);
    }
    collectives.stream().synchronize();
  } else if (way == "leave") {
    if (odd) {
      std::_Exit(7);
    }
    control.barrier();
  } else if (way != "nothing") {
    fail(ExitCode::kConfig, "unknown way to end: " + way);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Memory memory(Device::kCpu);  // outlives the world, whose worker may hold tensors
  World world;
  try {
    std::cout << str("pid ", getpid(), "\n") << std::flush;
    const Tensor data = Tensor::zeros(memory, {100000}, DType::kF32, MemoryClass::kGradients);
    misbehave(world, argc > 1 ? argv[1] : "nothing", data);
    world.finish();
    return 0;
  } catch (const Error& error) {
    std::cerr << str("[rank ", world.rank(), "] ", error.what(), "\n");
    world.abort(error.code());
  }
}
