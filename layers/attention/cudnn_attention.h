// Attention by cuDNN, as another formulation of what attention.h computes: kernels.attention =
// cudnn. For bf16 and fp16 on a GPU, as far as cuDNN has engines for the sizes.
//
// Never run on a GPU: the emulated GPU of tests/simt does not execute cuDNN. It was only tested, by
// asking cuDNN 9.19 without a GPU, that the graphs have engines for sm_80 and sm_90.
//
// The graphs are built by NVIDIA's library of headers, cudnn-frontend. Backward asks for the
// deterministic algorithm, which gives the same bits every time. For that, cuDNN keeps the
// gradients of all scores: 2 * batch * heads * length^2 bytes, 1.6 GB for GPT-2 124M and 64 texts
// of 1024 tokens.
//
// cuDNN cannot add to a gradient. Where qkv already has one, which it has in no model here, own
// kernels compute the backward pass.
//
// Errors: kConfig where cuDNN is missing or has no engine for the sizes.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "layers/attention/attention.h"
#include "src/autograd/gate.h"

namespace tandem::cudnn_attention {

bool in_build();  // whether the headers of cuDNN and cudnn-frontend were there
// Why cuDNN cannot be used, in one line; empty if it can.
std::string why_missing();
std::string version();  // "91900", of a cuDNN that is not missing

struct Problem {
  DType dtype = DType::kBf16;  // or kFp16
  int64_t batch = 1, length = 1;
  HeadLayout layout{};
  std::string text() const;  // "bf16 [8, 1024, 2304] with 12 heads, 12 key-value heads of width 64"
  // <dy, y> of each row in f32, a part of the workspace of backward that the headers ask for.
  int64_t delta_bytes() const;
  auto operator<=>(const Problem&) const = default;
};

// Workspace on the GPU in use. The first call for a problem and a pass compiles kernels, which
// takes about a second.
int64_t workspace_bytes(const Problem& problem, Pass pass);
// The same without cuDNN and without a GPU, for estimates: what cuDNN 9.19 takes, within 1 KiB.
int64_t estimated_workspace_bytes(const Problem& problem, Pass pass);

// Enqueue on a CUDA stream what kernels::attention_forward and kernels::attention_backward compute,
// the latter with beta = 0. They launch no kernel of Tandem, so they are plain C++.
// Addresses are multiples of 16 bytes.
void forward(CUstream_st* stream, const Problem& problem, const void* qkv, void* y, float* log_sum,
             void* workspace);
void backward(CUstream_st* stream, const Problem& problem, const void* dy, const void* qkv,
              const void* y, const float* log_sum, void* dqkv, void* workspace);

// A GPU that need not be there: its compute capability (90 for sm_90), and cuDNN's JSON about it.
struct Gpu {
  int capability;
  std::string json;
};
// Throws unless cuDNN has an engine for the problem on such a GPU that takes at most so much
// workspace, without delta_bytes(). A driver library must have been loaded; CUDA's stub suffices.
void require_engine(const Problem& problem, Pass pass, const Gpu& gpu,
                    int64_t most_workspace_bytes);

}  // namespace tandem::cudnn_attention
