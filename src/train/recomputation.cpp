#include "train/recomputation.h"

#include "base/clock.h"
#include "base/matmul_rate.h"
#include "graph/graph.h"
#include "lockstep/ops/add.h"

namespace lockstep::train {
namespace {

double bytes_of(const graph::Graph& graph, graph::Node& node) {
  double bytes = 0;
  for (const auto* ids : {&node.inputs(), &node.outputs()})
    for (const graph::ActivationId id : *ids) bytes += static_cast<double>(graph.activation(id).size_bytes());
  for (const graph::ParameterUse* use : node.parameters())
    if (use->exists())
      bytes += static_cast<double>(graph.parameters()[use->id()].n_elements * size_bytes(use->dtype()));
  return bytes;
}

/// The bytes per second that the op `add` reads and writes, with tensors that are too large for the caches.
double measure_bandwidth(Backend& backend) {
  constexpr std::int64_t kElements = std::int64_t{32} << 20;  // 128 MiB
  constexpr double kSeconds = 0.1;
  const auto op = backend.make(AddDescription{.n_elements = kElements});
  const std::size_t size_bytes = static_cast<std::size_t>(kElements) * sizeof(float);
  const auto a = backend.allocate(size_bytes, "a sum whose speed is measured");
  const auto b = backend.allocate(size_bytes, "a sum whose speed is measured");
  const auto stream = backend.make_stream();
  for (const auto* memory : {&a, &b}) fill_random(backend, **memory, DType::fp32, *stream);
  const double shortest = shortest_seconds(1, kSeconds, [&] {
    op->forward({.a = a->data(), .b = b->data(), .y = a->data()}, {}, *stream);
    stream->synchronize();
  });
  return 3 * static_cast<double>(size_bytes) / shortest;
}

}  // namespace

RecomputedWork recomputed_work(const graph::Graph& graph) {
  RecomputedWork work;
  for (const graph::Entry& entry : graph.order().entries()) {
    if (entry.phase != graph::Phase::recompute) continue;
    graph::Node& node = *graph.nodes()[static_cast<std::size_t>(entry.node)];
    const double bytes = bytes_of(graph, node);
    if (const auto* counted = dynamic_cast<const graph::CountsFlops*>(&node))
      work.flops += counted->flops().forward;
    else
      work.other_bytes += bytes;
    work.bytes += bytes;
    ++work.n_nodes;
  }
  return work;
}

RecomputationReport report_recomputation(StepPlan& plan, const StepPlan& kept, Backend* device) {
  const BatchShape& batch = plan.batch();
  const graph::Graph* largest = nullptr;
  for (int i = 0; i < batch.n_micro_batches; ++i)
    if (batch.micro_batch_size(i) == batch.largest_micro_batch())
      largest = plan.training(batch.micro_batch_size(i), batch.global_micro_batch_size(i)).graph.get();
  RecomputationReport report{.activation_bytes = plan.memory(MemoryOf::training).activations,
                             .kept_activation_bytes = kept.memory(MemoryOf::training).activations,
                             .added = recomputed_work(*largest),
                             .model_flops = graph::flops_of(*largest),
                             .seconds = {}};
  if (device)
    report.seconds = report.added.flops / measure_matmul_rate(*device, plan.config().precision) +
                     report.added.other_bytes / measure_bandwidth(*device);
  return report;
}

}  // namespace lockstep::train
