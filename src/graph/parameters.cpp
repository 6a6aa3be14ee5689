#include "graph/parameters.h"

#include <algorithm>

#include "graph/memory_plan.h"
#include "graph/normal_fill.h"
#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::graph {

namespace {

std::size_t aligned_elements(std::size_t n) { return aligned(n * sizeof(float)) / sizeof(float); }

}  // namespace

ParameterId ParameterTable::parameter(const std::string& name, const Shape& shape, ParameterKind kind,
                                      const Initializer& initial) {
  if (const auto found = by_name_.find(name); found != by_name_.end()) {
    require((*this)[found->second].shape == shape, ErrorCode::internal, "parameter {} has two shapes: {} and {}", name,
            (*this)[found->second].shape.text(), shape.text());
    return found->second;
  }
  require(!fixed_, ErrorCode::internal, "parameter {} appears after the arenas were laid out", name);
  const auto id = static_cast<ParameterId>(parameters_.size());
  parameters_.push_back({.name = name, .shape = shape, .kind = kind, .initial = initial, .layout = nullptr});
  by_name_[name] = id;
  return id;
}

int ParameterTable::running_statistic(const std::string& name, std::int64_t channels) {
  if (const auto found = statistic_by_name_.find(name); found != statistic_by_name_.end()) return found->second;
  require(!fixed_, ErrorCode::internal, "batch norm {} appears after the arenas were laid out", name);
  const int id = static_cast<int>(statistics_.size());
  statistics_.push_back({.name = name, .channels = channels});
  statistic_by_name_[name] = id;
  return id;
}

void ParameterTable::set_layout(ParameterId id, std::shared_ptr<const ParameterLayout> layout) {
  require(!fixed_, ErrorCode::internal, "the layout of {} is chosen after the arenas were laid out", (*this)[id].name);
  parameters_[static_cast<std::size_t>(id)].layout = std::move(layout);
}

void ParameterTable::fix_order(const std::vector<ParameterId>& finished) {
  require(!fixed_ && finished.size() == parameters_.size(), ErrorCode::internal,
          "backward finishes {} of {} parameters", finished.size(), parameters_.size());
  order_ = finished;
  std::size_t end = 0;
  for (ParameterId id : order_) {
    Parameter& p = parameters_[static_cast<std::size_t>(id)];
    p.n_elements = p.layout ? p.layout->n_elements() : static_cast<std::size_t>(p.shape.n_elements());
    p.begin = end;
    end += aligned_elements(p.n_elements);
  }
  n_trainable_ = end;
  for (RunningStatistic& s : statistics_) {
    s.begin = end;
    end += aligned_elements(2 * static_cast<std::size_t>(s.channels));
  }
  n_total_ = end;
  fixed_ = true;
}

std::int64_t ParameterTable::n_canonical() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.shape.n_elements();
  return n;
}

std::vector<ParameterSegment> ParameterTable::segments(bool decay_norms_and_biases) const {
  std::vector<ParameterSegment> out;
  for (ParameterId id : order_) {
    const Parameter& p = (*this)[id];
    out.push_back({.begin = p.begin,
                   .n_elements = p.n_elements,
                   .decay = decay_norms_and_biases || p.kind == ParameterKind::weight});
  }
  return out;
}

std::string ParameterTable::description() const {
  std::string out;
  for (ParameterId id : order_) {
    const Parameter& p = (*this)[id];
    out += fmt::format("{} {} {} {}\n", p.name, p.shape.text(), p.n_elements,
                       p.layout ? p.layout->describe() : "canonical");
  }
  return out;
}

std::vector<float> ParameterTable::initial_values(const Parameter& parameter, std::uint32_t seed) const {
  std::vector<float> values(static_cast<std::size_t>(parameter.shape.n_elements()));
  const Philox random(seed, RandomPurpose::weights, name_hash(parameter.name), 0);
  switch (parameter.initial.kind) {
    case Initializer::Kind::constant:
      std::fill(values.begin(), values.end(), static_cast<float>(parameter.initial.value));
      break;
    case Initializer::Kind::normal:
      fill_normal(random, parameter.initial.value, values);
      break;
    case Initializer::Kind::uniform:
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(parameter.initial.value * (2.0 * random.uniform(i) - 1.0));
      break;
  }
  return values;
}

std::vector<float> pack(const Parameter& parameter, std::span<const float> canonical) {
  require(canonical.size() == static_cast<std::size_t>(parameter.shape.n_elements()), ErrorCode::internal,
          "{} has {} elements, got {}", parameter.name, parameter.shape.n_elements(), canonical.size());
  if (!parameter.layout) return {canonical.begin(), canonical.end()};
  std::vector<float> packed(parameter.n_elements);
  parameter.layout->pack(canonical, packed.data());
  return packed;
}

void unpack(const Parameter& parameter, std::span<const float> packed, std::span<float> canonical) {
  require(canonical.size() == static_cast<std::size_t>(parameter.shape.n_elements()), ErrorCode::internal,
          "{} has {} elements, room for {}", parameter.name, parameter.shape.n_elements(), canonical.size());
  if (parameter.layout)
    parameter.layout->unpack(packed.data(), canonical);
  else
    std::copy_n(packed.begin(), canonical.size(), canonical.begin());
}

}  // namespace lockstep::graph
