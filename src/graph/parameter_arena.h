// The parameters of a replica: fp32 masters with the running statistics, and, where ops compute in bf16 or fp16, the
// weights that they read, which are the masters rounded to that type (DESIGN, decision 17).
//
// Two things write masters. The optimizer rounds what it writes itself. All other writes (initial values, a checkpoint,
// imported weights) go through edit(), and the next refresh() rounds the whole arena once. A replica calls refresh()
// before each pass over a graph, so the weights that are read are never stale. With train.shard, a rank rounds the
// masters that it has, and the weights of the others are gathered afterwards (train/replica.h). Statistics are read as
// fp32 only: their places in the arena of weights are not kept up to date.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "graph/graph.h"
#include "graph/node.h"
#include "graph/shard.h"
#include "lockstep/backend.h"
#include "lockstep/communicator.h"
#include "lockstep/ops/cast.h"

namespace lockstep::graph {

class ParameterArena {
 public:
  /// `n_masters`: elements of the arena of masters. `shard`: their part. `communicator`: if ranks gather weights in the
  /// arena, which is in its memory; the call is then collective. Otherwise null.
  ParameterArena(const ParameterTable& table, DType compute_dtype, Backend& backend, std::size_t n_masters,
                 const Shard& shard, StoredWeights weights, Communicator* communicator);
  /// The order of `table` is fixed. Ops compute in `compute_dtype`. Constants get their values; everything else is
  /// undefined.
  ParameterArena(const ParameterTable& table, DType compute_dtype, Backend& backend);

  /// With train.shard in 16 bits, the masters of this rank's pieces, followed by those that every rank has (Shard).
  const float* masters() const { return masters_of(*masters_); }
  /// The offset of masters() in the arena: the master of element i is masters()[i - first_master()] if every rank has
  /// it.
  std::size_t first_master() const { return first_master_; }
  /// In compute_dtype(); null where that is fp32.
  const void* compute_weights() const { return compute_weights_ ? compute_weights_->data() : nullptr; }
  DType compute_dtype() const { return compute_dtype_; }
  /// The place in compute_weights() of an element that this rank has.
  std::size_t stored_weight(std::size_t element) const { return weights_.at(element); }
  /// The matrices in NF4; null if there are none.
  const std::byte* nf4_weights() const {
    return nf4_weights_ ? static_cast<const std::byte*>(nf4_weights_->data()) : nullptr;
  }

  /// The members of Bindings that locate parameters.
  Bindings bindings() const {
    return {.parameters = masters(),
            .first_parameter = first_master_,
            .compute_weights = compute_weights(),
            .first_weight = first_weight_,
            .compute_dtype = compute_dtype_,
            .nf4_weights = nf4_weights()};
  }

  /// For the ops of a step's update: the optimizer writes both, and statistics exist in fp32 only.
  struct Update {
    float* masters = nullptr;
    void* compute_weights = nullptr;
  };
  Update update() { return {masters_of(*masters_), compute_weights_ ? compute_weights_->data() : nullptr}; }

  /// For all other writes of masters. Not while another thread calls it.
  float* edit() {
    is_stale_ = true;
    return masters_of(*masters_);
  }
  /// Rounds the masters if they were edited since the last call.
  void refresh(Stream& stream);
  /// Writes elements of a parameter that every rank has, from element `first` on, in the layout of the parameter.
  /// Without a master (Parameter::has_master), they are rounded to the compute type. A parameter in NF4 is quantised,
  /// and must be written as a whole.
  void write(const Parameter& parameter, std::size_t first, std::span<const float> values, Stream& stream);
  /// Writes masters that every rank has, such as running statistics. `begin`: an element of the arena.
  void write_masters(std::size_t begin, std::span<const float> values, Stream& stream);

 private:
  void write_without_master(std::size_t begin, std::span<const float> values, Stream& stream);
  /// Queues it: `values`, in the backend's memory, become the weights from element `begin` of the arena on. This rank
  /// has all of them.
  void round(const float* values, std::size_t begin, std::size_t n_elements, Stream& stream);
  void write_nf4(const Parameter& parameter, std::span<const float> values, Stream& stream);
  static float* masters_of(const Memory& memory) { return static_cast<float*>(memory.data()); }

  Backend& backend_;
  DType compute_dtype_;
  std::size_t n_with_masters_, first_master_, first_weight_;
  Shard shard_;
  StoredWeights weights_;
  std::unique_ptr<Memory> masters_, compute_weights_;  // the second null where ops compute in fp32
  std::unique_ptr<Memory> nf4_weights_;                // null if there are none
  std::unique_ptr<Cast> cast_;                         // likewise
  bool is_stale_ = true;
};

/// The most that one of several graphs needs of each arena, in bytes.
struct ForwardSizes {
  std::size_t activations = 0, workspace = 0, exchange = 0, cache = 0;
};
ForwardSizes forward_sizes(std::span<Graph* const> graphs);

/// The memory of graphs that only compute outputs, one at a time: arenas of forward_sizes(). Evaluation, prediction,
/// scoring and decoding with a trained model use it. A Replica has its own memory.
class ForwardArenas {
 public:
  /// Allocates the arenas and binds the graphs, which are planned. `parameters`: ParameterArena::bindings(). Throws
  /// out_of_memory.
  ForwardArenas(std::span<Graph* const> graphs, const Bindings& parameters, Backend& backend);

  /// What the graphs are bound to.
  const Bindings& bindings() const { return bindings_; }

 private:
  std::vector<std::unique_ptr<Memory>> memory_;
  Bindings bindings_;
};

}  // namespace lockstep::graph
