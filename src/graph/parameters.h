// Parameters and running statistics: names, canonical shapes, initial values, and their places in the arenas.
//
// The parameter arena is
//   [trainable, in the order in which backward finishes their gradients][statistics of the norms][frozen][constants]
//   [matrices of a base]
// Trainable parameters that an op reads in fp32 although it computes in 16 bits, such as the scale of a norm, come
// after the other trainable ones, and so do their gradients. They begin with a tile of the gradient norm (ClipNorm),
// since gradients before them may have another type.
// The gradient arena is the first two, and each state of the optimizer is the first one, with the same offsets. A
// gradient bucket is therefore a contiguous slice, and the statistics are sent with the last one (DESIGN, decisions 4
// and 6). Frozen parameters and the statistics of frozen norms have no gradient and no optimizer state, so they come
// after these and take no memory in those arenas. Constants are numbers that ops read. They are not part of
// checkpoints. Where ops compute in 16 bits, the rounded weights are in an arena with the same offsets as the parameter
// arena (DESIGN, decision 17). The parameters of a base model, beside which adapters are trained, are frozen and belong
// to another file, so checkpoints do not contain them. The base matrices that ops read in 16 bits exist in that type
// only, and the arena of fp32 masters ends before them. Matrices in NF4 have their own arena (lockstep/nf4.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/element_range.h"
#include "lockstep/nf4.h"
#include "lockstep/op.h"
#include "lockstep/ops/parameter_segment.h"
#include "lockstep/philox.h"
#include "lockstep/shape.h"

namespace lockstep::graph {

using ParameterId = int;
inline constexpr ParameterId kNoParameter = -1;
using ConstantId = int;
inline constexpr ConstantId kNoConstant = -1;

enum class ParameterKind : std::uint8_t { weight, bias, norm };

/// The kinds of parameters, besides weights, that have weight decay.
struct DecayedKinds {
  bool biases = true, norms = true;
};

/// How initial values are computed, in double, rounded once. Source: torchvision.models.resnet and torch.nn.Linear.
struct Initializer {
  enum class Kind : std::uint8_t { constant, normal, uniform };
  Kind kind = Kind::constant;
  double value = 0;  // the constant, the standard deviation, or the bound of (-value, value)
};

/// Rows of a parameter that files store as a separate tensor, for example q, k and v of one matrix.
struct NamedRows {
  std::string name;
  std::int64_t n_rows = 0;  // of dimension 0
};

struct ParameterDescription {
  std::string name;
  Shape shape;  // canonical
  ParameterKind kind = ParameterKind::weight;
  Initializer initial{};
  bool trainable = true;           // false: frozen
  bool is_in_nf4 = false;          // a frozen matrix that is stored in NF4
  std::vector<NamedRows> parts{};  // together all rows, in order; empty: files store it as one tensor, under its name
};

/// A tensor in files: a parameter, or some of its rows.
struct ParameterPart {
  std::string name;
  Shape shape;
  std::size_t begin = 0;  // elements of the canonical parameter before it
  std::size_t n_elements() const { return static_cast<std::size_t>(shape.n_elements()); }
};

struct Parameter {
  std::string name;
  Shape shape;  // canonical
  ParameterKind kind = ParameterKind::weight;
  Initializer initial{};
  bool trainable = true;
  bool is_base = false;    // of a frozen model beside which adapters are trained
  bool has_master = true;  // false: it exists in the compute type only, or in NF4
  bool is_in_nf4 = false;
  Nf4Layout nf4{};                                  // in NF4: the layout of its parts,
  std::size_t nf4_begin = 0;                        // and the byte of the NF4 arena at which they begin
  std::vector<ParameterPart> parts{};               // at least one
  std::shared_ptr<const ParameterLayout> layout{};  // null: canonical
  std::size_t begin = 0, n_elements = 0;            // in the arena; n_elements as the layout has it
  int unit = 0;                                     // ParameterTable::begin_unit()
};

/// Mean and variance of one norm, (2, C).
struct RunningStatistic {
  std::string name;  // of the norm: "layer1.0.bn1"
  std::int64_t channels = 0;
  bool trainable = true;  // false: the norm is frozen and does not change them
  std::size_t begin = 0;  // in the arena
};

struct Constant {
  std::string name;
  std::vector<float> values;
  std::size_t begin = 0;  // in the arena
};

class ParameterTable {
 public:
  /// Parameters that are added later and for which `is_frozen` returns true are frozen, whatever their description
  /// says. `source`: where this is configured, for messages.
  void freeze(std::function<bool(const std::string& name)> is_frozen, std::string source) {
    is_frozen_ = std::move(is_frozen);
    freeze_source_ = std::move(source);
  }
  const std::string& freeze_source() const { return freeze_source_; }
  /// Parameters that are added later and for which `is_base` returns true belong to a base: they are frozen.
  void set_base(std::function<bool(const std::string& name)> is_base) { is_base_ = std::move(is_base); }
  /// Parameters that are added later form a unit, such as a layer: with train.shard=parameters, they are gathered
  /// together. No pending activation (graph.h) passes from one unit to another.
  void begin_unit() { ++unit_; }
  /// The parameter of this name, which is added if it is new. Layers that use the same name share it (tied weights). A
  /// different description with the same name is an internal error.
  ParameterId parameter(const ParameterDescription& description);
  int running_statistic(const std::string& name, std::int64_t channels, bool trainable = true);
  /// The constant of this name, which is added if it is new.
  ConstantId add_constant(const std::string& name, const std::vector<float>& values);

  /// Fixes the arena's order; afterwards nothing can be added. `finished`: the trainable ones, in the order in which
  /// backward finishes their gradients. `needs_master`: whether an op that computes in 16 bits reads the fp32 master.
  /// Null: all masters are needed, and no op computes in 16 bits.
  void fix_order(const std::vector<ParameterId>& finished, const std::function<bool(ParameterId)>& needs_master = {});
  bool fixed() const { return fixed_; }
  const std::vector<ParameterId>& finished() const { return finished_; }

  const Parameter& operator[](ParameterId id) const { return parameters_[static_cast<std::size_t>(id)]; }
  void set_layout(ParameterId id, std::shared_ptr<const ParameterLayout> layout);
  const RunningStatistic& statistic(int id) const { return statistics_[static_cast<std::size_t>(id)]; }
  const Constant& constant(ConstantId id) const { return constants_[static_cast<std::size_t>(id)]; }
  const std::vector<Parameter>& parameters() const { return parameters_; }  // in the order they were added (forward)
  const std::vector<ParameterId>& order() const { return order_; }          // the trainable ones, in the arena's order
  const std::vector<RunningStatistic>& statistics() const { return statistics_; }
  const std::vector<Constant>& constants() const { return constants_; }
  std::size_t n_trained_statistics() const;

  // Elements of the arenas, padding included
  std::size_t n_trainable() const { return n_trainable_; }  // of an optimizer state
  std::size_t n_in_compute_type() const {
    return n_in_compute_type_;
  }  // trainable ones that ops read in no other type: the first in the arena
  std::size_t n_gradients() const {
    return n_gradients_;
  }  // of the gradient arena: trainable ones and their statistics
  std::size_t n_with_masters() const { return n_with_masters_; }  // of the parameter arena, in fp32
  std::size_t n_total() const { return n_total_; }                // with what exists in the compute type only
  std::size_t n_nf4_bytes() const { return n_nf4_bytes_; }
  std::int64_t n_in_nf4() const;               // elements of matrices in NF4
  std::int64_t n_canonical() const;            // elements of all parameters, without padding
  std::int64_t n_canonical_trainable() const;  // the same of those that are trained
  /// For optimizer and norm: in the arena's order.
  std::vector<ParameterSegment> segments(const DecayedKinds& decayed) const;
  /// Names, shapes and layouts as text. Ranks can work together only if theirs are equal.
  std::string description() const;

  /// Initial values in canonical form, of some elements or of all. A function of (seed, names of the parts) alone.
  std::vector<float> initial_values(const Parameter& parameter, std::uint32_t seed, ElementRange range) const;
  std::vector<float> initial_values(const Parameter& parameter, std::uint32_t seed) const {
    return initial_values(parameter, seed, {0, static_cast<std::size_t>(parameter.shape.n_elements())});
  }

 private:
  void place_in_nf4(Parameter& p);

  std::vector<Parameter> parameters_;
  std::vector<RunningStatistic> statistics_;
  std::vector<Constant> constants_;
  std::function<bool(const std::string&)> is_frozen_, is_base_;  // null: no further ones
  std::string freeze_source_;
  std::unordered_map<std::string, int> by_name_, statistic_by_name_;
  std::vector<ParameterId> order_, finished_;
  std::size_t n_in_compute_type_ = 0, n_trainable_ = 0, n_gradients_ = 0, n_with_masters_ = 0, n_total_ = 0;
  std::size_t n_nf4_bytes_ = 0;
  int unit_ = 0;
  bool fixed_ = false;
};

/// Canonical <-> packed form of one parameter (host memory). Packed has n_elements values.
std::vector<float> pack(const Parameter& parameter, std::span<const float> canonical);
void unpack(const Parameter& parameter, std::span<const float> packed, std::span<float> canonical);

/// The same for one part. pack_part does not change the other parts of `packed`.
void pack_part(const Parameter& parameter, const ParameterPart& part, std::span<const float> canonical,
               std::span<float> packed);
void unpack_part(const Parameter& parameter, const ParameterPart& part, std::span<const float> packed,
                 std::span<float> canonical);

/// Fills an array with the normal numbers that Philox::normal returns one by one, an order of magnitude faster:
/// values[i] = scale * random.normal(first + i), in double and rounded once. Logarithm, sine and cosine are implemented
/// here, to within an ulp or two of libm's, so that the loops are vectorised and every machine gets the same bits.
void fill_normal(const Philox& random, double scale, std::size_t first, std::span<float> values);

}  // namespace lockstep::graph
