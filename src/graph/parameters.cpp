#include "graph/parameters.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "graph/memory_plan.h"
#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::graph {

namespace {

std::size_t aligned_elements(std::size_t n) { return aligned(n * sizeof(float)) / sizeof(float); }

std::vector<ParameterPart> parts_of(const ParameterDescription& d) {
  if (d.parts.empty()) return {{.name = d.name, .shape = d.shape}};
  std::vector<ParameterPart> out;
  std::int64_t n_rows = 0;
  const std::int64_t row = d.shape.n_elements() / d.shape[0];
  for (const NamedRows& rows : d.parts) {
    out.push_back({.name = rows.name,
                   .shape = d.shape.with_dimension(0, rows.n_rows),
                   .begin = static_cast<std::size_t>(n_rows * row)});
    n_rows += rows.n_rows;
  }
  require(n_rows == d.shape[0], ErrorCode::internal, "the parts of parameter {} have {} rows together, but it has {}",
          d.name, n_rows, d.shape[0]);
  return out;
}

bool same(const std::vector<ParameterPart>& a, const std::vector<ParameterPart>& b) {
  return std::ranges::equal(
      a, b, [](const ParameterPart& x, const ParameterPart& y) { return x.name == y.name && x.shape == y.shape; });
}

}  // namespace

ParameterId ParameterTable::parameter(const ParameterDescription& description) {
  const ParameterDescription& d = description;
  const bool is_base = is_base_ && is_base_(d.name);
  const bool trainable = d.trainable && !d.is_in_nf4 && !is_base && !(is_frozen_ && is_frozen_(d.name));
  std::vector<ParameterPart> parts = parts_of(d);
  if (const auto found = by_name_.find(d.name); found != by_name_.end()) {
    const Parameter& known = (*this)[found->second];
    require(known.shape == d.shape, ErrorCode::internal, "parameter {} has two shapes: {} and {}", d.name,
            known.shape.text(), d.shape.text());
    require(known.trainable == trainable && known.is_in_nf4 == d.is_in_nf4 && same(known.parts, parts),
            ErrorCode::internal, "parameter {} is described differently by two layers that share it", d.name);
    return found->second;
  }
  require(!fixed_, ErrorCode::internal, "parameter {} appears after the arenas were laid out", d.name);
  require_possible_parameter(d.name, d.shape);
  const auto id = static_cast<ParameterId>(parameters_.size());
  parameters_.push_back({.name = d.name,
                         .shape = d.shape,
                         .kind = d.kind,
                         .initial = d.initial,
                         .trainable = trainable,
                         .is_base = is_base,
                         .is_in_nf4 = d.is_in_nf4,
                         .parts = std::move(parts),
                         .unit = unit_});
  by_name_[d.name] = id;
  return id;
}

int ParameterTable::running_statistic(const std::string& name, std::int64_t channels, bool trainable) {
  if (const auto found = statistic_by_name_.find(name); found != statistic_by_name_.end()) return found->second;
  require(!fixed_, ErrorCode::internal, "batch norm {} appears after the arenas were laid out", name);
  const int id = static_cast<int>(statistics_.size());
  statistics_.push_back({.name = name, .channels = channels, .trainable = trainable});
  statistic_by_name_[name] = id;
  return id;
}

ConstantId ParameterTable::add_constant(const std::string& name, const std::vector<float>& values) {
  const auto found = std::ranges::find(constants_, name, &Constant::name);
  if (found == constants_.end()) {
    require(!fixed_, ErrorCode::internal, "constant {} appears after the arenas were laid out", name);
    constants_.push_back({.name = name, .values = values});
    return static_cast<ConstantId>(constants_.size()) - 1;
  }
  require(found->values == values, ErrorCode::internal, "constant {} has two values", name);
  return static_cast<ConstantId>(found - constants_.begin());
}

void ParameterTable::set_layout(ParameterId id, std::shared_ptr<const ParameterLayout> layout) {
  require(!fixed_, ErrorCode::internal, "the layout of {} is chosen after the arenas were laid out", (*this)[id].name);
  parameters_[static_cast<std::size_t>(id)].layout = std::move(layout);
}

void ParameterTable::fix_order(const std::vector<ParameterId>& finished,
                               const std::function<bool(ParameterId)>& needs_master) {
  const auto n_trainable = std::ranges::count(parameters_, true, &Parameter::trainable);
  require(!fixed_ && std::ssize(finished) == n_trainable, ErrorCode::internal,
          "backward finishes only {} of {} parameters", finished.size(), n_trainable);
  finished_ = order_ = finished;
  const auto last =
      needs_master ? std::ranges::stable_partition(order_, std::not_fn(needs_master)).begin() : order_.end();
  std::size_t end = 0;
  const auto place = [&end](Parameter& p) {
    p.n_elements = p.layout ? p.layout->n_elements() : static_cast<std::size_t>(p.shape.n_elements());
    p.begin = end;
    end += aligned_elements(p.n_elements);
  };
  for (auto id = order_.begin(); id != order_.end(); ++id) {
    if (id == last) n_in_compute_type_ = end = n_tiles_of(end) * kTileElements;
    place(parameters_[static_cast<std::size_t>(*id)]);
  }
  n_trainable_ = end;
  if (last == order_.end()) n_in_compute_type_ = end;
  const auto place_statistics = [&](bool trainable) {
    for (RunningStatistic& s : statistics_) {
      if (s.trainable != trainable) continue;
      s.begin = end;
      end += aligned_elements(2 * static_cast<std::size_t>(s.channels));
    }
  };
  place_statistics(true);
  n_gradients_ = end;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    p.has_master = !p.is_in_nf4 && (!p.is_base || !needs_master || needs_master(static_cast<ParameterId>(i)));
    if (!p.trainable && p.has_master) place(p);
  }
  place_statistics(false);
  for (Constant& c : constants_) {
    c.begin = end;
    end += aligned_elements(c.values.size());
  }
  n_with_masters_ = end;
  for (Parameter& p : parameters_)
    if (!p.has_master && !p.is_in_nf4) place(p);
  n_total_ = end;
  for (Parameter& p : parameters_)
    if (p.is_in_nf4) place_in_nf4(p);
  fixed_ = true;
}

void ParameterTable::place_in_nf4(Parameter& p) {
  require(!p.layout, ErrorCode::internal, "{} is stored in NF4 and has a layout of its own", p.name);
  std::vector<std::int64_t> rows;
  for (const ParameterPart& part : p.parts) rows.push_back(part.shape[0]);
  p.n_elements = static_cast<std::size_t>(p.shape.n_elements());
  p.nf4 = Nf4Layout::of(rows, p.shape[1]);
  p.nf4_begin = n_nf4_bytes_;
  n_nf4_bytes_ += aligned(p.nf4.size_bytes);
}

std::int64_t ParameterTable::n_in_nf4() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.is_in_nf4 ? p.shape.n_elements() : 0;
  return n;
}

std::int64_t ParameterTable::n_canonical() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.shape.n_elements();
  return n;
}

std::int64_t ParameterTable::n_canonical_trainable() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.trainable ? p.shape.n_elements() : 0;
  return n;
}

std::size_t ParameterTable::n_trained_statistics() const {
  return static_cast<std::size_t>(std::ranges::count(statistics_, true, &RunningStatistic::trainable));
}

std::vector<ParameterSegment> ParameterTable::segments(const DecayedKinds& decayed) const {
  const auto decays = [&](ParameterKind kind) {
    return kind == ParameterKind::weight || (kind == ParameterKind::bias ? decayed.biases : decayed.norms);
  };
  std::vector<ParameterSegment> out;
  for (ParameterId id : order_) {
    const Parameter& p = (*this)[id];
    out.push_back({.begin = p.begin, .n_elements = p.n_elements, .decay = decays(p.kind)});
  }
  return out;
}

std::string ParameterTable::description() const {
  std::string out;
  const auto add = [&out](const Parameter& p) {
    out += fmt::format("{} {} {} {}{}\n", p.name, p.shape.text(), p.n_elements,
                       p.layout ? p.layout->describe() : "canonical",
                       p.is_in_nf4   ? " nf4"
                       : p.trainable ? ""
                                     : " frozen");
  };
  for (ParameterId id : order_) add((*this)[id]);
  for (const Parameter& p : parameters_)
    if (!p.trainable) add(p);
  return out;
}

std::vector<float> ParameterTable::initial_values(const Parameter& parameter, std::uint32_t seed,
                                                  ElementRange range) const {
  std::vector<float> values(range.n_elements);
  const double value = parameter.initial.value;
  for (const ParameterPart& part : parameter.parts) {
    const ElementRange both = overlap(range, {part.begin, part.n_elements()});
    if (both.n_elements == 0) continue;
    const std::span<float> own = std::span(values).subspan(both.begin - range.begin, both.n_elements);
    const std::size_t first = both.begin - part.begin;
    const Philox random(seed, RandomPurpose::weights, name_hash(part.name), 0);
    switch (parameter.initial.kind) {
      case Initializer::Kind::constant:
        std::ranges::fill(own, static_cast<float>(value));
        break;
      case Initializer::Kind::normal:
        fill_normal(random, value, first, own);
        break;
      case Initializer::Kind::uniform:
        for (std::size_t i = 0; i < own.size(); ++i)
          own[i] = static_cast<float>(value * (2.0 * random.uniform(first + i) - 1.0));
        break;
    }
  }
  return values;
}

std::vector<float> pack(const Parameter& parameter, std::span<const float> canonical) {
  require(canonical.size() == static_cast<std::size_t>(parameter.shape.n_elements()), ErrorCode::internal,
          "{} has {} elements, but {} were passed", parameter.name, parameter.shape.n_elements(), canonical.size());
  if (!parameter.layout) return {canonical.begin(), canonical.end()};
  std::vector<float> packed(parameter.n_elements);
  parameter.layout->pack(canonical, packed.data());
  return packed;
}

void unpack(const Parameter& parameter, std::span<const float> packed, std::span<float> canonical) {
  require(canonical.size() == static_cast<std::size_t>(parameter.shape.n_elements()), ErrorCode::internal,
          "{} has {} elements, but the buffer has space for {}", parameter.name, parameter.shape.n_elements(),
          canonical.size());
  if (parameter.layout)
    parameter.layout->unpack(packed.data(), canonical);
  else
    std::copy_n(packed.begin(), canonical.size(), canonical.begin());
}

void pack_part(const Parameter& parameter, const ParameterPart& part, std::span<const float> canonical,
               std::span<float> packed) {
  require(canonical.size() == part.n_elements(), ErrorCode::internal, "{} has {} elements, but {} were passed",
          part.name, part.n_elements(), canonical.size());
  if (!parameter.layout) {
    std::ranges::copy(canonical, packed.subspan(part.begin).begin());
    return;
  }
  std::vector<float> whole(static_cast<std::size_t>(parameter.shape.n_elements()));
  unpack(parameter, packed, whole);
  std::ranges::copy(canonical, std::span(whole).subspan(part.begin).begin());
  parameter.layout->pack(whole, packed.data());
}

void unpack_part(const Parameter& parameter, const ParameterPart& part, std::span<const float> packed,
                 std::span<float> canonical) {
  require(canonical.size() == part.n_elements(), ErrorCode::internal,
          "{} has {} elements, but the buffer has space for {}", part.name, part.n_elements(), canonical.size());
  if (canonical.size() == static_cast<std::size_t>(parameter.shape.n_elements()))
    return unpack(parameter, packed, canonical);
  if (!parameter.layout) {
    std::ranges::copy(packed.subspan(part.begin, canonical.size()), canonical.begin());
    return;
  }
  std::vector<float> whole(static_cast<std::size_t>(parameter.shape.n_elements()));
  unpack(parameter, packed, whole);
  std::ranges::copy(std::span(whole).subspan(part.begin, canonical.size()), canonical.begin());
}

}  // namespace lockstep::graph
