#include "layers/models/mlp.h"

#include "src/weights/kinds/kinds.h"

namespace tandem {

namespace {

struct MlpKind final : ModelKind {
  int64_t layers = 4, width = 128;

  void bind(Options& o) override {
    o.add("model.layers", layers, "hidden layers of an mlp", 1, 10000);
    o.add("model.width", width, "size of an mlp's hidden layers", 1, 1 << 20);
  }
  std::string description() const override { return str(layers, " layers, width ", width); }
  bool reads_text() const override { return false; }
  int64_t blocks() const override { return layers; }
  std::unique_ptr<Model> make(const DatasetInfo& data) const override {
    return std::make_unique<Mlp>(MlpConfig{.image_height = data.height,
                                           .image_width = data.width,
                                           .channels = data.channels,
                                           .layers = layers,
                                           .width = width,
                                           .classes = std::ssize(data.classes)});
  }
};

}  // namespace

void add_mlp(Kinds<ModelKind>& kinds) { kinds.add("mlp", MlpKind()); }

}  // namespace tandem
