#include "train/micro_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <ranges>

#include "lockstep/error.h"
#include "train/replica.h"

namespace lockstep::train {

using graph::StepList;
using trace::Kind;

namespace {

constexpr std::size_t kLossElements = sizeof(LossSums) / sizeof(double);

}  // namespace

/// Weaves the list from the graph, the buckets and the role.
class MicroBatchWeaver {
 public:
  MicroBatchWeaver(StepPlan& plan, PlannedGraph& planned, const Role& role, Replica* replica)
      : plan_(plan),
        graph_(*planned.graph),
        role_(role),
        replica_(replica),
        list_(&graph_),
        units_(list_, plan, graph_, replica) {}

  StepList weave() {
    add_forward();
    list_.begin_part(Kind::backward, "backward");
    if (plan_.shards_gradients()) round_ = plan_.round_of(role_.number);
    if (!role_.is_last && plan_.shards_gradients()) {
      add_backward_and_starts();
      list_.begin_part(Kind::wait, "communication");
      for (std::size_t b = 0; b < buckets().size(); ++b) wait_for(b);
      return std::move(list_);
    }
    if (!role_.is_last) {
      add_backward({});
      add_sum({0, table().n_trainable()}, {0, table().n_gradients()});
      return std::move(list_);
    }
    add_backward_and_starts();
    add_reduction();
    add_update();
    return std::move(list_);
  }

 private:
  using Range = ElementRange;
  const graph::ParameterTable& table() const { return plan_.parameters(); }
  const std::vector<comm::Bucket>& buckets() const { return plan_.buckets(); }
  bool is_sharded() const { return !plan_.shard().is_whole(); }

  /// `work`: called with the replica and its stream; may be a member function.
  template <typename Work>
  void add_task(Kind kind, const char* name, const Work& work) {
    list_.add_task({kind, name, [replica = replica_, work](Stream& stream) { std::invoke(work, *replica, stream); }});
  }

  void add_forward() {
    list_.begin_part(Kind::forward, "forward");
    if (role_.number == 0) begin_gathers();
    for (std::size_t i = 0; i < graph_.order().n_forward(); ++i) {
      for (const graph::ParameterUse* use : node_at(i).parameters())
        if (use->exists() && !plan_.weights().place_of(use->id()))  // otherwise, it belongs to a unit
          wait_for_weights({table()[use->id()].begin, table()[use->id()].n_elements});
      units_.add_before(i);
      list_.add_entry(i);
    }
    wait_for_weights({0, table().n_total()});
    if (plan_.batch().is_tree || plan_.shards_gradients())
      add_task(Kind::forward, "sum of losses", [number = role_.number](Replica& replica, Stream& stream) {
        replica.accumulator_->add_loss(number, stream);
      });
  }

  // Of the first micro-batch

  /// The weights that are sharded are gathered in the reverse order of the backward pass. That is about the order of
  /// the forward pass, so that the first layers run while the weights of later ones are on their way. Those that are on
  /// their way from the host are gathered shortly before they are read.
  void begin_gathers() {
    if (is_sharded() && !plan_.shards_weights())
      for (const comm::Bucket& bucket : buckets())
        if (bucket.is_sharded()) not_gathered_.push_back(&bucket);
    if (!plan_.offloads()) return start_gathers(not_gathered_.size());
    is_updated_.resize(buckets().size());
    add_task(Kind::update, "optimizer on the host",
             [](Replica& replica, Stream& stream) { replica.offload_->update(stream); });
    units_.before_gather = [this](const Range& range) { wait_for_update(range); };
    start_gathers(2);
  }
  void start_gathers(std::size_t n) {
    for (; n > 0 && !not_gathered_.empty(); --n) {
      const comm::Bucket& bucket = *not_gathered_.back();
      not_gathered_.pop_back();
      wait_for_update({bucket.begin, bucket.n_elements});
      gathers_.push_back(add_gather(list_, plan_, bucket, replica_ ? replica_->shared_weights() : nullptr));
    }
  }
  /// With train.offload: waits for the new weights of this rank.
  void wait_for_update(const Range& range) {
    for (std::size_t b = 0; b < is_updated_.size(); ++b) {
      if (is_updated_[b] || overlap({buckets()[b].begin, buckets()[b].n_elements}, range).n_elements == 0) continue;
      is_updated_[b] = true;
      add_task(Kind::wait, "weights from the host",
               [b](Replica& replica, Stream& stream) { replica.offload_->wait_for_weights(b, stream); });
    }
  }
  void wait_for_weights(const Range& range) {
    wait_for_update(range);
    const auto is_read = [&](const Range& other) { return overlap(other, range).n_elements > 0; };
    while (std::ranges::any_of(not_gathered_, [&](const comm::Bucket* b) {
      return is_read({b->begin, b->n_elements});
    }))
      start_gathers(1);
    start_gathers(std::erase_if(gathers_, [&](const Gather& gather) {
      if (!is_read(gather.range)) return false;
      list_.add_wait(gather.exchange);
      return true;
    }));
  }

  /// Calls `done` after an entry that completes the gradient of a parameter, once for each.
  void add_backward(const std::function<void(graph::ParameterId)>& done) {
    for (std::size_t i = graph_.order().n_forward(); i < graph_.order().entries().size(); ++i) {
      const graph::Entry entry = graph_.order().entries()[i];
      if (plan_.shards_gradients() && entry.phase == graph::Phase::backward)
        for (const graph::ParameterUse* use : node_at(i).written_parameters())
          if (use->exists() && table()[use->id()].trainable) begin_slot(plan_.slot_of(table()[use->id()].begin));
      units_.add_before(i);
      list_.add_entry(i);
      if (!done || entry.phase != graph::Phase::backward) continue;
      for (const graph::ParameterId id : graph_.finished_by(entry.node)) done(id);
    }
    list_.add_join_of_all();
  }

  /// Gradients are finished in the order of the arena, apart from those at its end.
  void add_backward_and_starts() {
    int tensor = 0;
    const auto done = [&] {
      for (; next_ < buckets().size() && buckets()[next_].last_tensor == tensor; ++next_) add_bucket(buckets()[next_]);
      ++tensor;
    };
    add_backward([&](graph::ParameterId id) {
      if (table()[id].begin < table().n_in_compute_type()) done();
    });
    const std::size_t n_tensors = table().order().size() + table().n_trained_statistics();
    while (static_cast<std::size_t>(tensor) < n_tensors) done();
    require(next_ == buckets().size(), ErrorCode::internal,
            "only {} of {} buckets are complete after the backward pass", next_, buckets().size());
  }

  void add_bucket(const comm::Bucket& bucket) {
    list_.add_join_of_all();
    const Range range{bucket.begin, bucket.n_elements};
    if (!plan_.shards_gradients())
      add_sum(range, range);
    else if (next_ == slots()[plan_.slot_of(bucket.begin)].first_bucket || !bucket.is_sharded())
      widen(bucket);
    SumRound round = round_;
    if (round.exists() && replica_) {
      round.open = replica_->accumulator_->sum_at(bucket.shard(plan_.batch().rank).begin).data;
      round.stride = plan_.summed_bytes() / size_bytes(bucket.dtype);
    }
    void* const data = replica_ ? replica_->gradients().at(bucket.begin).data : nullptr;
    exchanges_.push_back(list_.add_start(
        {.exchange = {.collective = bucket.is_sharded() ? Collective::reduce_scatter : Collective::all_reduce,
                      .slice = {.data = data,
                                .n_elements = bucket.n_elements,
                                .dtype = bucket.dtype,
                                .wire = bucket.dtype == DType::fp32 ? bucket.wire : DType::fp32},
                      .round = round},
         .label = fmt::format("bucket {} of {}", next_ + 1, buckets().size()),
         .is_timed = true}));
    if (plan_.shards_gradients() && bucket.is_sharded()) end_slot_after(bucket);
    // Its sum goes to the host while the next layers are computed. The exchange of the bucket after it is on its way.
    if (plan_.offloads() && role_.is_last && next_ > 1) wait_for(next_ - 2);
  }

  // With train.shard=gradients

  const std::vector<GradientSlot>& slots() const { return plan_.gradient_slots(); }
  /// Before the first gradient is written to a slot: waits for the exchanges of what its memory had before, and clears
  /// what ops do not write but the norm of the gradients reads.
  void begin_slot(std::size_t number) {
    if (slot_has_begun_.empty()) slot_has_begun_.resize(slots().size());
    if (slot_has_begun_[number]) return;
    slot_has_begun_[number] = true;
    const GradientSlot& slot = slots()[number];
    for (const GradientSlot& other : slots()) {
      if (&other == &slot || overlap(other.memory, slot.memory).n_elements == 0) continue;
      for (std::size_t b = other.first_bucket; b < other.first_bucket + other.n_buckets; ++b) {
        if (b < next_)
          wait_for(b);
        else
          require(!slot_has_begun_[plan_.slot_of(buckets()[b].begin)], ErrorCode::internal,
                  "two slots of gradients overlap");
      }
    }
    for (const Range& padding : plan_.padding_of(slot))
      add_task(Kind::backward, "padding",
               [padding](Replica& replica, Stream& stream) { replica.clear_gradients(padding, stream); });
  }

  /// Widens the gradients that the bucket's slot completes.
  void widen(const comm::Bucket& bucket) {
    const std::vector<Range> tensors = plan_.gradient_tensors();
    const auto last = static_cast<std::size_t>(bucket.last_tensor);
    for (; widened_ <= last; ++widened_) add_sum(tensors[widened_], {});
  }

  /// What the buckets of a slot leave over goes to the next one.
  void end_slot_after(const comm::Bucket& bucket) {
    const std::size_t number = plan_.slot_of(bucket.begin);
    if (next_ + 1 < slots()[number].first_bucket + slots()[number].n_buckets) return;
    const std::size_t begin = bucket.end(), end = slots()[number].range.end();
    begin_slot(number + 1);
    if (begin >= end) return;
    const std::size_t from = slots()[number].range.begin;
    add_task(Kind::backward, "gradients of the next bucket", [from, begin, end](Replica& replica, Stream& stream) {
      replica.copy_gradients(from, {begin, end - begin}, stream);
    });
  }

  /// Adds the sum over ranks to those of earlier micro-batches, unless its exchange has done so.
  void wait_for(std::size_t bucket) {
    if (is_waited_for_.empty()) is_waited_for_.resize(buckets().size());
    if (is_waited_for_[bucket]) return;
    is_waited_for_[bucket] = true;
    list_.add_wait(exchanges_[bucket]);
    const bool is_summed = round_.exists() && (buckets()[bucket].is_sharded() || !role_.is_last);
    if (plan_.shards_gradients() && !is_summed) {
      const bool is_first = role_.number == 0 || round_.exists();
      add_task(Kind::backward, "sum of micro-batches", [bucket, is_first](Replica& replica, Stream& stream) {
        replica.accumulator_->keep_sum(bucket, is_first, stream);
      });
    }
    if (plan_.offloads() && role_.is_last)
      add_task(Kind::backward, "sums to the host", [bucket](Replica& replica, Stream& stream) {
        replica.offload_->download(bucket, *replica.accumulator_, stream);
      });
  }

  /// Widens the gradients that ops have written in 16 bits, and adds earlier micro-batches.
  void add_sum(const Range& widened, const Range& summed) {
    for (const Range& narrow : graph_.low_precision_gradients()) {
      const Range both = overlap(widened, narrow);
      if (both.n_elements == 0) continue;
      add_task(Kind::backward, "gradients in fp32", [number = role_.number, both](Replica& replica, Stream& stream) {
        replica.widen_gradients(number, both, stream);
      });
    }
    if (!plan_.batch().is_tree || summed.n_elements == 0) return;
    add_task(Kind::backward, "sum of micro-batches", [number = role_.number, summed](Replica& replica, Stream& stream) {
      replica.accumulator_->add_gradients(number, summed, stream);
    });
  }

  void add_reduction() {
    if (!plan_.shards_gradients()) add_task(Kind::update, "loss of this rank", &Replica::report_local);
    const int loss =
        list_.add_start({.exchange = {.slice = {.data = replica_ ? replica_->sums_ : nullptr,
                                                .n_elements = StepSums::kElements + plan_.n_losses() * kLossElements,
                                                .dtype = DType::fp64}},
                         .label = "loss",
                         .is_timed = true});
    if (is_sharded()) add_task(Kind::update, "clear the norm", &Replica::clear_tiles);
    list_.begin_part(Kind::wait, "communication");
    for (std::size_t b = 0; b < buckets().size(); ++b) {
      wait_for(b);
      if (buckets()[b].is_sharded() || !is_sharded()) add_squares(b);
    }
    list_.add_wait(loss);
    if (plan_.n_losses() > 0)
      add_task(Kind::update, "sum of losses",
               [](Replica& replica, Stream& stream) { replica.accumulator_->sum_losses(stream); });
    list_.begin_part(Kind::update, "update");
    if (is_sharded()) {
      // Every rank has summed the tiles of its shards, and has zeros for the others, so an all-reduce exchanges them.
      // Afterwards, each rank sums the tiles of buckets that are not sharded.
      list_.add_wait(list_.add_start({.exchange = {.slice = {.data = replica_ ? replica_->tile_sums_ : nullptr,
                                                             .n_elements = plan_.tile_sums_bytes() / sizeof(double),
                                                             .dtype = DType::fp64}},
                                      .label = "gradient norm",
                                      .is_timed = true}));
      for (std::size_t b = 0; b < buckets().size(); ++b)
        if (!buckets()[b].is_sharded()) add_squares(b);
    }
    add_task(Kind::update, "sums of the step", &Replica::report_sums);
  }

  void add_squares(std::size_t bucket) {
    if (plan_.range_of_norm(bucket).n_elements == 0) return;
    add_task(Kind::update, "sum of squares",
             [bucket](Replica& replica, Stream& stream) { replica.sum_tiles(bucket, stream); });
  }

  void add_update() {
    // The norm is computed in every step: it lets all ranks make the same decision whether the step is applied, without
    // the host.
    add_task(Kind::update, "gradient norm", &Replica::apply_norm);
    add_task(Kind::wait, "copy for a checkpoint", &Replica::wait_for_copy);
    if (plan_.offloads())
      add_task(Kind::update, "sums on the host", [](Replica& replica, Stream& stream) {
        replica.offload_->end_downloads(&replica.state_->scalars, stream);
      });
    else
      add_task(Kind::update, "optimizer", &Replica::apply_optimizer);
    if (table().n_trained_statistics() > 0) add_task(Kind::update, "running statistics", &Replica::update_statistics);
    if (plan_.averages() == Averages::kept)
      add_task(Kind::update, "averages of the weights", &Replica::update_averages);
  }

  graph::Node& node_at(std::size_t position) const {
    return *graph_.nodes()[static_cast<std::size_t>(graph_.order().entries()[position].node)];
  }

  StepPlan& plan_;
  graph::Graph& graph_;
  Role role_;
  Replica* replica_;
  StepList list_;
  UnitGathers units_;
  std::size_t next_ = 0;        // bucket
  std::vector<int> exchanges_;  // of each bucket
  std::vector<bool> is_waited_for_, slot_has_begun_;
  std::size_t widened_ = 0;  // tensors
  SumRound round_;
  std::vector<const comm::Bucket*> not_gathered_;  // the next one last
  std::vector<Gather> gathers_;                    // that nothing waits for yet
  std::vector<bool> is_updated_;                   // buckets; empty: nothing is updated on the host
};

StepList list_of(StepPlan& plan, PlannedGraph& planned, const Role& role, Replica* replica) {
  return MicroBatchWeaver(plan, planned, role, replica).weave();
}

UnitGathers::UnitGathers(StepList& list, const StepPlan& plan, const graph::Graph& graph, Replica* replica)
    : UnitGathers(list, plan, replica) {
  uses_ = plan.weights().uses_in(graph);
}

void UnitGathers::add_before(std::size_t position) {
  for (; n_started_ < uses_.size() && uses_[n_started_].gathered <= position; ++n_started_) start(uses_[n_started_]);
  for (; n_waited_ < uses_.size() && uses_[n_waited_].first <= position; ++n_waited_) wait(uses_[n_waited_]);
}

// What the memory of the unit had before is no longer read: the exchange begins when the stream has come here.
void UnitGathers::start(const UnitUse& use) {
  const WeightUnit& unit = plan_.weights().units()[use.unit];
  std::vector<int>& exchanges = exchanges_[use.unit];
  exchanges.clear();
  if (before_gather) before_gather(unit.rest);
  for (const GatheredPart& part : unit.parts) {
    if (before_gather) before_gather(part.range);
    exchanges.push_back(list_.add_start(
        {.exchange = {.collective = Collective::all_gather,
                      .slice = {.data = replica_ ? replica_->gathered_weights() + unit.offset + part.offset : nullptr,
                                .n_elements = part.n_elements,
                                .dtype = part.dtype}},
         .label = fmt::format("weights from {} on", unit.name),
         .is_timed = true,
         .shard = replica_ ? replica_->stored_weights(part.is_nf4) + part.stored : nullptr}));
  }
}

void UnitGathers::wait(const UnitUse& use) {
  const WeightUnit& unit = plan_.weights().units()[use.unit];
  for (const int exchange : exchanges_[use.unit]) list_.add_wait(exchange);
  if (unit.rest.n_elements > 0)
    list_.add_task({Kind::forward, "weights that every rank has",
                    [replica = replica_, &unit](Stream& stream) { replica->copy_rest_of(unit, stream); }});
}

StepList UnitGathers::list_of(const StepPlan& plan, std::size_t unit, Replica* replica) {
  StepList list;
  UnitGathers gathers(list, plan, replica);
  gathers.start({.unit = unit});
  gathers.wait({.unit = unit});
  return list;
}

Gather add_gather(StepList& list, const StepPlan& plan, const comm::Bucket& bucket, void* weights) {
  const DType dtype = plan.compute_dtype();
  void* const data = weights ? static_cast<std::byte*>(weights) + bucket.begin * size_bytes(dtype) : nullptr;
  const int exchange =
      list.add_start({.exchange = {.collective = Collective::all_gather,
                                   .slice = {.data = data, .n_elements = bucket.n_elements, .dtype = dtype}},
                      .label = fmt::format("weights, {} to {}", bucket.first_name, bucket.last_name)});
  return {{bucket.begin, bucket.n_elements}, exchange};
}

StepList gather_list(const StepPlan& plan, void* weights) {
  StepList list;
  for (const comm::Bucket& bucket : std::views::reverse(plan.buckets()))
    if (bucket.is_sharded()) list.add_wait(add_gather(list, plan, bucket, weights).exchange);
  return list;
}

}  // namespace lockstep::train
