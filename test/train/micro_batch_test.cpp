// The list of a micro-batch: the sum of a bucket starts when its gradients are complete, gathered weights are there
// before a node reads them, and everything that starts is waited for.
#include "train/micro_batch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tasks/task.h"
#include "test/train/small_run.h"

namespace lockstep::train {
namespace {

using graph::Action;
using graph::Do;

struct Planned {
  explicit Planned(const Config& config, int ranks)
      : task(test::task_of(config)),
        plan(config, *task, batch_shape(config, 0, ranks), *backend,
             comm::topology_of(config.comm, comm::planned_ranks(ranks, 1), {}, backend->memory_space())) {}
  graph::StepList list(const Role& role) {
    const BatchShape& batch = plan.batch();
    return list_of(plan, plan.training(batch.micro_batch_size(role.number), batch.global_micro_batch_size(role.number)),
                   role, nullptr);
  }

  std::unique_ptr<Backend> backend = make_backend({.device = "cpu", .threads = 1});
  std::unique_ptr<tasks::Task> task;
  StepPlan plan;
};

Config config_of(const std::string& shard) {
  Config config = test::small_config(8, 4);
  config.train.shard = shard;
  config.comm.bucket_mb = 0.01;
  return config;
}

std::size_t place(const graph::StepList& list, Do what, int index) {
  const auto& actions = list.actions();
  return static_cast<std::size_t>(
      std::ranges::find_if(actions,
                           [&](const Action& action) { return action.what == what && action.index == index; }) -
      actions.begin());
}

TEST(MicroBatch, SumsOfBucketsStartWhenTheirGradientsAreComplete) {
  for (const std::string shard : {"none", "optimizer", "gradients"}) {
    Planned planned(config_of(shard), 2);
    const graph::StepList list = planned.list({.number = 0, .is_last = true});
    const graph::Graph& graph = *planned.plan.largest().graph;
    const auto& buckets = planned.plan.buckets();
    ASSERT_GT(buckets.size(), 3u);
    const graph::ParameterTable& table = planned.plan.parameters();
    std::size_t n_checked = 0;
    for (std::size_t e = 0; e < list.exchanges().size(); ++e) {
      const graph::PlannedExchange& exchange = list.exchanges()[e];
      if (!exchange.label.starts_with("bucket ")) continue;
      const comm::Bucket& bucket = buckets[n_checked++];
      EXPECT_EQ(exchange.exchange.slice.n_elements, bucket.n_elements);
      const std::size_t start = place(list, Do::start, static_cast<int>(e));
      std::size_t last_writer = 0;
      for (int node = 0; node < graph.n_nodes(); ++node)
        for (const graph::ParameterId id : graph.finished_by(node))
          if (table[id].begin < bucket.end() && bucket.begin < table[id].begin + table[id].n_elements)
            last_writer = std::max(last_writer, place(list, Do::backward, node));
      EXPECT_LT(last_writer, start) << exchange.label;
      if (n_checked == 1) {
        std::size_t next = start + 1;  // a tensor may be divided into several buckets
        while (list.actions()[next].what == Do::start || list.actions()[next].what == Do::run) ++next;
        EXPECT_EQ(list.actions()[next].what, Do::backward) << "it does not overlap";
      }
    }
    EXPECT_EQ(n_checked, buckets.size());
  }
}

TEST(MicroBatch, WaitsOnceForEverythingThatStarts) {
  for (const std::string shard : {"none", "optimizer", "gradients", "parameters"})
    for (const bool is_last : {false, true}) {
      Planned planned(config_of(shard), 2);
      const graph::StepList list = planned.list({.number = 0, .is_last = is_last});
      std::multiset<int> started, waited;
      for (const Action& action : list.actions()) {
        if (action.what == Do::start) started.insert(action.index);
        if (action.what != Do::wait) continue;
        EXPECT_TRUE(started.contains(action.index)) << "before it starts";
        waited.insert(action.index);
      }
      EXPECT_EQ(started, waited);
      EXPECT_EQ(started.size(), std::set<int>(started.begin(), started.end()).size());
      EXPECT_EQ(list.exchanges().empty(), shard == "none" && !is_last);
    }
}

/// The memory of a slot is written again only after the exchanges that read it have been waited for.
TEST(MicroBatch, SlotsOfGradientsAreFreeBeforeTheyAreWritten) {
  Planned planned(config_of("gradients"), 2);
  const StepPlan& plan = planned.plan;
  const graph::StepList list = planned.list({.number = 0, .is_last = false});
  const graph::Graph& graph = *plan.largest().graph;
  const graph::ParameterTable& table = plan.parameters();
  const std::vector<GradientSlot>& slots = plan.gradient_slots();
  ASSERT_GT(slots.size(), 4u);
  std::size_t n_shared = 0, size_bytes = 0;
  for (const GradientSlot& slot : slots) {
    size_bytes += slot.memory.n_elements;
    for (int node = 0; node < graph.n_nodes(); ++node) {
      const bool writes = std::ranges::any_of(graph.nodes()[static_cast<std::size_t>(node)]->written_parameters(),
                                              [&](const graph::ParameterUse* use) {
                                                return use->exists() && table[use->id()].trainable &&
                                                       overlap({table[use->id()].begin, 1}, slot.range).n_elements > 0;
                                              });
      if (!writes) continue;
      const std::size_t write = place(list, Do::backward, node);
      for (const GradientSlot& other : slots) {
        if (&other == &slot || overlap(other.memory, slot.memory).n_elements == 0) continue;
        for (std::size_t b = other.first_bucket; b < other.first_bucket + other.n_buckets; ++b) {
          const auto exchange =
              std::ranges::find(list.exchanges(), fmt::format("bucket {} of {}", b + 1, plan.buckets().size()),
                                &graph::PlannedExchange::label) -
              list.exchanges().begin();
          const std::size_t start = place(list, Do::start, static_cast<int>(exchange)),
                            wait = place(list, Do::wait, static_cast<int>(exchange));
          EXPECT_TRUE(wait < write || write < start) << graph.nodes()[static_cast<std::size_t>(node)]->name();
          ++n_shared;
        }
      }
    }
  }
  EXPECT_GT(n_shared, 0u);
  EXPECT_LT(plan.gradient_layout().size_bytes(), size_bytes) << "no slots share memory";
  for (const comm::Bucket& bucket : plan.buckets()) {
    const GradientSlot& slot = slots[plan.slot_of(bucket.begin)];
    EXPECT_LE(bucket.end(), slot.range.end());
    EXPECT_EQ(plan.gradient_layout().offset_bytes(bucket.begin),
              slot.memory.begin + (bucket.begin - slot.range.begin) * sizeof(float));
  }
}

/// Follows a list: what the memory of gathered weights has when a node reads it.
TEST(MicroBatch, UnitsOfWeightsAreThereWhileNodesReadThem) {
  for (const char* recompute : {"none", "block", "selective"}) {
    Config config = test::small_text_config(5, 4);
    config.train.shard = "parameters";
    config.model.recompute = recompute;
    Planned planned(config, 2);
    const WeightUnits& weights = planned.plan.weights();
    const graph::ParameterTable& table = planned.plan.parameters();
    const graph::StepList list = planned.list({.number = 0, .is_last = true});
    const graph::Graph& graph = *planned.plan.largest().graph;
    enum class Memory : std::uint8_t { has_others, is_on_its_way, is_there };
    std::vector<Memory> memory(weights.units().size());
    std::vector<int> n_gathers(weights.units().size());
    const auto find_unit = [&](const auto& is_it) {
      return static_cast<std::size_t>(std::ranges::find_if(weights.units(), is_it) - weights.units().begin());
    };
    const auto unit_of = [&](int exchange) {
      const std::string& label = list.exchanges()[static_cast<std::size_t>(exchange)].label;
      return find_unit([&](const WeightUnit& unit) { return label == "weights from " + unit.name + " on"; });
    };
    std::size_t newest = memory.size();
    for (const Action& action : list.actions()) {
      if (action.what == Do::start || action.what == Do::wait) {
        const std::size_t unit = unit_of(action.index);
        if (unit == memory.size()) continue;  // another exchange
        memory[unit] = action.what == Do::start ? Memory::is_on_its_way : Memory::is_there;
        if (action.what == Do::wait) continue;
        n_gathers[unit] += unit != newest ? 1 : 0;  // bucket by bucket
        newest = unit;
        const WeightUnit& mine = weights.units()[unit];
        for (std::size_t other = 0; other < memory.size(); ++other) {
          const WeightUnit& theirs = weights.units()[other];
          if (other == unit ||
              overlap({mine.offset, mine.size_bytes}, {theirs.offset, theirs.size_bytes}).n_elements == 0)
            continue;
          EXPECT_NE(memory[other], Memory::is_on_its_way) << theirs.name << " and " << mine.name;
          memory[other] = Memory::has_others;
        }
      }
      if (action.what != Do::forward && action.what != Do::recompute && action.what != Do::backward) continue;
      graph::Node& node = *graph.nodes()[static_cast<std::size_t>(action.index)];
      if (action.what == Do::backward && !node.backward_reads_weights()) continue;
      for (const graph::ParameterUse* use : node.parameters()) {
        if (!use->exists() || !weights.place_of(use->id())) continue;
        const std::size_t unit = find_unit([&](const WeightUnit& u) {
          return std::ranges::find(table.parameters(), u.name, &graph::Parameter::name)->unit == table[use->id()].unit;
        });
        EXPECT_EQ(memory[unit], Memory::is_there) << node.name() << " reads " << weights.units()[unit].name;
      }
    }
    std::size_t size_bytes = 0;
    for (const WeightUnit& unit : weights.units()) size_bytes += unit.size_bytes;
    EXPECT_LT(weights.size_bytes(), size_bytes * 3 / 4) << "units do not share memory";
    // Layers for each pass, the last of which stays in memory for its backward pass; the tied embedding twice, too.
    EXPECT_EQ(std::ranges::count(n_gathers, 2), 5) << recompute;
    EXPECT_EQ(std::ranges::max(n_gathers), 2) << recompute;
  }
}

TEST(MicroBatch, GatheredWeightsAreThereBeforeANodeReadsThem) {
  Planned planned(config_of("optimizer"), 2);
  const graph::StepList list = planned.list({.number = 0, .is_last = true});
  const graph::Graph& graph = *planned.plan.largest().graph;
  const graph::ParameterTable& table = planned.plan.parameters();
  int exchange = 0;
  std::size_t first_wait = list.actions().size(), last_wait = 0;
  for (auto bucket = planned.plan.buckets().rbegin(); bucket != planned.plan.buckets().rend(); ++bucket) {
    if (!bucket->is_sharded()) continue;
    const std::size_t wait = place(list, Do::wait, exchange++);
    first_wait = std::min(first_wait, wait);
    last_wait = std::max(last_wait, wait);
    for (int node = 0; node < graph.n_nodes(); ++node)
      for (const graph::ParameterUse* use : graph.nodes()[static_cast<std::size_t>(node)]->parameters()) {
        if (!use->exists() || table[use->id()].begin >= bucket->end() ||
            table[use->id()].begin + table[use->id()].n_elements <= bucket->begin)
          continue;
        EXPECT_LT(wait, place(list, Do::forward, node)) << graph.nodes()[static_cast<std::size_t>(node)]->name();
      }
  }
  EXPECT_GT(exchange, 3);
  EXPECT_LT(place(list, Do::forward, 0), last_wait) << "the first layers do not run while weights are on their way";
}

}  // namespace
}  // namespace lockstep::train
