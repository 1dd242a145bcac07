#include "tests/device_job.h"

#include "comm/nccl_communicator.h"
#include "layers/cross_entropy.h"
#include "layers/mlp.h"
#include "layers/resnet.h"
#include "layers/transformer.h"
#include "optim/adamw.h"
#include "src/core/cuda.h"
#include "tests/harness.h"
#include "tests/mpi_world.h"

namespace tandem::testing {

namespace {

constexpr int64_t kContext = 5, kVocab = 11, kClasses = 5, kImage = 6 * 6 * 3;

std::unique_ptr<Model> make_model(const Plan& plan) {
  if (plan.model == "resnet") {
    return make_resnet(
        {.depth = 8, .height = 6, .width = 6, .classes = kClasses, .recompute = plan.recompute});
  }
  if (plan.model == "mlp") {
    return std::make_unique<Mlp>(MlpConfig{.image_height = 6,
                                           .image_width = 6,
                                           .channels = 3,
                                           .layers = 1,
                                           .width = 12,
                                           .classes = kClasses,
                                           .recompute = plan.recompute});
  }
  const bool llama = plan.model == "llama";
  return std::make_unique<Transformer>(TransformerConfig{.llama = llama,
                                                         .vocab = kVocab,
                                                         .context = kContext,
                                                         .layers = 2,
                                                         .heads = 2,
                                                         .kv_heads = llama ? 1 : 0,
                                                         .width = 16,
                                                         .ffn_width = 24,
                                                         .dropout = 0.1,
                                                         .tie_embeddings = !llama,
                                                         .recompute = plan.recompute});
}

std::unique_ptr<Communicator> nccl_for(const Plan& plan) {
  if constexpr (kHasCuda) {
    if (plan.device == Device::kCuda && !plan.staged) {
      cuda::use_device(test_world().local_rank() % cuda::device_count());
      return std::make_unique<NcclCommunicator>(test_world().communicator(),
                                                test_world().timeout_s());
    }
  }
  return nullptr;
}

Tensor numbers(int64_t first, int64_t count, int64_t limit) {
  std::vector<int32_t> values;
  for (int64_t i = first; i < first + count; ++i) {
    values.push_back(static_cast<int32_t>((i * i + 3 * i) % limit));
  }
  return int_tensor({count}, values);
}

}  // namespace

Job::Job(const Plan& plan)
    : plan_(plan),
      nccl_(nccl_for(plan)),
      comm_(nccl_ ? *nccl_ : test_world().communicator()),
      stream_(test_stream(plan.device)),
      memory_(test_memory(plan.device)),
      staging_(plan.device == Device::kCuda ? Memory::pinned() : Memory(Device::kCpu)),
      model_(make_model(plan)),
      store_(model_->blocks(), comm_, memory_,
             {.bucket_bytes = 2000, .dtype = plan.dtype, .wire_dtype = plan.wire}),
      record_(stream_, memory_, staging_, plan.accumulation,
              {.clip_norm = 1, .dynamic_scale = plan.dtype == DType::kFp16}) {
  store_.initialize(stream_, 1);
  for (RunningStatistics* statistics : model_->statistics()) {
    statistics->sum =
        Tensor::zeros(memory_, {2, statistics->channels}, DType::kF32, MemoryClass::kOptimizer);
  }
  optimizer_ = make_adamw({}, store_.shards(), memory_);
  const int64_t samples = kGlobalBatch / comm_.size() / plan.accumulation;
  for (int64_t i = 0; i < plan.accumulation; ++i) {
    batches_.push_back(make_batch((comm_.rank() * plan.accumulation + i) * samples, samples));
  }
}

void Job::step(int64_t number, bool poison) {
  store_.begin_step();
  for (int64_t i = 0; i < plan_.accumulation; ++i) {
    const auto& [first_sample, input, targets] = batches_[static_cast<size_t>(i)];
    Context context{
        .stream = stream_,
        .memory = memory_,
        .tape = &tape_,
        .random = {.seed = 1, .step = static_cast<uint64_t>(number), .first_sample = first_sample},
        .training = true};
    store_.begin_backward(i + 1 == plan_.accumulation);
    const Variable losses =
        cross_entropy(context, model_->forward(context, store_, input), targets);
    record_.add_up(stream_, i, losses.value());
    tape_.backward(context, losses, poison ? 1e38 : 1.0 / target_count(),
                   &record_.state()->loss_scale);
    store_.finish_backward(context);
  }
  record_.decide(stream_, store_.shards());
  optimizer_->step(stream_, store_.shards(), {.lr = 0.01, .state = record_.state()});
}

double Job::loss_of(const StepRecord::Copy& copy) {
  comm_.wait(copy.done);
  double sum = 0;
  for (double loss : copy.losses.as<double>()) {
    sum += loss;
  }
  return comm_.sum(std::vector<double>{sum})[0] / target_count();
}

std::vector<double> Job::weights() const {
  std::vector<double> all;
  for (const Shard& shard : store_.shards()) {
    const std::vector<double> values = values_of(shard.value);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

double Job::target_count() const { return kGlobalBatch * (text() ? kContext : 1); }

Job::MicroBatch Job::make_batch(int64_t first_sample, int64_t samples) const {
  const int64_t each = text() ? kContext : 1;
  const Tensor targets =
      numbers(first_sample * each + 1, samples * each, text() ? kVocab : kClasses);
  Tensor input;
  if (text()) {
    input = numbers(first_sample * kContext, samples * kContext, kVocab);
    input = input.reshape({samples, kContext});
  } else {
    const Tensor all = random_tensor({kGlobalBatch * kImage}, DType::kF64, 5);
    input = rounded_to(all.slice(first_sample * kImage, samples * kImage), plan_.dtype);
    input = input.reshape({samples, 6, 6, 3});
  }
  return {first_sample, to_device(input, plan_.device), to_device(targets, plan_.device)};
}

}  // namespace tandem::testing
