#include "layers/models/resnet.h"

#include <cmath>

#include "layers/batchnorm2d/batchnorm2d.h"
#include "layers/conv2d/conv2d.h"
#include "layers/linear/linear.h"
#include "layers/pool2d/pool2d.h"
#include "layers/shortcut/shortcut.h"

namespace tandem {

namespace {

constexpr std::array<int64_t, 3> kStageChannels = {16, 32, 64};

// A convolution, and a batch normalisation with the ReLU and residual addition fused into it.
class ConvNorm {
 public:
  ConvNorm(const std::string& conv, const std::string& norm, int64_t in, int64_t out,
           int64_t stride)
      : weight_{.name = conv + ".weight",
                .shape = {out, 3, 3, in},
                .init = Initializer::normal(std::sqrt(2.0 / static_cast<double>(9 * out))),
                .decay = true},
        norm_(norm, out),
        stride_(stride) {}

  Variable operator()(Context& context, const Variable& x, const BatchNormOptions& options) {
    return norm_(context, conv2d(context, x, weight_, stride_, 1), options);
  }
  std::vector<Parameter*> parameters() {
    std::vector<Parameter*> all = norm_.parameters();
    all.insert(all.begin(), &weight_);
    return all;
  }
  RunningStatistics& statistics() { return norm_.statistics(); }

 private:
  Parameter weight_;
  BatchNorm2d norm_;
  int64_t stride_;
};

struct ResidualBlock {
  ResidualBlock(const std::string& block_name, int64_t in, int64_t out)
      : name(block_name),
        stride(in == out ? 1 : 2),
        channels(out),
        first(name + ".conv_1", name + ".bn_1", in, out, stride),
        second(name + ".conv_2", name + ".bn_2", out, out, 1) {}

  Variable operator()(Context& context, const Variable& x) {
    const Variable inner = first(context, x, {.relu = true});
    const Variable skipped = stride == 1 ? x : shortcut(context, x, stride, channels);
    return second(context, inner, {.relu = true, .residual = &skipped});
  }

  std::string name;
  int64_t stride, channels;
  ConvNorm first, second;
};

class ResNet final : public Classifier {
 public:
  explicit ResNet(const ResNetConfig& config)
      : Classifier(config.classes),
        config_(config),
        stem_("stem.conv", "stem.bn", config.in_channels, kStageChannels[0], 1),
        head_(Linear::classifier("head", kStageChannels.back(), config.classes,
                                 Initializer::normal(0.01))) {
    fail_if_any(config.problems());
    int64_t in = kStageChannels[0];
    for (size_t stage = 0; stage < kStageChannels.size(); ++stage) {
      for (int64_t i = 0; i < (config.depth - 2) / 6; ++i) {
        residuals_.push_back(std::make_unique<ResidualBlock>(str("stages.", stage, ".", i), in,
                                                             kStageChannels[stage]));
        in = kStageChannels[stage];
      }
    }
    add_blocks();
  }

  std::vector<RunningStatistics*> statistics() override {
    std::vector<RunningStatistics*> all = {&stem_.statistics()};
    for (auto& block : residuals_) {
      all.push_back(&block->first.statistics());
      all.push_back(&block->second.statistics());
    }
    return all;
  }

  double flops_per_sample() const override {
    int64_t height = config_.height, width = config_.width;
    ProductFlops of;
    const auto of_pixels = [&](const Block& block) {
      return static_cast<double>(height * width) * of(block.parameters);
    };
    double flops = of_pixels(blocks().front());
    for (size_t i = 0; i < residuals_.size(); ++i) {
      const int64_t stride = residuals_[i]->stride;
      height = (height + stride - 1) / stride;
      width = (width + stride - 1) / stride;
      flops += of_pixels(blocks()[i + 1]);
    }
    return flops + of(blocks().back().parameters);
  }

 private:
  void add_blocks() {
    add({{"stem", parameters_in(stem_)}, [this](Context& context, const Flow& x) -> Flow {
           return {stem_(context, x[0], {.relu = true})};
         }});
    for (const auto& residual : residuals_) {
      add({{residual->name, parameters_in(residual->first, residual->second)},
           [&block = *residual](Context& context, const Flow& x) -> Flow {
             return {block(context, x[0])};
           }});
    }
    add({{"head", parameters_in(head_)}, [this](Context& context, const Flow& x) -> Flow {
           return {head_(context, global_average_pool(context, x[0]))};
         }});
  }

  ResNetConfig config_;
  ConvNorm stem_;
  std::vector<std::unique_ptr<ResidualBlock>> residuals_;
  Linear head_;
};

}  // namespace

std::vector<std::string> ResNetConfig::problems() const {
  if (depth >= 8 && (depth - 2) % 6 == 0) {
    return {};
  }
  return {str("model.depth = ", depth, " must be 6n + 2: 20, 32, 44, 56, ...")};
}

std::unique_ptr<Classifier> make_resnet(const ResNetConfig& config) {
  return std::make_unique<ResNet>(config);
}

}  // namespace tandem
