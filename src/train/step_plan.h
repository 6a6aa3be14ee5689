// Everything about a rank's step that is known before memory is taken: the graphs, the parameters, sizes.
// `lockstep plan` shows one; a Replica is one with its arenas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/reducer.h"
#include "comm/topology.h"
#include "data/dataset.h"
#include "data/sample_order.h"
#include "graph/graph.h"
#include "layers/layers.h"
#include "lockstep/config.h"

namespace lockstep::train {

/// How a global batch is divided: over ranks, then over the micro-batches that a rank runs one after another.
///
/// train.accumulate: each rank's shard is cut into as many micro-batches. train.micro_batches: the global batch is cut
/// into shards, each one micro-batch whatever the number of ranks, and a rank takes a subtree of the tree by which they
/// are summed.
struct BatchShape {
  std::int64_t global_batch = 0;
  int rank = 0, ranks = 1, n_micro_batches = 1;  // micro-batches of this rank
  bool is_tree = false;                          // train.micro_batches
  std::vector<int> first_shard{};                // of each rank, and behind the last one's

  int n_shards() const { return first_shard.back(); }
  int shards_of(int of_rank) const;
  int micro_batches_of_all() const { return is_tree ? n_shards() : ranks * n_micro_batches; }
  data::Shard samples(int of_rank, int micro_batch) const;                                  // of the global batch
  std::int64_t micro_batch_size(int number) const { return samples(rank, number).size(); }  // of this rank
  /// Samples of all ranks in micro-batch `number`: they share statistics where ranks synchronise them.
  std::int64_t global_micro_batch_size(int number) const;
  std::int64_t largest_micro_batch() const;  // over ranks and micro-batches
  std::int64_t smallest_micro_batch() const;

  SumOrder order_in_rank() const;     // over this rank's micro-batches; is_tree
  SumOrder order_over_ranks() const;  // empty: none is asked for
};

/// train.global_batch, or what train.batch_per_rank makes of it on so many ranks; 0: that is auto, and not known yet.
std::int64_t asked_global_batch(const Config& config, int ranks);
/// Resolves train.global_batch / batch_per_rank for so many ranks; throws where it cannot be divided.
BatchShape batch_shape(const Config& config, int rank, int ranks);

/// What ranks tell each other in every step: how many of them say so. A rank gives its own (0 or 1) before the step,
/// and all read the same sums with the step's result.
struct StepFlags {
  double stop_requests = 0;  // was told to stop by a signal
  double save_due = 0;       // the clock says that a checkpoint is due: rank 0 alone looks at it
  double saver_done = 0;     // the background writer has finished what it was given
};

/// What is summed over ranks once a step besides gradients: in exchange memory, by one all-reduce of doubles.
struct StepSums {
  LossSums loss;
  StepFlags flags;
  static constexpr std::size_t kElements = (sizeof(LossSums) + sizeof(StepFlags)) / sizeof(double);
};
static_assert(sizeof(StepSums) == StepSums::kElements * sizeof(double));

/// One planned graph and where its data and sums are.
struct PlannedGraph {
  std::unique_ptr<graph::Graph> graph;
  layers::ImageBuffers buffers;
  std::size_t sums_offset = 0;  // of StepSums in exchange memory
};

/// What a step told. Put together in the backend's memory, and copied to the host as one.
struct StepReport {
  StepSums sums;   // over ranks
  LossSums local;  // this rank's
  double gradient_norm = 0;
  std::uint32_t is_applied = 0;  // 0: skipped, on all ranks alike; weights, optimizer and statistics are as before
  LossScale loss_scale, next_loss_scale;  // in force in this step, and in the one after it
};

/// The small things that a step keeps in the backend's memory, at the head of the optimizer's arena.
struct StepState {
  StepScalars scalars;  // new in each step
  LossScale loss_scale;
  StepReport report;
  std::uint64_t hash = 0;
};

/// Bytes of a rank, by kind.
struct MemoryReport {
  std::size_t parameters = 0, gradients = 0, partial_sums = 0, optimizer = 0, activations = 0, workspace = 0;
  std::size_t activations_without_reuse = 0;
  std::size_t exchange = 0;      // small sums between ranks, behind the gradients
  std::size_t node_buffers = 0;  // of a node's leader, for what other nodes send
  std::size_t mapped_peers = 0;  // what this rank touches of its node's other ranks' gradients
  std::size_t uploads = 0;       // batches on their way to the device, in its memory
  std::size_t loader = 0;        // batches read ahead
  std::size_t checkpoint = 0;    // copy of this rank's part that a background thread writes
  std::size_t total() const {
    return parameters + gradients + partial_sums + optimizer + activations + workspace + exchange + node_buffers +
           mapped_peers + uploads + loader + checkpoint;
  }
};

class StepPlan {
 public:
  /// An evaluation graph is planned where data.validation names a set. `topology`: of the communicator.
  StepPlan(const Config& config, const data::ImageSetInfo& images, const BatchShape& batch, Backend& backend,
           comm::Topology topology);

  /// The training graph for a micro-batch of `batch` samples, `global` over all ranks.
  PlannedGraph& training(std::int64_t batch, std::int64_t global);
  /// Samples a rank takes through the evaluation graph at once; 0 without one.
  std::int64_t evaluation_batch() const { return evaluation_batch_; }
  PlannedGraph* evaluation() { return evaluation_.graph ? &evaluation_ : nullptr; }
  const PlannedGraph& largest() const { return *largest_; }
  graph::ParameterTable& parameters() { return table_; }
  const graph::ParameterTable& parameters() const { return table_; }
  const BatchShape& batch() const { return batch_; }
  const Config& config() const { return config_; }
  const OptimizerDescription& optimizer() const { return optimizer_; }
  /// Nothing: gradients are not scaled.
  const std::optional<LossScaling>& loss_scaling() const { return loss_scaling_; }
  MemoryReport memory() const;
  std::size_t exchange_bytes() const { return exchange_bytes_; }
  /// Of the largest batch that is uploaded, training or evaluation, and of one of its images.
  std::int64_t upload_samples() const { return std::max(batch_.largest_micro_batch(), evaluation_batch_); }
  std::size_t image_bytes() const { return image_bytes_; }
  /// Of a subtree of this rank's micro-batches: gradients, batch statistics and, at the end, the loss.
  std::size_t partial_sum_bytes() const;
  /// Gradients and batch statistics, cut into buckets.
  const std::vector<comm::Bucket>& buckets() const { return buckets_; }
  std::vector<PlannedGraph*> all();

 private:
  using Key = std::pair<std::int64_t, std::int64_t>;  // samples of this rank's micro-batch, of all ranks'
  PlannedGraph build(graph::Mode mode, std::int64_t batch, std::int64_t global, const data::ImageSetInfo& images,
                     Backend& backend);

  Config config_;
  BatchShape batch_;
  comm::Topology topology_;
  std::int64_t evaluation_batch_ = 0;
  graph::ParameterTable table_;
  std::map<Key, PlannedGraph> training_;
  PlannedGraph evaluation_;
  const PlannedGraph* largest_ = nullptr;
  OptimizerDescription optimizer_;
  std::optional<LossScaling> loss_scaling_;
  std::vector<comm::Bucket> buckets_;
  std::size_t exchange_bytes_ = 0;
  std::size_t loader_bytes_ = 0, image_bytes_ = 0;
};

/// Mean and standard deviation in force: of the configuration, else of the file.
std::pair<std::vector<float>, std::vector<float>> normalization(const Config& config, const data::ImageSetInfo& images);

}  // namespace lockstep::train
