#include "layers/models/resnet.h"

#include "src/weights/kinds/kinds.h"

namespace tandem {

namespace {

struct ResNet final : ModelKind {
  int64_t depth = 20;

  void bind(Options& o) override {
    o.add("model.depth", depth, "layers of a resnet: 20, 32, 44 or 56", 8, 1202);
  }
  std::vector<std::string> problems() const override {
    return ResNetConfig{.depth = depth}.problems();
  }
  std::string description() const override { return str("depth ", depth); }
  bool reads_text() const override { return false; }
  int64_t blocks() const override { return depth; }
  std::unique_ptr<Model> make(const DatasetInfo& data) const override {
    return make_resnet({.depth = depth,
                        .in_channels = data.channels,
                        .height = data.height,
                        .width = data.width,
                        .classes = std::ssize(data.classes)});
  }
};

}  // namespace

void add_resnet(Kinds<ModelKind>& kinds) { kinds.add("resnet", ResNet()); }

}  // namespace tandem
