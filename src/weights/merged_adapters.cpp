#include "src/weights/merged_adapters.h"

#include "src/product/product.h"

namespace tandem {

namespace {

std::string without_end(const std::string& name, std::string_view end) {
  return name.substr(0, name.size() - end.size());
}

}  // namespace

MergedAdapters::MergedAdapters(const TensorSource& weights, Transformer& model)
    : weights_(weights),
      scale_(model.config().lora.alpha / static_cast<double>(model.config().lora.rank)) {
  std::map<std::string, Piece> pieces;  // of adapters
  for (const Parameter* parameter : parameters_of(model)) {
    for (const Piece& piece : pieces_of(*parameter)) {
      if (is_adapter(piece.name)) {
        pieces[piece.name] = piece;
      }
    }
  }
  for (const Parameter* parameter : parameters_of(model)) {
    int64_t first = 0;
    for (const Piece& piece : pieces_of(*parameter)) {
      const std::string own = without_end(piece.name, ".weight");
      const std::string stack = without_end(parameter->name, ".weight");
      for (const auto& [layer, row] : {std::pair(own, int64_t{0}), {stack, first}}) {
        const auto a = pieces.find(str(layer, kLoraA)), b = pieces.find(str(layer, kLoraB));
        if (a != pieces.end()) {
          adapters_["param/" + piece.name] = {a->second, b->second, row};
          break;
        }
      }
      first += piece.slice.extent()[0];
    }
  }
}

void MergedAdapters::read(const Slab& slab) const {
  weights_.read(slab);
  if (const auto found = adapters_.find(slab.name); found != adapters_.end()) {
    require(slab.data.elements() == slab.slice.whole().elements(),
            "a weight with an adapter is read whole");
    add(found->second, slab.data);
  }
}

void MergedAdapters::add(const Adapter& adapter, const Tensor& weight) const {
  Memory host(Device::kCpu);
  const auto whole = [&](const Piece& piece) {
    const Shape& shape = piece.slice.whole();
    const Tensor data = Tensor::empty(host, shape, DType::kF32, MemoryClass::kData);
    weights_.read({"param/" + piece.name, shape, 0, data.reshape({shape.elements()})});
    return data;
  };
  const Tensor a = whole(adapter.a), b = whole(adapter.b);
  const int64_t rank = a.shape()[0], in = a.shape()[1], rows = weight.elements() / in;
  multiply(Stream::compute(Device::kCpu),
           {.m = rows,
            .n = in,
            .k = rank,
            .a = {.data = b.slice(adapter.first * rank, rows * rank), .stride = rank},
            .b = {.data = a},
            .d = {.data = weight, .stride = in},
            .alpha = scale_,
            .beta = 1});
}

}  // namespace tandem
