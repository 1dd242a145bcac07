// The cost model against a floor table that was computed by hand, and against what the layers
// charge in a dry run.
#include <gtest/gtest.h>

#include <map>

#include "layers/models/transformer.h"
#include "src/estimate/cost_model.h"
#include "src/machine/gpu_table.h"
#include "tests/step/dry_step.h"

namespace tandem::testing {
namespace {

// GPT-2 with the vocabulary padded to a multiple of 128.
TransformerConfig gpt2(int64_t layers, int64_t heads, int64_t width) {
  return resolved(
      {.vocab = 50304, .context = 1024, .layers = layers, .heads = heads, .width = width});
}

constexpr int64_t kBatch = 64;
constexpr double kRows = 65536, kTera = 1e12, kGiga = 1e9;
constexpr double kStream = kRows * 768 * 2;  // bytes of the residual stream of GPT-2 124M

// The sum over several ops of a step.
struct Sum {
  double tflop = 0, floor_gb = 0, schedule_gb = 0, small_gb = 0, launches = 0;
};
Sum sum_of(const std::vector<OpCost>& ops, const std::vector<std::string>& names) {
  Sum sum;
  size_t found = 0;
  for (const OpCost& op : ops) {
    if (names.empty() || std::ranges::count(names, op.name) > 0) {
      ++found;
      sum.tflop += op.calls * op.flops / kTera;
      sum.floor_gb += op.calls * op.floor_bytes / kGiga;
      sum.schedule_gb += op.calls * op.schedule_bytes / kGiga;
      sum.small_gb += op.calls * op.small_bytes / kGiga;
      sum.launches += op.calls * op.launches;
    }
  }
  EXPECT_TRUE(names.empty() || found == names.size()) << names.front();
  return sum;
}

double floor_ms(const std::vector<OpCost>& ops, const Speed& ceilings) {
  double seconds = 0;
  for (const OpCost& op : ops) {
    seconds += floor_seconds(op, ceilings);
  }
  return seconds * 1e3;
}

std::vector<std::string> backward_of(const std::string& layer) {
  return {layer + " weight gradient", layer + " input gradient"};
}

// A row of the table: TFLOP to two digits after the point, and GB to one. So 0.005 and 0.05 are its
// rounding. The table leaves out weights, their gradients and numbers for each row.
struct Row {
  std::vector<std::string> ops;
  double tflop, gb;
  double added_gb = 0;  // what the table counts and the model's floor does not
};

TEST(CostModel, IsTheFloorTable) {
  const auto ops = transformer_costs(gpt2(12, 12, 768), kBatch, DType::kBf16);
  const double head_weight = 50304.0 * 768 * 2 / kGiga;
  const std::vector<Row> table = {
      {{"QKV forward"}, 2.78, 4.8},
      {backward_of("QKV"), 5.57, 9.7},
      {{"attention projection forward"}, 0.93, 2.4},
      {backward_of("attention projection"), 1.86, 4.8},
      {{"FC1 forward"}, 3.71, 10.9},
      {backward_of("FC1"), 7.42, 12.1},
      {{"FC2 forward"}, 3.71, 6.0},
      {backward_of("FC2"), 7.42, 16.9},
      // Of the head the table counts the weight, too, once in each direction.
      {{"head forward"}, 5.06, 6.8, head_weight},
      {backward_of("head"), 10.13, 13.5, head_weight},
      {{"attention forward"}, 1.24, 4.8},
      {{"attention backward"}, 3.09, 9.7},
      // The table has 25 equal norms. But the first adds nothing, which saves two passes over the
      // residual stream; the last one's backward has one tensor fewer to read.
      {{"norm forward, the first", "residual add + norm forward"}, 0, 10.1, 2 * kStream / kGiga},
      {{"norm backward", "norm backward, the last"}, 0, 10.1, kStream / kGiga},
      {{"cross-entropy"}, 0, 13.2},
      {{"embedding forward", "embedding backward"}, 0, 0.4},
      {{"AdamW"}, 0, 3.7},
      {{"gradient norm"}, 0, 0.5},
  };
  size_t rows = 0;
  for (const Row& row : table) {
    const Sum sum = sum_of(ops, row.ops);
    EXPECT_NEAR(sum.tflop, row.tflop, 0.005) << row.ops.front();
    EXPECT_NEAR(sum.floor_gb + row.added_gb, row.gb, 0.05) << row.ops.front();
    rows += row.ops.size();
  }
  // All other ops of the model are those that a perfect fusion removes.
  size_t removed = 0;
  for (const OpCost& op : ops) {
    if (op.floor_bytes == 0) {
      EXPECT_EQ(op.flops, 0) << op.name;
      ++removed;
    }
  }
  // GELU in both directions, the bias of QKV, and the order of tokens.
  EXPECT_EQ(removed, 4U);
  EXPECT_EQ(rows + removed, ops.size());
}

// The table's ceilings: 790 TFLOP/s and 4.3 TB/s. Its total of 75.8 ms is rounded to 0.05, and made
// of 18 rows that are rounded to 0.005. It has 3 passes over the residual stream more (see above),
// and leaves out `small_bytes`, which the model's norms, cross-entropy and embedding have.
TEST(CostModel, HasTheTablesTotal) {
  const Speed ceilings = gpu_named("h200")->ceilings();
  EXPECT_NEAR(ceilings.flops_per_s, 790e12, 1e3);
  EXPECT_NEAR(ceilings.bytes_per_s, 4.3e12, 1e3);
  const auto ops = transformer_costs(gpt2(12, 12, 768), kBatch, DType::kBf16);
  double small = 0;
  for (const OpCost& op : ops) {
    const bool bound_by_bytes = op.flops == 0 && op.floor_bytes > 0;
    small += bound_by_bytes ? op.calls * op.small_bytes : 0;
  }
  const double table_ms = floor_ms(ops, ceilings) + (3 * kStream - small) / 4.3e9;
  EXPECT_NEAR(table_ms, 75.8, 0.05 + 18 * 0.005);
  // The sum of all products in the table.
  double products = 0;
  for (const OpCost& op : ops) {
    products += op.group == "product" ? op.calls * op.flops / kTera : 0;
  }
  EXPECT_NEAR(products, 48.59, 0.005);
}

// Larger models, at the same ceilings. The table of targets gives floors to 0.1 ms; 1 % covers the
// differences that are named above, which grow with the model.
TEST(CostModel, HasTheFloorsOfLargerModels) {
  const Speed ceilings = gpu_named("h200")->ceilings();
  const auto ms = [&](const TransformerConfig& config, int64_t batch) {
    return floor_ms(transformer_costs(config, batch, DType::kBf16), ceilings);
  };
  EXPECT_NEAR(ms(gpt2(24, 16, 1024), 32), 105.8, 1.06);
  EXPECT_NEAR(ms(gpt2(36, 20, 1280), 16), 115.5, 1.16);
  EXPECT_NEAR(ms(gpt2(48, 25, 1600), 16), 227.5, 2.28);
  const TransformerConfig llama = resolved({.style = kLlama,
                                            .vocab = 128256,
                                            .context = 2048,
                                            .layers = 16,
                                            .heads = 32,
                                            .kv_heads = 8,
                                            .width = 2048,
                                            .ffn_width = 8192});
  EXPECT_NEAR(ms(llama, 8), 188.6, 1.89);
}

// Where our kernels make more passes than the floor, in passes over the residual stream (A).
TEST(CostModel, NamesThePassesOfOurScheduleBeyondTheFloor) {
  const auto ops = transformer_costs(gpt2(12, 12, 768), kBatch, DType::kBf16);
  std::map<std::string, double> extra;  // in A, of one call
  for (const OpCost& op : ops) {
    const double passes = (op.schedule_bytes - op.floor_bytes) / kStream;
    if (passes != 0) {
      extra[op.name] = passes;
    }
  }
  const double embedding = 8.0 * 50304 * 768 / kStream;
  const std::map<std::string, double> expected = {
      // The products leave GELU to passes of their own, which read again what was just written.
      {"FC1 forward", -4},
      {"GELU forward", 8},
      {"FC2 input gradient", -4},
      {"GELU backward", 12},
      // Sums over 64 rows each, in f32, are written and read.
      {"QKV bias gradient", 8.0 * 1024 * 2304 / kStream},
      // Two digits of the tokens, each read and written.
      {"token order", 4.0 * 64 * 1024 * 4 / kStream},
      // Gradients of rows are added in f32: 8 bytes each, and as many rows as the vocabulary has.
      {"embedding backward", embedding},
  };
  ASSERT_EQ(extra.size(), expected.size());
  for (const auto& [name, passes] : expected) {
    EXPECT_NEAR(extra[name], passes, 1e-9) << name;
  }
}

DryClock charged(const TransformerConfig& config, int64_t batch, const Speed& speed = {},
                 int64_t document_length = 0) {
  Transformer model(config);
  DryStep step(model, batch, config.context, speed, {.dtype = DType::kBf16}, document_length);
  step.run();
  return step.stream.clock();
}

// The layers charge the same operations to the clock of `tandem estimate`: to the last one.
TEST(CostModel, CountsTheOperationsThatTheLayersCharge) {
  struct Case {
    TransformerStyle style;
    int64_t head_width = 0;
    bool qkv_bias = false, attention_bias = false;
    int64_t sliding_window = 0;
    bool qk_norm = false;
  };
  for (const Case& of :
       {Case{kGpt2}, {kLlama}, {kLlama, 10, true}, {kLlama, 6, false, true, 5, true}}) {
    const bool llama = of.style.is_rotary;
    for (const bool tied : {false, true}) {
      const TransformerConfig config = resolved({.style = of.style,
                                                 .vocab = 96,
                                                 .context = 12,
                                                 .layers = 3,
                                                 .heads = 4,
                                                 .kv_heads = llama ? 2 : 0,
                                                 .head_width = of.head_width,
                                                 .width = 32,
                                                 .tie_embeddings = tied,
                                                 .qkv_bias = of.qkv_bias,
                                                 .attention_bias = of.attention_bias,
                                                 .qk_norm = of.qk_norm,
                                                 .sliding_window = of.sliding_window});
      double products = 0, attention = 0;
      for (const OpCost& op : transformer_costs(config, 5, DType::kBf16)) {
        (op.group == "attention" ? attention : products) += op.calls * op.flops;
      }
      const Work work = charged(config, 5).work;
      EXPECT_EQ(products, work.flops) << "llama " << llama << ", tied " << tied;
      EXPECT_EQ(attention, work.attention);
      Transformer model(config);
      double parameters = 0;
      for (const Parameter* parameter : parameters_of(model)) {
        parameters += static_cast<double>(parameter->shape.elements());
      }
      EXPECT_EQ(transformer_parameters(config), parameters);
    }
  }
}

// In documents of 256 tokens on average, queries of a row of 1024 see a fourth of the keys.
TEST(CostModel, CountsTheKeysThatDocumentsSee) {
  const TransformerConfig config = gpt2(2, 4, 256);
  const auto attention = [&](int64_t document_length) {
    double flops = 0;
    for (const OpCost& op : transformer_costs(config, 5, DType::kBf16, document_length)) {
      flops += op.group == "attention" ? op.calls * op.flops : 0;
    }
    EXPECT_EQ(flops, charged(config, 5, {}, document_length).work.attention);
    return flops;
  };
  EXPECT_EQ(attention(256), attention(0) / 4);
  EXPECT_EQ(attention(2 * config.context), attention(0));
}

// All bytes together are within a twentieth of what our kernels read and write, and so are a long
// text's, of which attention and products have most. Dropout is off.
TEST(CostModel, ChargesAboutTheBytesThatOurKernelsMove) {
  const TransformerConfig llama = resolved({.style = kLlama,
                                            .vocab = 32000,
                                            .context = 8192,
                                            .layers = 4,
                                            .heads = 32,
                                            .kv_heads = 8,
                                            .width = 4096,
                                            .ffn_width = 14336});
  for (const auto& [config, batch] : {std::pair{gpt2(12, 12, 768), kBatch}, {llama, int64_t{1}}}) {
    double bytes = 0;
    for (const OpCost& op : transformer_costs(config, batch, DType::kBf16)) {
      bytes += op.calls * (op.schedule_bytes + op.small_bytes);
    }
    EXPECT_NEAR(charged(config, batch).work.bytes / bytes, 1, 1.0 / 20) << config.context;
  }
}

// Attention takes the time of its own rate.
TEST(CostModel, AttentionHasItsOwnRate) {
  const Speed speed{
      .flops_per_s = INFINITY, .bytes_per_s = INFINITY, .attention_flops_per_s = 3e12};
  // Half a square of 1024 x 1024 scores, a multiply-add counts two; 7 products, 2 layers, 2 texts.
  EXPECT_DOUBLE_EQ(charged(gpt2(2, 4, 256), 2, speed).now_s,
                   7 * 1024.0 * 1024 * 256 * 2 * 2 / 3e12);
}

// With its bytes, attention of n tokens and heads of width d reaches what is published, in TFLOP/s:
// FlashAttention-2, of whose rate our kernels have 0.9 x 7 / 9; and cuDNN, of which the time of
// both passes is the sum of theirs. One rate for each width stands for all lengths: it may be off
// by a seventh.
TEST(GpuTable, AttentionReachesWhatIsPublished) {
  constexpr auto kFlash = AttentionKernels::kOwn, kCudnn = AttentionKernels::kCudnn;
  const auto both = [](double forward, double backward) {
    return 7 / (2 / forward + 5 / backward);
  };
  struct Published {
    const char* gpu;
    AttentionKernels kernels;
    double n, d, tflops;
  };
  for (const Published& row : {Published{"a100-80", kFlash, 1024, 64, 119},
                               {"a100-80", kFlash, 2048, 64, 140},
                               {"a100-80", kFlash, 1024, 128, 133},
                               {"h100", kFlash, 1024, 64, 192},
                               {"h100", kFlash, 2048, 64, 232},
                               {"h100", kFlash, 1024, 128, 221},
                               {"h200", kCudnn, 2048, 128, both(484, 370)},
                               {"h200", kCudnn, 4096, 128, both(591, 474)},
                               {"h200", kCudnn, 8192, 128, both(644, 541)},
                               {"h200", kCudnn, 32768, 128, both(688, 581)}}) {
    const Speed speed =
        gpu_named(row.gpu)->reached(DType::kBf16, row.kernels, static_cast<int64_t>(row.d));
    const double rate = speed.attention_flops_per_s / (row.kernels == kFlash ? 0.9 * 7 / 9 : 1);
    // A query of one head meets half of n keys. Forward reads q, k and v and writes y; backward
    // reads these and dy, and writes dq, dk and dv.
    const double flops = 7 * row.n * row.d, bytes = 12 * row.d * 2;
    const double reached = flops / (flops / rate + bytes / speed.bytes_per_s) / kTera;
    EXPECT_NEAR(reached / row.tflops, 1, 1.0 / 7) << row.gpu << " " << row.n << " " << row.d;
  }
}

TEST(GpuTable, AttentionWithoutTensorCoresIsSlow) {
  const auto rate = [](DType dtype, int64_t width) {
    return gpu_named("a100-40")
        ->reached(dtype, AttentionKernels::kAuto, width)
        .attention_flops_per_s;
  };
  EXPECT_DOUBLE_EQ(rate(DType::kBf16, 80), 0.325 * 19.5e12);
  EXPECT_DOUBLE_EQ(rate(DType::kF32, 64), 0.325 * 19.5e12);
  EXPECT_DOUBLE_EQ(rate(DType::kBf16, 64), 0.7 * 164e12);
  EXPECT_DOUBLE_EQ(rate(DType::kFp16, 128), 0.7 * 189e12);
}

// 700 W at the A100's energy for an operation, less the 30 % that 5 nm save: a sum made by hand.
TEST(GpuTable, LongRunsAreLimitedByPower) {
  for (const char* name : {"h100", "h200"}) {
    EXPECT_NEAR(gpu_named(name)->sustained_flops(DType::kBf16), 675e12, 1e3);
    EXPECT_NEAR(gpu_named(name)->ceilings().flops_per_s, 790e12, 1e3);
    EXPECT_NEAR(gpu_named(name)->sustained_flops(DType::kF32), 67e12 * 790 / 989, 1e3);
  }
  EXPECT_NEAR(gpu_named("a100-40")->sustained_flops(DType::kBf16), 270e12, 1e3);
  EXPECT_NEAR(gpu_named("l4")->sustained_flops(DType::kBf16), 270e12 * 72 / 400 / 0.7, 1e3);
  EXPECT_NEAR(gpu_named("a10g")->sustained_flops(DType::kBf16), 70e12 * 270 / 312, 1e3);
  EXPECT_NEAR(gpu_named("l40s")->sustained_flops(DType::kBf16), 362e12 * 270 / 312, 1e3);
}

TEST(GpuTable, NamesOfCudaAreReadByWords) {
  const auto name = [](const char* cuda) {
    const GpuModel* gpu = gpu_with_cuda_name(cuda);
    return gpu ? gpu->name : "";
  };
  EXPECT_EQ(name("NVIDIA A100-SXM4-40GB"), "a100-40");
  EXPECT_EQ(name("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(name("NVIDIA A10G"), "a10g");
  EXPECT_EQ(name("NVIDIA L4"), "l4");
  EXPECT_EQ(name("NVIDIA L40S"), "l40s");
  EXPECT_EQ(name("NVIDIA L40"), "");
  EXPECT_EQ(name("NVIDIA H100 PCIe"), "");
  EXPECT_EQ(name("NVIDIA H200 NVL"), "");
}

}  // namespace
}  // namespace tandem::testing
