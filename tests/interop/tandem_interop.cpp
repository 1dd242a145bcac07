// What tests/interop compares with transformers: logits and weights of a checkpoint, or of a
// Hugging Face model, as f32 on standard output.
//
//     tandem_interop logits PATH TOKEN...     logits [tokens, model.vocab]
//     tandem_interop weights PATH             all parameters, in forward order
#include <cstdio>
#include <filesystem>

#include "comm/transport/local_control.h"
#include "layers/models/transformer.h"
#include "src/weights/stored_weights.h"

namespace tandem {
namespace {

void print(const Tensor& values) {
  require(std::fwrite(values.raw(), size_of(values.dtype()), values.elements(), stdout) ==
              static_cast<size_t>(values.elements()),
          "cannot write");
}

void run(const std::string& what, const std::string& checkpoint, std::vector<int32_t> tokens) {
  LocalControl control;
  Memory memory(Device::kCpu);
  Stream stream = Stream::compute(Device::kCpu);
  Transformer model(*config_of(checkpoint).model->transformer());
  const std::unique_ptr<TensorSource> weights = open_weights(control, checkpoint, model);
  for (Parameter* parameter : parameters_of(model)) {
    parameter->value =
        Tensor::empty(memory, parameter->shape, DType::kF32, MemoryClass::kParameters);
    const Range all{0, parameter->shape.elements()};
    visit_pieces(*parameter, all, [&](const Piece& piece, Range, int64_t begin) {
      const int64_t count = piece.slice.elements();
      weights->read({"param/" + piece.name, piece.slice, 0,
                     parameter->value.reshape({all.end}).slice(begin, count)});
    });
    if (what == "weights") {
      print(parameter->value);
    }
  }
  if (what == "logits") {
    const Tensor input =
        Tensor::empty(memory, {1, std::ssize(tokens)}, DType::kI32, MemoryClass::kData);
    std::ranges::copy(tokens, input.data<int32_t>());
    Context context{.stream = stream, .memory = memory};
    print(model.logits(context, input).value());
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  try {
    tandem::require(argc > 2, "tandem_interop logits|weights PATH TOKEN...");
    std::vector<int32_t> tokens;
    for (int i = 3; i < argc; ++i) {
      tokens.push_back(std::stoi(argv[i]));
    }
    tandem::run(argv[1], tandem::resolve_checkpoint(argv[2]), tokens);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tandem_interop: %s\n", error.what());
    return 1;
  }
}
