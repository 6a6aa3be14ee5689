// Parameters and running statistics: names, canonical shapes, initial values, and their places in the arenas.
//
// The parameter arena, the gradient arena and each state of the optimizer have the same order and offsets:
//   [parameters, in the order in which backward finishes their gradients][running / batch statistics of the norms]
// so a gradient bucket is a contiguous slice, and the statistics ride in the last one (DESIGN, decisions 4 and 6).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/op.h"
#include "lockstep/shape.h"

namespace lockstep::graph {

using ParameterId = int;

enum class ParameterKind : std::uint8_t { weight, bias, norm };

/// How initial values are made, in double, rounded once. Source: torchvision.models.resnet and torch.nn.Linear.
struct Initializer {
  enum class Kind : std::uint8_t { constant, normal, uniform };
  Kind kind = Kind::constant;
  double value = 0;  // the constant, the standard deviation, or the bound of (-value, value)
};

struct Parameter {
  std::string name;  // torchvision's
  Shape shape;       // canonical
  ParameterKind kind = ParameterKind::weight;
  Initializer initial{};
  std::shared_ptr<const ParameterLayout> layout{};  // null: canonical
  std::size_t begin = 0, n_elements = 0;            // in the arena; n_elements as the layout has it
};

/// Mean and variance of one batch norm, (2, C).
struct RunningStatistic {
  std::string name;  // of the norm: "layer1.0.bn1"
  std::int64_t channels = 0;
  std::size_t begin = 0;  // in the arena
};

class ParameterTable {
 public:
  /// The parameter of this name, added if new; a different shape under the same name is an internal error.
  ParameterId parameter(const std::string& name, const Shape& shape, ParameterKind kind, const Initializer& initial);
  int running_statistic(const std::string& name, std::int64_t channels);

  /// Fixes the arena's order; afterwards nothing can be added. `finished`: ids in the order of their gradients.
  void fix_order(const std::vector<ParameterId>& finished);
  bool fixed() const { return fixed_; }

  const Parameter& operator[](ParameterId id) const { return parameters_[static_cast<std::size_t>(id)]; }
  void set_layout(ParameterId id, std::shared_ptr<const ParameterLayout> layout);
  const RunningStatistic& statistic(int id) const { return statistics_[static_cast<std::size_t>(id)]; }
  const std::vector<Parameter>& parameters() const { return parameters_; }  // in the order they were added (forward)
  const std::vector<ParameterId>& order() const { return order_; }          // in the arena's order
  const std::vector<RunningStatistic>& statistics() const { return statistics_; }

  std::size_t n_trainable() const { return n_trainable_; }  // elements, padding included
  std::size_t n_total() const { return n_total_; }          // with statistics
  std::int64_t n_canonical() const;                         // elements of all parameters, without padding
  /// For optimizer and norm: in the arena's order. `decay_norms_and_biases` false: weights alone decay.
  std::vector<ParameterSegment> segments(bool decay_norms_and_biases) const;
  /// Of names, shapes and layouts: equal on all ranks, or they cannot work together.
  std::string description() const;

  /// Canonical. A function of (seed, name) alone.
  std::vector<float> initial_values(const Parameter& parameter, std::uint32_t seed) const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<RunningStatistic> statistics_;
  std::unordered_map<std::string, int> by_name_, statistic_by_name_;
  std::vector<ParameterId> order_;
  std::size_t n_trainable_ = 0, n_total_ = 0;
  bool fixed_ = false;
};

/// Canonical <-> packed form of one parameter (host memory). Packed has n_elements values.
std::vector<float> pack(const Parameter& parameter, std::span<const float> canonical);
void unpack(const Parameter& parameter, std::span<const float> packed, std::span<float> canonical);

}  // namespace lockstep::graph
