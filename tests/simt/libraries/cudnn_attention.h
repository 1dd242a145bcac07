// What tests can choose about the emulated cuDNN. Its attention is that of Tandem's CPU kernels.
#pragma once

namespace simt {

struct CudnnBehaviour {
  bool is_there = false;
  double seconds = 1e-4;  // of a pass by the clock of events
  bool fails = false;     // throws in backward
  bool idles = false;     // writes nothing
  // Where one element gets another value: y, log_sum or dqkv; or the gradients of the last
  // position's queries or keys, which become zero.
  enum class Errs { kNowhere, kY, kLogSum, kGradient, kQueries, kKeys } errs = Errs::kNowhere;
  int passes = 0;  // that were asked for
};
CudnnBehaviour& cudnn();

}  // namespace simt
