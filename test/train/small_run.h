// A small training for tests: a plan and a replica on any backend and communicator, and batches without a loader.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "comm/world.h"
#include "data/dataset.h"
#include "lockstep/backend.h"
#include "train/replica.h"
#include "train/step_plan.h"

namespace lockstep::test {

/// ResNet-18 with the CIFAR stem on synthetic images.
inline Config small_config(int image_size, std::int64_t global_batch) {
  Config config;
  config.data.train = "synthetic";
  config.data.image_size = image_size;
  config.data.synthetic_samples = 256;
  config.data.augment = {"crop", "flip"};
  config.train.global_batch = global_batch;
  config.train.label_smoothing = 0.1;
  config.cpu.threads = 1;
  config.comm.bucket_mb = 1;
  return config;
}

class SmallRun {
 public:
  SmallRun(const Config& config, Backend& backend, Communicator& communicator,
           std::shared_ptr<const data::ImageSet> set = nullptr)
      : set_(set ? std::move(set)
                 : std::shared_ptr<const data::ImageSet>(
                       data::make_synthetic_set(config.run.seed, config.data.synthetic_samples, config.data.image_size,
                                                config.data.image_size, 3, config.model.classes, "train"))),
        plan_(config, set_->info(), train::batch_shape(config, communicator.rank(), communicator.size()), backend,
              comm::topology_of(config.comm, comm::planned_ranks(communicator.size(), 1), {}, backend.memory_space())),
        replica_(plan_, backend, communicator) {
    replica_.initialize(config.run.seed);
  }

  /// One step on samples step*batch, step*batch+1, ... of the set; the loss, a mean over all ranks' samples.
  double step(std::int64_t number, bool update = true, const train::StepFlags& flags = {},
              float loss_limit = std::numeric_limits<float>::infinity()) {
    start(number, update, flags, loss_limit);
    result_ = replica_.result(0);
    return result_.sums.loss / result_.sums.samples;
  }

  /// Without reading its result.
  void start(std::int64_t number, bool update = true, const train::StepFlags& flags = {},
             float loss_limit = std::numeric_limits<float>::infinity()) {
    const Config& config = plan_.config();
    const train::BatchShape shape = shape_of(number);
    replica_.begin_step(
        {.learning_rate = static_cast<float>(config.optimizer.learning_rate),
         .loss_weight = 1.0f / static_cast<float>(shape.global_batch),
         .loss_limit = loss_limit,
         .adam_correction1 = static_cast<float>(1 / (1 - std::pow(config.optimizer.beta1, number + 1.0))),
         .adam_correction2 = static_cast<float>(1 / (1 - std::pow(config.optimizer.beta2, number + 1.0))),
         .epoch = 0,
         .step = static_cast<std::uint32_t>(number)},
        flags);
    for (int micro_batch = 0; micro_batch < shape.n_micro_batches; ++micro_batch) {
      const data::Shard samples = shape.samples(shape.rank, micro_batch);
      fill(number * plan_.batch().global_batch + samples.begin, samples.size());
      if (micro_batch + 1 < shape.n_micro_batches)
        replica_.run_micro_batch(batch_, micro_batch, shape.global_micro_batch_size(micro_batch));
      else if (update)
        replica_.finish_step(batch_, micro_batch, shape.global_micro_batch_size(micro_batch));
      else
        replica_.finish_without_update(batch_, micro_batch, shape.global_micro_batch_size(micro_batch));
    }
  }

  train::Replica& replica() { return replica_; }
  train::StepPlan& plan() { return plan_; }
  const train::StepResult& result() const { return result_; }

  /// All gradients, or all weights, in the table's order.
  std::vector<float> all_gradients() const {
    return all([&](const std::string& n) { return replica_.gradient(n); });
  }
  std::vector<float> all_weights() const {
    return all([&](const std::string& n) { return replica_.parameter(n); });
  }

 private:
  /// Without data.drop_last the last step of an epoch takes what is left.
  train::BatchShape shape_of(std::int64_t step) const {
    train::BatchShape shape = plan_.batch();
    const std::int64_t n = set_->info().n_samples, tail = n % shape.global_batch;
    const bool is_last = (step + 1) % (n / shape.global_batch + 1) == 0;
    if (!plan_.config().data.drop_last && tail > 0 && is_last) shape.global_batch = tail;
    return shape;
  }

  template <typename Get>
  std::vector<float> all(const Get& get) const {
    std::vector<float> out;
    for (const graph::Parameter& p : plan_.parameters().parameters()) {
      const std::vector<float> values = get(p.name);
      out.insert(out.end(), values.begin(), values.end());
    }
    return out;
  }

  void fill(std::int64_t first, std::int64_t n) {
    const std::size_t bytes = set_->info().image_bytes();
    images_.resize(static_cast<std::size_t>(n) * bytes);
    labels_.resize(static_cast<std::size_t>(n));
    ids_.resize(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t sample = (first + i) % set_->info().n_samples;
      const auto at = static_cast<std::size_t>(i);
      set_->read(sample, 0, std::span(images_).subspan(at * bytes, bytes), labels_[at]);
      ids_[at] = static_cast<std::uint32_t>(sample);
    }
    batch_ = {.n_samples = n, .images = images_, .labels = labels_, .sample_ids = ids_};
  }

  std::shared_ptr<const data::ImageSet> set_;
  train::StepPlan plan_;
  train::Replica replica_;
  std::vector<std::uint8_t> images_;
  std::vector<std::int32_t> labels_;
  std::vector<std::uint32_t> ids_;
  data::Batch batch_;
  train::StepResult result_;
};

/// Euclidean norm of a - b, over that of b.
template <typename A, typename B>
double relative_distance(const std::vector<A>& a, const std::vector<B>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace lockstep::test
