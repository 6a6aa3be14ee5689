// Everything that training and evaluation need, constructed once: the task with its data, backend, communicator, plan,
// replica, and the state to begin from. The constructor and start() are collective over the world's ranks.
//
// The constructor only reads and checks: it rejects settings that make no sense, what cannot be resumed or opened, and
// what does not fit into memory. It writes nothing, times nothing and allocates none of the step's memory. `train
// --dry-run` ends there. start() does the rest. A signal before the first step makes both throw StoppedBySignal on all
// ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "data/loader.h"
#include "lockstep/algorithms.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"
#include "lockstep/ops/step_scalars.h"
#include "run/published_model.h"
#include "run/run_card.h"
#include "run/run_directory.h"
#include "run/slices.h"
#include "tasks/task.h"
#include "train/patience.h"
#include "train/replica.h"
#include "train/step_plan.h"

namespace lockstep::train {

/// The progress of a run. Steps and epochs are counted when they are finished.
struct TrainingProgress {
  std::int64_t step = 0;
  std::int64_t optimizer_begin = 0;  // the step at which the state of the optimizer was zero
  double best = 0;                   // quality of the best checkpoint so far: greater is better
  bool has_best = false;
  LossSums epoch_sums;       // of the epoch so far
  bool is_measured = false;  // the checkpoint that the run resumes from records its quality
  Patience patience;
  run::Slices slices;  // of the data
};

struct SessionOptions {
  std::vector<std::string> allow_change;  // keys that may differ from those of the run that is resumed
  bool fresh = false;                     // what is in RUN is ignored, and moved aside before start()
};

class Session {
 public:
  Session(Config config, World& world, const SessionOptions& options);
  /// Chooses the algorithms, takes the memory and loads the state to begin from.
  void start();

  Config config;  // resolved
  World& world;
  run::RunDirectory run;
  std::unique_ptr<tasks::Task> task;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> communicator;  // from start() on
  std::unique_ptr<StepPlan> plan;
  std::unique_ptr<Replica> replica;  // from start() on
  double matmul_rate = 0;            // operations per second of all ranks, measured by start()
  TrainingProgress progress;
  std::int64_t steps_per_epoch = 0, last_step = 0;
  std::string resumed_from;        // empty: a new run
  std::vector<std::string> notes;  // on how the run begins: for the banner
  std::string base_hash;           // of the base of adapters, as checkpoints record it; empty: random, or none
  // Of rank 0, for a language model: the files of RUN/model, and the data sets as its card describes them. They are
  // read at the start, since data sets may be replaced or removed during the training.
  run::Files model_files;
  std::vector<run::ModelCard::DataSet> data_sets;

  bool leader() const { return world.rank() == 0; }
  /// The checkpoint that start() would restore, or the first one that it tries; null: none, or start() was called.
  checkpoint::Reader* first_checkpoint() const { return reader_.get(); }
  /// Samples of the global batch of a step; fewer in the last step of an epoch with drop_last false.
  std::int64_t global_batch_of(std::int64_t step) const;
  BatchShape shape_of(std::int64_t step) const;
  /// Whether something that happens every `every_steps` steps or `every_epochs` epochs, and at the end of the run, is
  /// due now.
  bool is_due(std::int64_t steps_done, std::int64_t every_steps, std::int64_t every_epochs) const;
  /// The floating-point operations of this step on all ranks (graph/graph.h).
  double flops_of(std::int64_t step) const;
  /// The rate of operations as a part of matmul_rate. No value if the model has operations that an algorithm can avoid.
  std::optional<double> utilization_of(double flops_rate) const;
  /// Samples of all ranks in this many steps.
  std::int64_t samples_after(std::int64_t steps) const;
  /// The loader options for training, from progress.step on.
  data::LoaderOptions loader_options() const;

 private:
  const graph::Graph& first_graph() const;
  /// Collective: performs a part of the start. If it fails on any rank, all ranks throw the error, so that no rank
  /// waits for another or takes the end of the job for a request to stop.
  void on_all_ranks(const std::function<void()>& part);
  /// The task that the run resumes with, or a new one.
  void make_task();
  void read_model_files();
  void require_same_data_on_all_ranks();
  void find_checkpoints();
  /// What rank 0 found in RUN, or chose instead: checkpoints_ with the best candidate first.
  std::string list_checkpoints();
  bool open_next_checkpoint();
  [[noreturn]] void fail_without_good_checkpoint() const;
  void require_none_lost();
  void resume_from(const checkpoint::StateJson& state, const SessionOptions& options);
  std::string recorded_configuration() const;
  void keep_precision(const std::string& yaml_before);
  void check_unchanged(const checkpoint::StateJson& state, const SessionOptions& options);
  void check_data() const;
  void restore();
  void restore_loss_scale(const checkpoint::StateJson& state);
  void find_best();
  /// The base of adapters.
  void read_base();
  void load_base();
  void read_initial_weights();
  void initialize_weights();
  /// The plan with the algorithms that are stored, and fixed ones where none is.
  void plan_steps();
  void make_plan();
  /// Collective. Throws out_of_memory on all ranks if the plan of one cannot fit.
  void require_memory();
  /// Times the algorithms that are not known yet, which are the same on all ranks.
  void choose_algorithms();
  void share_algorithms(const Algorithms& known);
  void open_backend();
  /// Throws not_supported if the device of this rank does not compute in the precision.
  void check_precision() const;
  /// The batch of this run on these ranks; `auto` is replaced by numbers.
  BatchShape divide_batch();
  void check_ranks_agree() const;

  SessionOptions options_;
  std::string precision_reason_;  // as resolve_precision() returns it
  BatchShape batch_;
  std::shared_ptr<Algorithms> algorithms_;      // null: fixed ones
  std::vector<std::string> checkpoints_;        // to begin from, the best candidate last
  bool is_chosen_ = false;                      // they are one file that the user named
  std::unique_ptr<checkpoint::Reader> reader_;  // of the candidate that is tried
  checkpoint::ModelFile initial_weights_;       // of model.initialize_from, until start()
  checkpoint::ModelFile base_;                  // of adapters, likewise
};

/// `every` 0: never.
bool is_multiple(std::int64_t count, std::int64_t every);

}  // namespace lockstep::train
