// What tests compare with transformers and Pillow, or write into a dataset, on standard output:
//
// - logits PATH TOKEN...: of a checkpoint or a Hugging Face model; f32 [tokens, model.vocab]
// - weights PATH: all its parameters as f32, in forward order
// - fitted FILE C H W: a JPEG or PNG file in this size; u8 [C, H, W]
// - hash FILE: the content hash that a dataset must have
#include <cstdio>
#include <filesystem>

#include "comm/transport/local_control.h"
#include "layers/models/transformer.h"
#include "src/data/dataset.h"
#include "src/io/file.h"
#include "src/prepare/images/fit.h"
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

void fit(const std::string& file, const std::vector<int32_t>& shape) {
  Image image;
  const std::string problem = decode_image(read_file(file), &image);
  require(problem.empty(), problem.c_str());
  image = fitted(image, shape.at(0), shape.at(1), shape.at(2));
  std::fwrite(image.pixels.data(), 1, image.pixels.size(), stdout);
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  try {
    tandem::require(argc > 2, "tandem_interop logits|weights|fitted|hash PATH NUMBER...");
    const std::string what = argv[1];
    std::vector<int32_t> numbers;
    for (int i = 3; i < argc; ++i) {
      numbers.push_back(std::stoi(argv[i]));
    }
    if (what == "hash") {
      std::printf("%s", tandem::compute_content_hash(argv[2]).c_str());
    } else if (what == "fitted") {
      tandem::fit(argv[2], numbers);
    } else {
      tandem::run(what, tandem::resolve_checkpoint(argv[2]), numbers);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tandem_interop: %s\n", error.what());
    return 1;
  }
}
