#include "graph/step_list.h"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::graph {
namespace {

bool is_known_to_be_done(const Event& event) noexcept {
  try {
    return event.is_done();
  } catch (const std::exception&) {
    return false;  // the device has failed, or an exception interrupted a graph capture
  }
}

}  // namespace

StepList::~StepList() {
  for (InFlight& events : in_flight_) {
    if (!events.is_pending || is_known_to_be_done(*events.done)) continue;
    // Leaked on purpose; the process is about to end.
    (void)events.ready.release();
    (void)events.done.release();
  }
}

void StepList::begin_part(trace::Kind kind, const char* name) { parts_.push_back({actions_.size(), kind, name}); }

void StepList::add_join(std::size_t n_forks) {
  if (n_forks <= n_joined_) return;
  n_joined_ = n_forks;
  add(Do::join, n_forks - 1);  // the second stream runs them in order
}

void StepList::add_join_of_all() { add_join(n_forked_); }

void StepList::add_entry(std::size_t position) {
  const Entry entry = graph_->order().entries()[position];
  const Node& node = *graph_->nodes()[static_cast<std::size_t>(entry.node)];
  const auto number = static_cast<std::size_t>(entry.node);
  std::size_t n_due = n_joined_;
  while (n_due < n_forked_ && graph_->forks()[n_due].end <= position) ++n_due;
  add_join(n_due);
  if (const SumOverRanks* sum = node.sum_over_ranks(entry.phase)) {
    std::byte* const exchange = graph_->bindings().exchange;
    void* const slot = exchange ? exchange + sum->offset : nullptr;
    add_wait(add_start({.exchange = {.slice = {.data = slot, .n_elements = sum->n, .dtype = DType::fp64}},
                        .label = sum->label,
                        .copied = sum->local}));
  }
  if (entry.phase != Phase::backward) return add(entry.phase == Phase::forward ? Do::forward : Do::recompute, number);
  const bool forks = n_forked_ < graph_->forks().size() && graph_->forks()[n_forked_].begin == position;
  if (forks) add(Do::fork, n_forked_);
  add(Do::backward, number);
  if (forks) add(Do::weight_gradient, n_forked_++);
}

int StepList::add_start(PlannedExchange exchange) {
  exchanges_.push_back(std::move(exchange));
  add(Do::start, exchanges_.size() - 1);
  return static_cast<int>(exchanges_.size()) - 1;
}

void StepList::add_wait(int exchange) { actions_.push_back({Do::wait, exchange}); }

void StepList::add_task(Task task) {
  tasks_.push_back(std::move(task));
  add(Do::run, tasks_.size() - 1);
}

const std::string& StepList::name_of(const Action& action) const {
  const auto index = static_cast<std::size_t>(action.index);
  switch (action.what) {
    case Do::forward:
    case Do::recompute:
    case Do::backward:
      return graph_->nodes()[index]->name();
    case Do::fork:
    case Do::weight_gradient:
    case Do::join:
      return graph_->forked_node(index).name();
    case Do::start:
    case Do::wait:
      return exchanges_[index].label;
    case Do::run:
      break;
  }
  return tasks_[index].name;
}

std::string StepList::text() const {
  constexpr std::array<std::string_view, 9> kNames{"forward", "recompute", "backward", "fork", "weight gradient",
                                                   "join",    "start",     "wait",     "run"};
  std::string text;
  std::size_t part = 0;
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    for (; part < parts_.size() && parts_[part].begin == i; ++part) text += fmt::format("{}:\n", parts_[part].name);
    const Action& action = actions_[i];
    std::string bytes;
    if (action.what == Do::start) {
      const Slice& slice = exchanges_[static_cast<std::size_t>(action.index)].exchange.slice;
      const DType wire = slice.dtype == DType::fp32 ? slice.wire : slice.dtype;
      bytes = fmt::format("  {} bytes as {}", slice.n_elements * size_bytes(wire), lockstep::name(wire));
    }
    text += fmt::format("  {:>5}  {:<16}{}{}\n", i + 1, kNames[static_cast<std::size_t>(action.what)], name_of(action),
                        bytes);
  }
  return text;
}

void StepList::bind(Backend& backend, Communicator* communicator) {
  backend_ = &backend;
  communicator_ = communicator;
  for (const PlannedExchange& planned : exchanges_) {
    InFlight& events = in_flight_.emplace_back();
    events.ready = backend.make_event();
    events.done = communicator->make_event();
    if (!planned.is_timed) continue;
    events.wait_begin = backend.make_timing_event();
    events.wait_end = backend.make_timing_event();
  }
  for (std::size_t i = 0; i < n_forked_; ++i) forks_.push_back({backend.make_event(), backend.make_event()});
}

void StepList::start(const PlannedExchange& planned, InFlight& events, Stream& stream) {
  const Slice& slice = planned.exchange.slice;
  if (planned.copied != kNoTensor)
    backend_->copy(slice.data, graph_->tensor(planned.copied), slice.n_elements * size_bytes(slice.dtype), stream);
  if (planned.shard != nullptr) {
    const std::size_t n_bytes =
        slice.n_elements / static_cast<std::size_t>(communicator_->size()) * size_bytes(slice.dtype);
    backend_->copy(static_cast<std::byte*>(slice.data) + static_cast<std::size_t>(communicator_->rank()) * n_bytes,
                   planned.shard, n_bytes, stream);
  }
  events.ready->record(stream);
  communicator_->exchange_async(planned.exchange, *events.ready, *events.done, planned.label);
  events.is_pending = true;
}

void StepList::wait(InFlight& events, Stream& stream) {
  if (events.wait_begin) events.wait_begin->record(stream);
  stream.wait(*events.done);
  if (events.wait_end) events.wait_end->record(stream);
  events.is_pending = false;
}

void StepList::queue(Stream& stream, const ParameterGradients& gradients, Observer* observer) {
  const auto end_of = [&](std::size_t part) { return part < parts_.size() ? parts_[part].begin : actions_.size(); };
  queue(0, end_of(0), stream, gradients, observer);
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const trace::Span span(parts_[part].kind, parts_[part].name);
    queue(parts_[part].begin, end_of(part + 1), stream, gradients, observer);
  }
}

void StepList::queue(std::size_t begin, std::size_t end, Stream& stream, const ParameterGradients& gradients,
                     Observer* observer) {
  for (std::size_t i = begin; i < end; ++i) {
    const Action& action = actions_[i];
    const auto index = static_cast<std::size_t>(action.index);
    const auto observe = [&](trace::Kind kind, const auto& work, std::string_view phase = {}) {
      observed(observer, kind, name_of(action), work, phase);
    };
    switch (action.what) {
      case Do::forward:
      case Do::recompute:
        observe(
            trace::Kind::forward, [&] { graph_->nodes()[index]->forward(graph_->run(stream, gradients)); },
            action.what == Do::recompute ? kRecompute : std::string_view());
        break;
      case Do::backward:
        observe(trace::Kind::backward, [&] { graph_->nodes()[index]->backward(graph_->run(stream, gradients)); });
        break;
      case Do::fork:
        forks_[index].begin->record(stream);
        break;
      case Do::weight_gradient: {
        Stream& second = *graph_->bindings().second_stream;
        second.wait(*forks_[index].begin);
        graph_->forked_node(index).weight_gradient(graph_->run_on_second_stream(gradients));
        forks_[index].done->record(second);
        break;
      }
      case Do::join:
        stream.wait(*forks_[index].done);
        break;
      case Do::start:
        start(exchanges_[index], in_flight_[index], stream);
        break;
      case Do::wait: {
        const trace::Span waiting(trace::Kind::wait, exchanges_[index].label);
        wait(in_flight_[index], stream);
        break;
      }
      case Do::run:
        observe(tasks_[index].kind, [&] { tasks_[index].work(stream); });
        break;
    }
  }
}

double StepList::exposed_seconds() const {
  double seconds = 0;
  for (const InFlight& events : in_flight_) {
    if (!events.wait_end) continue;
    events.wait_end->synchronize();
    seconds += events.wait_end->seconds_since(*events.wait_begin);
  }
  return seconds;
}

}  // namespace lockstep::graph
