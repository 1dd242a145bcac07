// Runs a model on arrays that tests/parity/test_parity.py wrote, and writes back the loss, the
// gradients and the results of ten optimizer steps. That script compares them with PyTorch, and
// describes files and options. Several ranks cut a gpt or llama; arrays in files are whole.
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/world.h"
#include "layers/models/mlp.h"
#include "layers/models/resnet.h"
#include "layers/models/transformer.h"
#include "optim/adamw.h"
#include "optim/sgd.h"
#include "src/autograd/tape.h"
#include "src/kernels/reduce.h"
#include "src/step/step_record.h"
#include "tests/parity/npy.h"

namespace tandem::parity {
namespace {

using Json = nlohmann::json;

std::unique_ptr<Model> make_model(const Json& model, const Cut& cut) {
  const std::string kind = model["kind"];
  if (kind == "gpt" || kind == "llama") {
    TransformerConfig config;
    config.style = kind == "llama" ? kLlama : kGpt2;
    config.vocab = model["vocab"];
    config.context = model["context"];
    config.layers = model["layers"];
    config.heads = model["heads"];
    config.kv_heads = model.value("kv_heads", 0);
    config.head_width = model.value("head_width", 0);
    config.sliding_window = model.value("sliding_window", 0);
    config.qk_norm = model.value("qk_norm", false);
    config.qkv_bias = model.value("qkv_bias", false);
    config.attention_bias = model.value("attention_bias", false);
    config.width = model["width"];
    config.ffn_width = model.value("ffn_width", 0);
    config.tie_embeddings = model["tie_embeddings"];
    config.cut = cut;
    return std::make_unique<Transformer>(config);
  }
  const std::vector<int64_t> image = model["image"];
  if (kind == "resnet") {
    return make_resnet({.depth = model["depth"],
                        .in_channels = image[0],
                        .height = image[1],
                        .width = image[2],
                        .classes = model["classes"]});
  }
  return std::make_unique<Mlp>(MlpConfig{.image_height = image[1],
                                         .image_width = image[2],
                                         .channels = image[0],
                                         .layers = model["layers"],
                                         .width = model["width"],
                                         .classes = model["classes"]});
}

Shape whole_shape(const Parameter& parameter) {
  Shape shape = parameter.shape;
  int64_t rows = 0;
  for (const Piece& piece : pieces_of(parameter)) {
    shape = piece.slice.whole();
    rows += shape[0];
  }
  return shape.with(0, rows);
}

// Calls visit(element of the parameter, element of the whole one, whose pieces are whole, too).
template <class F>
void for_each_element(const Parameter& parameter, F visit) {
  int64_t here = 0, whole = 0;
  for (const Piece& piece : pieces_of(parameter)) {
    for (int64_t i = 0; i < piece.slice.elements(); ++i) {
      visit(here++, whole + piece.slice.run_at(i).begin);
    }
    whole += piece.slice.whole().elements();
  }
}

bool is_cut(const Parameter& parameter) { return whole_shape(parameter) != parameter.shape; }

// A model whose parameters each have their own memory: f32 shards for the optimizer, and the same
// values in the dtype under test.
class Subject {
 public:
  Subject(const std::string& in, DType dtype, World& world)
      : in_(in), dtype_(dtype), world_(world), stream_(Stream::compute(Device::kCpu)) {
    std::ifstream file(in + "/config.json");
    config_ = Json::parse(file);
    model_ = make_model(config_["model"], {world.rank(), world.size()});
    ParamId id = 0;
    for (Parameter* parameter : parameters_of(*model_)) {
      parameter->id = id++;
      parameters_.push_back(parameter);
      add_shard(*parameter);
    }
    for (RunningStatistics* statistics : model_->statistics()) {
      statistics->sum =
          Tensor::zeros(memory_, {2, statistics->channels}, DType::kF32, MemoryClass::kOptimizer);
    }
    load_batch();
  }

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  const std::vector<Shard>& shards() const { return shards_; }
  const Json& optim() const { return config_["optim"]; }
  Memory& memory() { return memory_; }
  Stream& stream() { return stream_; }
  int steps() const { return config_["steps"]; }
  std::vector<double> over_ranks(const std::vector<double>& values) const {
    return world_.control().sum(values);
  }
  bool is_first() const { return world_.rank() == 0; }

  // Mean loss, with gradients in the shards. What is not cut has a part of its gradient on each
  // rank.
  double forward_backward() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      copy(shards_[i].value, of_parameter(*parameters_[i], parameters_[i]->value));
      parameters_[i]->grad_written = false;
    }
    Context context{.stream = stream_,
                    .memory = memory_,
                    .tape = &tape_,
                    .training = true,
                    .tensor = world_.size() > 1 ? &world_.collectives() : nullptr};
    const Variable losses = model_->loss(context, input_, targets_).losses;
    const double count = static_cast<double>(targets_.elements());
    double loss = 0;
    on_float(losses.dtype(), [&]<class T>() {
      if constexpr (!kIs16Bit<T>) {
        sum(Cpu{}, losses.data<T>(), losses.elements(), &loss, nullptr, false);
      }
    });
    tape_.backward(context, losses, 1.0 / count);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      copy(of_parameter(*parameters_[i], parameters_[i]->grad), shards_[i].grad);
      if (const std::span<float> grad = shards_[i].grad.as<float>(); !is_cut(*parameters_[i])) {
        std::ranges::copy(over_ranks({grad.begin(), grad.end()}), grad.begin());
      }
    }
    return over_ranks({loss / count})[0];
  }

 private:
  Tensor memory_for(const Shape& shape, DType dtype) {
    return Tensor::zeros(memory_, shape, dtype, MemoryClass::kParameters);
  }

  void add_shard(Parameter& parameter) {
    const auto values = read_npy<float>(in_ + "/params/" + parameter.name + ".npy");
    const Shape whole = whole_shape(parameter), stored = stored_shape(parameter, Device::kCpu);
    require(Shape(values.shape) == whole,
            [&] { return str(parameter.name, ": ", Shape(values.shape), " for ", whole); });
    Shard shard{memory_for({parameter.shape.elements()}, DType::kF32),
                memory_for({parameter.shape.elements()}, DType::kF32), parameter.decay};
    for_each_element(parameter, [&](int64_t here, int64_t there) {
      shard.value.data<float>()[here] = values.values[static_cast<size_t>(there)];
    });
    parameter.value = memory_for(stored, dtype_);
    parameter.grad = memory_for(stored, dtype_);
    shards_.push_back(shard);
  }

  // Returns the elements before the padding rows.
  static Tensor of_parameter(const Parameter& parameter, const Tensor& stored) {
    return stored.slice(0, parameter.shape.elements());
  }

  static void copy(const Tensor& from, const Tensor& to) {
    on_float(from.dtype(), [&]<class From>() {
      on_float(to.dtype(), [&]<class To>() {
        for (int64_t i = 0; i < from.elements(); ++i) {
          to.data<To>()[i] = To(static_cast<Wide<To>>(from.data<From>()[i]));
        }
      });
    });
  }

  void load_batch() {
    const auto targets = read_npy<int32_t>(in_ + "/targets.npy");
    targets_ = Tensor::empty(memory_, {static_cast<int64_t>(targets.values.size())}, DType::kI32,
                             MemoryClass::kData);
    std::ranges::copy(targets.values, targets_.data<int32_t>());
    if (std::filesystem::exists(in_ + "/tokens.npy")) {
      const auto tokens = read_npy<int32_t>(in_ + "/tokens.npy");
      input_ = Tensor::empty(memory_, Shape(tokens.shape), DType::kI32, MemoryClass::kData);
      std::ranges::copy(tokens.values, input_.data<int32_t>());
      return;
    }
    const auto images = read_npy<float>(in_ + "/images.npy");  // [B, C, H, W]
    const int64_t batch = images.shape[0], channels = images.shape[1],
                  pixels = images.shape[2] * images.shape[3];
    input_ = memory_for({batch, images.shape[2], images.shape[3], channels}, dtype_);
    on_float(dtype_, [&]<class T>() {
      for (int64_t n = 0; n < batch; ++n) {
        for (int64_t c = 0; c < channels; ++c) {
          for (int64_t p = 0; p < pixels; ++p) {
            input_.data<T>()[(n * pixels + p) * channels + c] =
                T(images.values[(n * channels + c) * pixels + p]);
          }
        }
      }
    });
  }

  std::string in_;
  DType dtype_;
  World& world_;
  Json config_;
  Memory memory_{Device::kCpu};
  Stream stream_;
  Tape tape_;
  std::unique_ptr<Model> model_;
  std::vector<Parameter*> parameters_;
  std::vector<Shard> shards_;
  Tensor input_, targets_;
};

std::unique_ptr<Optimizer> make_optimizer(Subject& subject) {
  const Json& optim = subject.optim();
  if (optim["kind"] == "adamw") {
    return make_optimizer(AdamWOptions{.beta1 = optim["beta1"],
                                       .beta2 = optim["beta2"],
                                       .eps = optim["eps"],
                                       .weight_decay = optim["weight_decay"]},
                          subject.shards(), subject.memory());
  }
  return make_optimizer(SgdOptions{.momentum = optim["momentum"],
                                   .nesterov = optim["nesterov"],
                                   .weight_decay = optim["weight_decay"]},
                        subject.shards(), subject.memory());
}

void write_all(const std::string& folder, const Subject& subject, Tensor Shard::*which) {
  std::filesystem::create_directories(folder);
  for (size_t i = 0; i < subject.parameters().size(); ++i) {
    const Parameter& parameter = *subject.parameters()[i];
    const Shape shape = whole_shape(parameter);
    std::vector<double> all(static_cast<size_t>(shape.elements()));
    if (is_cut(parameter) || subject.is_first()) {
      for_each_element(parameter, [&](int64_t here, int64_t there) {
        all[static_cast<size_t>(there)] = (subject.shards()[i].*which).data<float>()[here];
      });
    }
    all = subject.over_ranks(all);
    if (const auto sizes = shape.sizes(); subject.is_first()) {
      write_npy(folder + "/" + parameter.name + ".npy",
                std::vector<int64_t>(sizes.begin(), sizes.end()),
                std::vector<float>(all.begin(), all.end()).data());
    }
  }
}

double squared_norm_of(const Subject& subject) {
  double sum = 0;
  for (size_t i = 0; i < subject.shards().size(); ++i) {
    const Tensor& grad = subject.shards()[i].grad;
    if (is_cut(*subject.parameters()[i]) || subject.is_first()) {
      squared_norm(Cpu{}, grad.data<float>(), grad.elements(), &sum, nullptr, true);
    }
  }
  return subject.over_ranks({sum})[0];
}

int run(int argc, char** argv, World& world) {
  std::map<std::string, std::string> options;
  for (int i = 1; i + 1 < argc; i += 2) {
    options[argv[i]] = argv[i + 1];
  }
  const std::string out = options["--out"], ranks = options["--ranks"];
  require(ranks == str(world.size()), [&] { return str(world.size(), " ranks, not ", ranks); });
  Subject subject(options["--in"], options["--dtype"] == "f64" ? DType::kF64 : DType::kF32, world);
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(subject);
  StepRecord record(subject.stream(), subject.memory(), subject.memory(), {},
                    {.clip_norm = subject.optim()["clip_norm"]});
  std::vector<double> losses;
  for (int step = 0; step < subject.steps(); ++step) {
    losses.push_back(subject.forward_backward());
    if (step == 0) {
      write_all(out + "/grads", subject, &Shard::grad);
    }
    record.send({.lr = subject.optim()["lr"]});
    record.begin_step(subject.stream());
    *record.squared_norm().data<double>() = squared_norm_of(subject);
    record.decide(subject.stream());
    optimizer->step(subject.stream(), subject.shards(),
                    {.numbers = record.numbers(), .state = record.state()});
  }
  write_all(out + "/params", subject, &Shard::value);
  if (subject.is_first()) {
    write_npy(out + "/loss.npy", {1}, losses.data());
    write_npy(out + "/losses.npy", {static_cast<int64_t>(losses.size())}, losses.data());
  }
  world.finish();
  return 0;
}

}  // namespace
}  // namespace tandem::parity

int main(int argc, char** argv) {
  tandem::World world;
  try {
    return tandem::parity::run(argc, argv, world);
  } catch (const std::exception& error) {
    std::cerr << "tandem_parity: " << error.what() << "\n";
    world.abort(tandem::ExitCode::kInternal);
  }
}
