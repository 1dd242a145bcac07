// copy: what memory gives, and the largest rate of products. gemm: the matrix products of a model.
#include "src/device/copy.h"
#include "src/estimate/cost_model.h"
#include "src/kernels/elementwise.h"
#include "src/kernels/reduce.h"
#include "tests/bench/gpu/cases.h"

namespace tandem::bench {

namespace {

// Seconds of one product as its layer computes it, a pass for GELU included.
double product_seconds(Bench& bench, const ProductShape& shape) {
  const DType type = bench.options.precision;
  const auto matrix = [&](int64_t rows, int64_t columns, bool transposed) {
    return Product::Operand{
        .data = bench.random(transposed ? Shape{columns, rows} : Shape{rows, columns}, type),
        .transposed = transposed};
  };
  const Shape d = {shape.m, shape.n};
  Product product{.m = shape.m,
                  .n = shape.n,
                  .k = shape.k,
                  .a = matrix(shape.m, shape.k, shape.a_transposed),
                  .b = matrix(shape.k, shape.n, shape.b_transposed),
                  .d = {.data = bench.random(d, shape.wide ? DType::kF32 : type)},
                  .epilogue = shape.epilogue};
  if (shape.bias) {
    product.bias = bench.random({shape.n}, type);
  }
  if (shape.epilogue != Epilogue::kNone) {
    product.gelu_input = bench.random(d, type);
  }
  return bench.seconds([&] { multiply(bench.stream, product); });
}

// A product whose three matrices have about half the memory of the arrays: 8192 for 1 GiB.
int64_t square_side(int64_t mib) {
  int64_t side = 1;
  while (4 * side * side * 16 <= mib << 20) {
    side *= 2;
  }
  return side;
}

}  // namespace

void copy_bench(const Options& options) {
  Bench bench(options);
  const int64_t elements = (options.mib << 20) / size_of(DType::kF32);
  const Tensor from = bench.random({elements}, DType::kF32);
  const Tensor to = bench.random({elements}, DType::kF32);
  const Tensor sums =
      Tensor::empty(bench.memory, {1 + kReduceScratch}, DType::kF64, MemoryClass::kWorkspace);
  const double bytes = static_cast<double>(from.bytes());
  std::printf("%s, arrays of %ld MiB\n", bench.device_name().c_str(), options.mib);
  const Table table({"", "us", "TB/s", "of the data sheet"});
  const auto row = [&](const char* name, double moved, const std::function<void()>& work) {
    const double s = bench.seconds(work);
    table.row(name, {number(s * 1e6), rate(moved, s),
                     bench.gpu() ? percent(moved / s / bench.gpu()->bytes_per_s) : "-"});
  };
  row("copy, by the device", 2 * bytes, [&] { copy(bench.stream, from, to); });
  row("copy, by a kernel", 2 * bytes, [&] {
    on_device(bench.stream, {}, [&](auto device) {
      kernels::convert(device, elements, from.data<float>(), to.data<float>());
    });
  });
  row("read", bytes, [&] {
    on_device(bench.stream, {}, [&](auto device) {
      squared_norm(device, from.data<float>(), elements, sums.data<double>(),
                   sums.data<double>() + 1, false);
    });
  });
  row("write", bytes, [&] {
    on_device(bench.stream, {},
              [&](auto device) { kernels::fill(device, elements, to.data<float>(), 1.5F); });
  });
  if (options.device == Device::kCuda) {
    const HostLink link = measure_host_link(bench, from.bytes());
    for (const auto& [name, rate_here] : {std::pair{"from the host", link.to_device},
                                          {"to the host", link.to_host},
                                          {"each way, both at once", link.both}}) {
      table.row(name, {number(bytes / rate_here * 1e6), rate(rate_here, 1), "-"});
    }
  }
  const int64_t side = square_side(options.mib);
  const ProductShape square{.m = side, .n = side, .k = side};
  const double s = product_seconds(bench, square);
  table.row(str("product of ", side, " cubed, TFLOP/s"),
            {number(s * 1e6), rate(square.flops(), s),
             bench.gpu() ? percent(square.flops() / s / bench.gpu()->peak_flops(options.precision))
                         : "-"});
}

void gemm_bench(const Options& options) {
  const Case model = transformer_of(options);
  Bench bench(options);
  struct Timed {
    std::string name;
    ProductShape shape;
    double calls, flops;
    bool counts;         // in the sum over a step
    double first_s = 0;  // with cuBLASLt's first suggestion
  };
  std::vector<Timed> all;
  for (const OpCost& op : transformer_costs(*model.transformer, model.batch, options.precision)) {
    if (op.product) {
      const bool gelu = op.product->epilogue != Epilogue::kNone;
      all.push_back({op.name + (gelu ? ", with GELU" : ""), *op.product, op.calls, op.flops, true});
      if (gelu) {
        ProductShape alone = *op.product;
        alone.epilogue = Epilogue::kNone;
        all.push_back({op.name + ", without", alone, op.calls, op.flops, false});
      }
    }
  }
  if (options.choose) {
    const ChoiceRecorder recorder;
    for (Timed& product : all) {
      product.first_s = product_seconds(bench, product.shape);
    }
    bench.choose(recorder.noted());
  }
  std::printf("%s, %s, %s, batch %ld, vocabulary %ld\n", bench.device_name().c_str(),
              model.name.c_str(), std::string(name_of(options.precision)).c_str(), model.batch,
              model.transformer->vocab);
  const Table table(
      {"product", "m", "n", "k", "us", "first us", "TFLOP/s", "of the peak", "times", "ms a step"},
      44);
  double total_s = 0, total_flops = 0;
  for (const Timed& product : all) {
    const double s = product_seconds(bench, product.shape);
    table.row(product.name,
              {str(product.shape.m), str(product.shape.n), str(product.shape.k), number(s * 1e6),
               options.choose ? number(product.first_s * 1e6) : "-", rate(product.flops, s),
               bench.gpu() ? percent(product.flops / s / bench.gpu()->peak_flops(options.precision))
                           : "-",
               number(product.calls), number(product.calls * s * 1e3)});
    total_s += product.counts ? product.calls * s : 0;
    total_flops += product.counts ? product.calls * product.flops : 0;
  }
  table.row("all of a step, with GELU",
            {"", "", "", "", "", rate(total_flops, total_s), "", "", number(total_s * 1e3)});
}

}  // namespace tandem::bench
