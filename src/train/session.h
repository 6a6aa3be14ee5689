// Everything that training and evaluation need, put together once: data, backend, communicator, plan, replica, and the
// state to begin from. Construction is collective over the world's ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "data/dataset.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"
#include "train/replica.h"
#include "train/run_directory.h"
#include "train/step_plan.h"

namespace lockstep::train {

/// Where a run stands. Steps and epochs count finished ones.
struct RunProgress {
  std::int64_t step = 0;
  double best = 0;  // validation accuracy, or minus the loss without labels to count
  bool has_best = false;
  LossSums epoch_sums;       // of the epoch so far
  bool is_measured = false;  // the checkpoint that the run continues from tells its quality
};

struct SessionOptions {
  std::vector<std::string> allow_change;  // keys that may differ from the run that is continued
  std::string checkpoint;                 // evaluation: weights of this file; nothing is written to RUN
};

class Session {
 public:
  Session(Config config, World& world, const SessionOptions& options);

  Config config;  // resolved
  World& world;
  RunDirectory run;
  std::shared_ptr<const data::ImageSet> train_set, validation_set;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<StepPlan> plan;
  std::unique_ptr<Replica> replica;
  RunProgress progress;
  std::int64_t steps_per_epoch = 0, last_step = 0;
  std::string resumed_from;        // empty: a new run
  std::vector<std::string> notes;  // what the user should hear of how it began; the banner says it

  bool leader() const { return world.rank() == 0; }
  /// Samples of the global batch of a step; less in an epoch's last with drop_last false.
  std::int64_t global_batch_of(std::int64_t step) const;
  BatchShape shape_of(std::int64_t step) const;
  /// What happens every so many steps or epochs, and at the end of the run, happens after this many steps.
  bool is_due(std::int64_t steps_done, std::int64_t every_steps, std::int64_t every_epochs) const;
  /// Samples of all ranks that so many steps have taken.
  std::int64_t samples_after(std::int64_t steps) const;

 private:
  void find_checkpoints(const SessionOptions& options);
  bool open_next_checkpoint();
  [[noreturn]] void fail_without_good_checkpoint() const;
  void continue_from(const checkpoint::StateJson& state, const SessionOptions& options);
  void open_data();
  void check_unchanged(const std::string& before, const SessionOptions& options);
  void restore(bool weights_only);
  void restore_loss_scale(const checkpoint::StateJson& state);
  void find_best();
  void initialize_weights();
  /// backend, communicator and plan, by algorithms that are the same on all ranks.
  void plan_steps(const BatchShape& batch, bool is_training);
  void open_backend();
  /// The batch of this run on these ranks, with numbers for what is auto.
  BatchShape divide_batch();
  void check_ranks_agree() const;

  std::shared_ptr<Algorithms> algorithms_;      // null: fixed ones
  std::vector<std::string> checkpoints_;        // to begin from; the first good one
  std::unique_ptr<checkpoint::Reader> reader_;  // of the first of them
};

/// `every` 0: never.
bool is_multiple(std::int64_t count, std::int64_t every);

/// Opens data.train / data.validation, files or synthetic.
std::shared_ptr<const data::ImageSet> open_train_set(const Config& config);
std::shared_ptr<const data::ImageSet> open_validation_set(const Config& config);

/// Loss sums over the first evaluation.max_samples (0: all) of a set, each counted once, over all ranks. Nothing once
/// `stops` is true on any rank.
std::optional<LossSums> evaluate(
    Session& session, const data::ImageSet& set, const std::string& title,
    const std::function<bool()>& stops = [] { return false; });

}  // namespace lockstep::train
