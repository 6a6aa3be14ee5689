// A small training for tests: a plan and a replica on any backend and communicator, and batches without a loader.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "comm/world.h"
#include "data/image_set.h"
#include "lockstep/backend.h"
#include "lockstep/error.h"
#include "models/family.h"
#include "tasks/task.h"
#include "train/replica.h"
#include "train/schedule.h"
#include "train/step_plan.h"

namespace lockstep::test {

/// ResNet-18 with the CIFAR stem and a quarter of its channels, on synthetic images.
inline Config small_config(int image_size, std::int64_t global_batch) {
  Config config;
  config.data.train = "synthetic";
  config.data.image_size = image_size;
  config.data.synthetic_samples = 256;
  config.data.augment = {"crop", "flip"};
  config.train.global_batch = global_batch;
  config.train.label_smoothing = 0.1;
  config.cpu.threads = 1;
  config.model.width = 16;
  config.comm.bucket_mb = 0.0625;  // as many buckets as 1 MiB would give for the whole network
  return config;
}

/// ResNet-50 in fp16 with all its channels, on synthetic images.
inline Config resnet50_config(int image_size, std::int64_t global_batch) {
  Config config;
  config.precision = Precision::fp16;
  config.model.depth = 50;
  config.model.stem = "imagenet";
  config.model.classes = 1000;
  config.data.train = "synthetic";
  config.data.image_size = image_size;
  config.data.synthetic_samples = 256;
  config.train.global_batch = global_batch;
  config.cpu.threads = 1;
  return config;
}

/// A small Llama with as many layers as given, on synthetic text.
inline Config small_text_config(int n_layers, std::int64_t global_batch) {
  Config config;
  config.model.family = "llama";
  config.model.config = fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": {}, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
          "tie_word_embeddings": true}})",
      n_layers);
  config.data.train = "synthetic";
  config.data.sequence_length = 8;
  config.train.global_batch = global_batch;
  config.optimizer.kind = "adamw";
  config.cpu.threads = 1;
  config.comm.bucket_mb = 0.0625;
  return config;
}

/// Reads what only tests read: the gradients of the last step, summed over all ranks and multiplied by the loss scale.
class ReplicaProbe {
 public:
  static std::vector<float> gradient(const train::Replica& replica, const std::string& name) {
    return unpacked(replica, name, [&](const graph::Parameter& p) { return replica.gradients().at(p.begin); });
  }
  static const Stream& copy_stream(const train::Replica& replica) { return *replica.copy_stream_; }
  static std::vector<float> parameter(const train::Replica& replica, const std::string& name) {
    return unpacked(replica, name, [&](const graph::Parameter& p) {
      return TypedPointer(const_cast<float*>(replica.parameter_arena_.masters()) + p.begin);
    });
  }
  /// The weights that ops read in 16 bits, for all parameters, in arena order.
  static std::vector<std::uint16_t> compute_weights(const train::Replica& replica) {
    return of_parameters(replica, static_cast<const std::uint16_t*>(replica.parameter_arena_.compute_weights()));
  }
  /// The masters, in the same order.
  static std::vector<float> masters(const train::Replica& replica) {
    return of_parameters(replica, replica.parameter_arena_.masters());
  }

 private:
  template <typename T>
  static std::vector<T> of_parameters(const train::Replica& replica, const T* arena) {
    std::vector<T> out;
    for (const graph::Parameter& p : replica.parameters().parameters()) {
      std::vector<T> values(p.n_elements);
      replica.backend_.copy(values.data(), arena + p.begin, values.size() * sizeof(T), *replica.stream_);
      replica.stream_->synchronize();
      out.insert(out.end(), values.begin(), values.end());
    }
    return out;
  }
  template <typename Place>
  static std::vector<float> unpacked(const train::Replica& replica, const std::string& name, const Place& place_of) {
    for (const graph::Parameter& p : replica.parameters().parameters()) {
      if (p.name != name) continue;
      std::vector<float> stored(p.n_elements), values(static_cast<std::size_t>(p.shape.n_elements()));
      const TypedPointer place = place_of(p);
      std::vector<std::byte> bytes(stored.size() * size_bytes(place.dtype));
      replica.backend_.copy(bytes.data(), place.data, bytes.size(), *replica.stream_);
      replica.stream_->synchronize();
      for (std::size_t i = 0; i < stored.size(); ++i) {
        // bf16 is the upper half of fp32.
        const std::size_t size = size_bytes(place.dtype);
        std::memcpy(reinterpret_cast<std::byte*>(&stored[i]) + sizeof(float) - size, bytes.data() + i * size, size);
      }
      graph::unpack(p, stored, values);
      return values;
    }
    fail(ErrorCode::internal, "there is no parameter {}", name);
  }
};

/// The image set of the configuration.
inline std::shared_ptr<const data::ImageSet> synthetic_set(const Config& config) {
  return data::make_synthetic_set(config.run.seed, config.data.synthetic_samples, config.data.image_size,
                                  config.data.image_size, 3, config.model.classes, "train");
}

/// The task of the configuration, whose train set is open.
inline std::unique_ptr<tasks::Task> task_of(const Config& config, std::shared_ptr<const data::ImageSet> set = nullptr) {
  if (!models::is_language_model(config.model.family))
    return tasks::make_image_classification(config, set ? std::move(set) : synthetic_set(config), nullptr);
  std::unique_ptr<tasks::Task> task = tasks::make_task(config);
  task->open_train_set();
  return task;
}

class SmallRun {
 public:
  /// A run on images, or on the text that the configuration names; uses the set of the configuration if none is given.
  SmallRun(const Config& config, Backend& backend, Communicator& communicator,
           std::shared_ptr<const data::ImageSet> set = nullptr)
      : SmallRun(config, backend, communicator, task_of(config, std::move(set))) {}
  /// A run of a task whose train set is open.
  SmallRun(const Config& config, Backend& backend, Communicator& communicator, std::unique_ptr<tasks::Task> task)
      : set_(task->train_set()),
        task_(std::move(task)),
        plan_(config, *task_, train::batch_shape(config, communicator.rank(), communicator.size()), backend,
              comm::topology_of(config.comm, comm::planned_ranks(communicator.size(), 1), {}, backend.memory_space())),
        replica_(plan_, backend, communicator) {
    replica_.initialize(config.run.seed);
  }

  /// Runs one step on the samples step*batch, step*batch+1, ... of the set. Returns the loss, a mean over all ranks'
  /// samples.
  double step(std::int64_t number, const train::StepFlags& flags = {},
              float loss_limit = std::numeric_limits<float>::infinity()) {
    start(number, flags, loss_limit);
    result_ = replica_.result(0);
    return result_.sums.loss / result_.sums.weight;
  }

  /// The same without reading the result.
  void start(std::int64_t number, const train::StepFlags& flags = {},
             float loss_limit = std::numeric_limits<float>::infinity()) {
    const Config& config = plan_.config();
    const train::BatchShape shape = shape_of(number);
    replica_.begin_step(shape,
                        train::make_step_scalars({.step = number,
                                                  .nominal_count = task_->nominal_count(shape.global_batch),
                                                  .learning_rate = config.optimizer.learning_rate,
                                                  .loss_limit = loss_limit},
                                                 config.optimizer),
                        flags);
    for (int i = 0; i < shape.n_micro_batches; ++i) {
      const data::Shard samples = shape.samples(shape.rank, i);
      fill(number * plan_.batch().global_batch + samples.begin, samples.size());
      replica_.run(batch_);
    }
  }

  /// Adds samples first, first + 1, ... to an evaluation (Replica::begin_evaluation).
  void evaluate(std::int64_t first, std::int64_t n) {
    fill(first, n);
    replica_.evaluate(batch_);
  }

  train::Replica& replica() { return replica_; }
  train::StepPlan& plan() { return plan_; }
  const train::StepResult& result() const { return result_; }

  /// All gradients, or all weights, of trained parameters in table order.
  std::vector<float> all_gradients() const {
    return all([&](const std::string& n) { return ReplicaProbe::gradient(replica_, n); });
  }
  std::vector<float> all_weights() const {
    return all([&](const std::string& n) { return ReplicaProbe::parameter(replica_, n); });
  }

 private:
  /// Without data.drop_last, the last step of an epoch uses the remaining samples.
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
      if (!p.trainable) continue;
      const std::vector<float> values = get(p.name);
      out.insert(out.end(), values.begin(), values.end());
    }
    return out;
  }

  void fill(std::int64_t first, std::int64_t n) {
    const std::vector<data::Field> fields = set_->fields();
    memory_.resize(fields.size());
    batch_ = {.n_samples = n, .fields = {}};
    for (std::size_t f = 0; f < fields.size(); ++f) {
      memory_[f].resize(static_cast<std::size_t>(n) * fields[f].size_bytes());
      batch_.fields.emplace_back(memory_[f]);
    }
    std::vector<std::span<std::byte>> sample(fields.size());
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::size_t f = 0; f < fields.size(); ++f)
        sample[f] =
            std::span(memory_[f]).subspan(static_cast<std::size_t>(i) * fields[f].size_bytes(), fields[f].size_bytes());
      set_->read((first + i) % set_->info().n_samples, 0, sample);
    }
  }

  std::shared_ptr<const data::Dataset> set_;
  std::unique_ptr<tasks::Task> task_;
  train::StepPlan plan_;
  train::Replica replica_;
  std::vector<std::vector<std::byte>> memory_;  // one per field
  data::Batch batch_;
  train::StepResult result_;
};

/// Euclidean norm of a - b, divided by that of b.
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
