#include "train/weight_gradient_stream.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/clock.h"
#include "comm/single_rank.h"
#include "data/loader.h"
#include "graph/graph.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "train/batch_shape.h"
#include "train/replica.h"
#include "train/schedule.h"

namespace lockstep::train {
namespace {

/// The key lacks the batch, which the store adds.
std::string key_of(const StepPlan& plan) {
  const graph::Graph& graph = *plan.largest().graph;
  return fmt::format("step of {} nodes, {} parameters, {:.4g} FLOP per sample, {}, {}: stream of weight gradients",
                     graph.nodes().size(), plan.parameters().n_canonical(),
                     graph::flops_of(graph) / static_cast<double>(graph.options().batch), name(plan.config().precision),
                     plan.config().cuda.graph ? "captured" : "not captured");
}

/// The configuration of a training on one rank, without communication, evaluations, or a smaller last batch.
Config alone(Config config, std::int64_t batch) {
  config.train.global_batch = batch;
  config.train.batch_per_rank = 0;
  config.train.micro_batches = 0;
  config.train.accumulate = 1;
  config.train.shard = Config().train.shard;
  config.comm = Config().comm;
  config.data.validation.clear();
  config.data.drop_last = true;
  return config;
}

}  // namespace

std::string choose_weight_gradient_stream(const StepPlan& plan, Algorithms* algorithms,
                                          const std::function<double(const std::string& value)>& seconds) {
  static const std::array<std::string, 2> values{"off", "on"};
  if (algorithms == nullptr) return values[0];
  const std::string key = key_of(plan);
  const auto time_all = [&] {
    Timing timing;
    for (const std::string& value : values) {
      timing.seconds.push_back(std::numeric_limits<double>::infinity());
      try {
        timing.seconds.back() = seconds(value);
      } catch (const Error& error) {
        log::write_to_file(log::Level::info, fmt::format("{}: {} is not available: {}", key, value, error.what()));
      }
    }
    return timing;
  };
  return values[algorithms->choose(key, values, std::function<Timing()>(time_all))];
}

double seconds_of_step(const Config& config, const tasks::Task& task, std::int64_t batch, Backend& backend) {
  // With one micro-batch per step, a device captures the steps 5 and 6 (docs/design.md, "One step").
  constexpr int kWarmUp = 6, kRounds = 3, kStepsOfRound = 5;
  const Config mine = alone(config, batch);
  StepPlan plan(mine, task, batch_shape(mine, 0, 1), backend, {});
  comm::SingleRankCommunicator communicator(backend);
  Replica replica(plan, backend, communicator);
  replica.initialize(mine.run.seed);
  data::Loader loader(task.train_set(), {.global_batch = batch,
                                         .capacity = batch,
                                         .seed = mine.run.seed,
                                         .readers = mine.data.readers,
                                         .prefetch = 1,
                                         .last_step = 1,
                                         .backend = &backend});
  const data::Batch& samples = loader.next();
  const auto run = [&](int n_steps) {
    const Clock::time_point begin = Clock::now();
    for (int step = 0; step < n_steps; ++step) {
      replica.begin_step(plan.batch(), make_step_scalars({.step = step,
                                                          .nominal_count = task.nominal_count(batch),
                                                          .learning_rate = mine.optimizer.learning_rate},
                                                         mine.optimizer));
      replica.run(samples);
    }
    (void)replica.result(0);
    return seconds_since(begin) / n_steps;
  };
  run(kWarmUp);
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) least = std::min(least, run(kStepsOfRound));
  return least;
}

}  // namespace lockstep::train
