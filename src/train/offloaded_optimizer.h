// With train.offload=optimizer: the fp32 masters and the state of the optimizer are in host memory, where the optimizer
// runs on the cores of the rank.
//
// Beside the compute stream, work of three others runs bucket by bucket. Updates are made at the beginning of the next
// step, in the order in which its forward pass reads weights:
//
//   compute          backward                  | norm | forward of the next step
//   device to host      sums 1 | sums 2 | sums 3
//   host                                              | update 3 | update 2 | update 1
//   host to device                                               | weights 3 | weights 2 | weights 1
//
// The compute stream waits for the weights of a bucket before a node reads them or ranks gather them. Everything is
// stored as a rank stores states (graph::Shard).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "graph/parameter_arena.h"
#include "lockstep/ops/cast.h"
#include "lockstep/ops/optimizer.h"
#include "train/gradient_accumulator.h"
#include "train/step_plan.h"

namespace lockstep::train {

class OffloadedOptimizer {
 public:
  /// The bytes that a step of this rank moves.
  struct Traffic {
    std::size_t sums, weights;  // to the host, and back
    std::size_t update;         // read and written in the memory of the host
  };
  static Traffic traffic(const StepPlan& plan);
  /// `arena`: has the weights that ops read, and the masters of those that they read in fp32.
  OffloadedOptimizer(const StepPlan& plan, Backend& backend, graph::ParameterArena& arena);
  ~OffloadedOptimizer();

  /// Of host memory.
  static std::size_t size_bytes(const StepPlan& plan);

  float* masters() const { return masters_; }
  TypedPointer state(int number) const;
  /// For all writes of masters by others, after finish().
  float* edit() {
    is_stale_ = true;
    return masters_;
  }
  /// Copies the weights to the device if masters were edited since the last call.
  void refresh(Stream& stream);

  // In captured parts of a step

  /// Copies the bucket's sums, which `stream` has computed, to the host.
  void download(std::size_t bucket, const GradientAccumulator& sums, Stream& stream);
  /// Copies the scalars; the stream waits for all sums.
  void end_downloads(const StepScalars* scalars, Stream& stream);
  /// Queues the update of the step before, after what `stream` has done so far. An update that was made is not
  /// repeated.
  void update(Stream& stream);
  /// The stream waits for the new weights of a bucket.
  void wait_for_weights(std::size_t bucket, Stream& stream);

  /// A step has been queued: the next one begins with its update.
  void expect_update() { is_expected_ = true; }
  /// Makes an expected update now; the stream waits for it.
  void finish(Stream& stream);

 private:
  struct Update {
    std::unique_ptr<Optimizer> op;
    OptimizerCalls::Apply args;
  };
  struct Part {
    ElementRange range{};    // of the arena; empty: nothing of the bucket is updated here
    std::size_t stored = 0;  // where it begins in the stored states
    std::vector<Update> updates;
    std::function<void()> update, round;
    std::unique_ptr<Event> is_summed, is_updated, is_uploaded;
  };
  /// Does the work of all parts on the host, after what `stream` has done so far, and copies their weights.
  void queue(std::function<void()> Part::*work, Stream& stream);
  /// The same; the stream waits for all of it.
  void queue_alone(std::function<void()> Part::*work, Stream& stream);
  void upload(const Part& part);

  const StepPlan& plan_;
  Backend& backend_;
  graph::ParameterArena& arena_;
  std::unique_ptr<Stream> down_, work_, up_, host_stream_;
  std::unique_ptr<Event> are_downloaded_, is_ready_;
  std::unique_ptr<Memory> memory_;
  StepScalars* scalars_ = nullptr;
  float* masters_ = nullptr;
  std::byte *state_ = nullptr, *gradients_ = nullptr, *weights_ = nullptr;
  std::unique_ptr<Cast> round_;
  std::vector<Part> parts_;          // of the buckets
  std::optional<std::size_t> last_;  // the part that is updated last
  bool is_stale_ = false, is_expected_ = false;
};

}  // namespace lockstep::train
