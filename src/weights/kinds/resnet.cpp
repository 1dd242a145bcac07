#include "layers/models/resnet.h"

#include "src/weights/kinds/kinds.h"

namespace tandem {

namespace {

// Names of torchvision's ResNet.
const ForeignNames kTorchvision{.words = {{"stem.conv", "conv1"},
                                          {"stem.bn", "bn1"},
                                          {"stages.0.", "layer1."},
                                          {"stages.1.", "layer2."},
                                          {"stages.2.", "layer3."},
                                          {"conv_", "conv"},
                                          {"bn_", "bn"},
                                          {"head.", "fc."},
                                          {".gain", ".weight"}}};

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
  const ForeignNames* foreign_names() const override { return &kTorchvision; }
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
