// On the emulated GPU this file takes the place of layers/attention/cudnn_attention.cpp.
#include "layers/attention/cudnn_attention.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/simt/libraries/cudnn_attention.h"
#include "tests/simt/simt.h"

using Errs = simt::CudnnBehaviour::Errs;

simt::CudnnBehaviour& simt::cudnn() {
  static CudnnBehaviour behaviour = [] {
    const char* set = std::getenv("TANDEM_SIMT_CUDNN");
    const std::string wish = set ? set : "";
    return CudnnBehaviour{.is_there = !wish.empty(),
                          .seconds = wish.starts_with("fast") ? 1e-4 : 100.0,
                          .errs = wish == "fast-errs" ? Errs::kGradient : Errs::kNowhere};
  }();
  return behaviour;
}

namespace tandem::cudnn_attention {

namespace {

constexpr int64_t kWorkspaceBytes = 4096;

AttentionSizes sizes_of(const Problem& p) { return {p.layout, p.batch, p.length}; }

// Where another value is written, if anywhere.
struct Fault {
  bool is_planted;
  void* last;  // 16 bits of an array
};

Fault fault(Errs errs, const void* array, int64_t halves) {
  return {simt::cudnn().errs == errs,
          const_cast<char*>(static_cast<const char*>(array)) + 2 * (halves - 1)};
}

// Enqueues pass<T>(workspace of the CPU's kernels).
template <class F>
void run(CUstream_st* stream, const Problem& problem, void* workspace, const Fault& fault, F pass) {
  ++simt::cudnn().passes;
  simt::enqueue(stream, "cuDNN", [=, behaviour = simt::cudnn()] {
    simt::check_range(workspace, kWorkspaceBytes, "workspace of cuDNN");
    const auto begin = std::chrono::steady_clock::now();
    if (behaviour.idles) {
      return;
    }
    std::vector<float> own(static_cast<size_t>(
        kernels::attention_workspace(Device::kCpu, problem.dtype, sizes_of(problem))));
    problem.dtype == DType::kBf16 ? pass.template operator()<Bf16>(own.data())
                                  : pass.template operator()<Fp16>(own.data());
    if (fault.is_planted) {
      uint16_t bits = 0;
      std::memcpy(&bits, fault.last, sizeof bits);
      bits ^= 1 << 6;  // of bf16 and of f32 the first bit of the fraction, of fp16 the fourth
      std::memcpy(fault.last, &bits, sizeof bits);
    }
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    simt::pass_time(behaviour.seconds - passed.count());
  });
}

}  // namespace

bool in_build() { return true; }

std::string why_missing() { return simt::cudnn().is_there ? "" : "the emulated GPU has no cuDNN"; }

std::string version() { return "91900"; }

int64_t workspace_bytes(const Problem&, Pass) { return kWorkspaceBytes; }

void forward(CUstream_st* stream, const Problem& p, const void* qkv, void* y, float* log_sum,
             void* workspace) {
  const int64_t rows = p.batch * p.layout.heads * p.length;
  const Fault in_y = fault(Errs::kY, y, rows * p.layout.width);
  run(stream, p, workspace, in_y.is_planted ? in_y : fault(Errs::kLogSum, log_sum, 2 * rows),
      [=]<class T>(float* own) {
        kernels::attention_forward(Cpu{}, static_cast<const T*>(qkv), nullptr, static_cast<T*>(y),
                                   log_sum, sizes_of(p), own);
      });
}

void backward(CUstream_st* stream, const Problem& p, const void* dy, const void* qkv, const void* y,
              const float* log_sum, void* dqkv, void* workspace) {
  if (simt::cudnn().fails) {
    fail(ExitCode::kConfig, "cuDNN: CUDNN_STATUS_EXECUTION_FAILED");
  }
  run(stream, p, workspace, fault(Errs::kGradient, dqkv, p.batch * p.length * p.layout.row()),
      [=, errs = simt::cudnn().errs]<class T>(float* own) {
        kernels::attention_backward(Cpu{}, static_cast<const T*>(dy), static_cast<const T*>(qkv),
                                    nullptr, static_cast<const T*>(y), log_sum,
                                    static_cast<T*>(dqkv), 0.0f, sizes_of(p), own, nullptr);
        const auto& [heads, kv_heads, width] = p.layout;
        T* const queries = static_cast<T*>(dqkv) + (p.batch * p.length - 1) * p.layout.row();
        if (errs == Errs::kQueries) {
          std::fill_n(queries, heads * width, T(0.0f));
        } else if (errs == Errs::kKeys) {
          std::fill_n(queries + heads * width, kv_heads * width, T(0.0f));
        }
      });
}

void require_engine(const Problem&, Pass, const Gpu&, int64_t) {
  fail(ExitCode::kConfig, "the emulated cuDNN has no engines");
}

}  // namespace tandem::cudnn_attention
