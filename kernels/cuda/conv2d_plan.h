// What the unit of one convolution consists of at a level: its graphs, the passes that complete them, and where z is
// stored.
//
// The level says how much of a unit is fused; each one adds to those before it:
//   passes      a bare convolution in three directions; normalisation, statistics and gradients of both in passes
//   statistics  y's statistics come out of the forward convolution
//   chain       z is made inside of the forward convolution and of the weight gradient, and is stored only where others
//               read it; dz and its sums come out of the data gradient
// The level is the fastest according to context.algorithms; null: the last that has plans.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/conv2d_bare.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cuda {

enum class Level : std::uint8_t { passes, statistics, chain };
inline constexpr std::array kLevels{Level::passes, Level::statistics, Level::chain};
const char* name(Level level);
/// Throws usage if no level has this name.
Level level_of(const std::string& name);

/// The tensor that is convolved.
enum class ConvolutionInput : std::uint8_t {
  x,          // x itself
  padded,     // x with additional channels of zeros: the kernels load 8 or 16 bytes
  blocks,     // x as blocks of 2 x 2 pixels (conversions.h), for a window of stride 2 over few channels
  inside,     // z, which exists only inside the graphs
  stored,     // z in the caller's memory
  saved,      // z kept from forward to backward
  temporary,  // z in the workspace, for inference
};

struct ConvolutionUnit {
  ConvolutionShape shape;  // of the graphs: its input may be padded, or in blocks
  ConvolutionInput input = ConvolutionInput::x;
  ConvolutionGraph forward = ConvolutionGraph::forward;
  ConvolutionGraph weight_gradient = ConvolutionGraph::weight_gradient;
  ConvolutionGraph fused_gradient = ConvolutionGraph::data_gradient;  // data_gradient: there is none

  /// x is copied into another form.
  bool has_own_input() const { return input == ConvolutionInput::padded || input == ConvolutionInput::blocks; }
  bool gives_statistics() const;  // forward does, so no pass is needed
  bool makes_z() const;           // forward does, so no pass is needed
  bool has_fused_gradient() const { return fused_gradient != ConvolutionGraph::data_gradient; }
  bool fused_gradient_adds() const { return fused_gradient != ConvolutionGraph::normalized_data_gradient; }
  bool operator==(const ConvolutionUnit& other) const {
    return shape.x == other.shape.x && input == other.input && forward == other.forward &&
           weight_gradient == other.weight_gradient && fused_gradient == other.fused_gradient;
  }
};

/// Throws Error if the description is impossible.
void check(const Conv2dDescription& description);

/// The unit at a level; parts for which the device has no plan are passes.
ConvolutionUnit unit_at(Level level, const Conv2dDescription& description, const CudaContext& context);

/// All graphs of the unit.
std::vector<ConvolutionGraph> graphs_of(const Conv2dDescription& description, const ConvolutionUnit& unit);
/// Whether each of them has a plan that can be built.
bool can_be_planned(const Conv2dDescription& description, const ConvolutionUnit& unit, const CudaContext& context);

/// Selects one of `n_plans` plans without timing them. cuDNN ranks plans by its estimate of their time, and the first
/// few are close. Of the first `n_compared` plans that can be built, the one with the smallest workspace is therefore
/// selected. If all of them need more than `limit_bytes`, further plans are tried until one does not. `workspace_of`
/// builds a plan and returns the bytes of its workspace, or no value if it cannot be built. Returns no value if no plan
/// can be built.
std::optional<std::size_t> plan_with_least_workspace(
    std::size_t n_plans, std::size_t n_compared, std::int64_t limit_bytes,
    const std::function<std::optional<std::int64_t>(std::size_t)>& workspace_of);

/// The levels that differ, the last one first, each with its unit.
struct LeveledUnit {
  Level level;
  ConvolutionUnit unit;
};
std::vector<LeveledUnit> units_of(const Conv2dDescription& description, const CudaContext& context);

/// Bytes that forward and backward read and write if each kernel accesses each of its tensors once.
struct BytesMoved {
  double forward = 0, backward = 0;
};
BytesMoved bytes_moved(const Conv2dDescription& description, const ConvolutionUnit& unit);

/// "normalized plain residual, relu, stored"; "plain": x itself is convolved.
std::string text(const std::optional<InputNormalization>& normalization);

/// (K, R, S, C), fp32. Canonical is (K, C, R, S).
class KrscLayout final : public ParameterLayout {
 public:
  KrscLayout(std::int64_t out_channels, int kernel_size, std::int64_t in_channels)
      : out_channels_(out_channels), taps_(std::int64_t{kernel_size} * kernel_size), in_channels_(in_channels) {}
  std::size_t n_elements() const override { return static_cast<std::size_t>(out_channels_ * taps_ * in_channels_); }
  void pack(std::span<const float> canonical, float* parameter) const override;
  void unpack(const float* parameter, std::span<float> canonical) const override;
  std::string describe() const override { return "krsc"; }

 private:
  template <typename F>  // (place in memory, canonical place)
  void for_each(const F& f) const;

  std::int64_t out_channels_, taps_, in_channels_;
};

}  // namespace lockstep::cuda
