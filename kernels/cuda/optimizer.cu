// SGD, AdamW and LARS in one launch over parameters, gradients and state (lockstep/ops/optimizer.h has the formulas),
// one block per tile (segments.h). LARS needs two launches before it: sums of squares of tiles in fp64, then each
// segment's trust ratio with one block per segment. Both sum in an order that depends on the segments alone.
//
// Bytes moved per element, each arena read once and written once, which is the minimum: SGD 12 (w read and written, g
// read), or 20 with momentum; AdamW 28. LARS moves 8 more, since norms of w and g come first, and 16-bit weights 2
// more. AdamW moves 14 where gradients, moments and weights are all bf16 only, and computes a block of Philox for each
// of the three and eight elements.
//
// Products that are added are written as __fmul_rn, which is never fused, so that SGD and AdamW have the bits of the
// CPU's update (train.offload).
#include <memory>
#include <type_traits>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/segments.h"
#include "lockstep/ops/optimizer.h"

namespace lockstep::cuda {
namespace {

using Kind = OptimizerDescription::Kind;

struct Arenas {
  float* parameters = nullptr;
  void* weights = nullptr;  // rounded parameters
  const void* gradients = nullptr;
  void* first_state = nullptr;   // velocity or first moment
  void* second_state = nullptr;  // second moment
  const StepScalars* scalars = nullptr;
  bool aligned = false;
  bool parameters_are_sharded = false;
};

/// The positions of element i in the arenas. In an arena that holds only this rank's shard, they are relative to the
/// shard.
struct Places {
  std::size_t element = 0, parameter = 0, state = 0;
};
__device__ Places places_of(const SegmentTable& table, const Arenas& arenas, std::size_t i) {
  const std::size_t stored = i + table.stored_shift;
  return {.element = i, .parameter = arenas.parameters_are_sharded ? stored : i, .state = stored};
}

/// Stores new parameters, and a copy that is rounded to Weight. If Weight is float, there is no copy.
template <typename Weight, int kWidth>
__device__ void store_parameters(const Arenas& arenas, const Places& at, const Floats<kWidth>& parameters) {
  store_floats(arenas.parameters + at.parameter, parameters);
  if constexpr (!std::is_same_v<Weight, float>)
    store_rounded(static_cast<Weight*>(arenas.weights) + at.element, parameters.values);
}

/// In SGD, the factors of a gradient and a weight before they are added.
struct SgdFactors {
  float gradient = 1, weight = 0;
};

enum class Momentum { none, plain, nesterov };

/// `factors` has the factors of each segment (LARS), or is null.
template <Momentum kMomentum, typename Weight>
__global__ void __launch_bounds__(kTileThreads)
    sgd(const __grid_constant__ SegmentTable table, Arenas arenas, float momentum, const SgdFactors* factors) {
  if (arenas.scalars->is_applied == 0) return;
  const Tile tile = find_tile(table);
  const float learning_rate = arenas.scalars->learning_rate * tile.learning_rate_factor;
  const SgdFactors factor = factors ? factors[table.first_segment + tile.segment]
                                    : SgdFactors{arenas.scalars->clip_coefficient, tile.weight_decay};
  for_elements<4>(tile, arenas.aligned, [&](auto width, std::size_t i) {
    const Places at = places_of(table, arenas, i);
    Floats<width> w = load_floats<width>(arenas.parameters + at.parameter);
    const Floats<width> gradients = load_floats<width>(static_cast<const float*>(arenas.gradients) + i);
    Floats<width> velocities = {};
    [[maybe_unused]] auto* const state = static_cast<float*>(arenas.first_state) + at.state;
    if constexpr (kMomentum != Momentum::none) velocities = load_floats<width>(state);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      float g = __fmul_rn(gradients.values[j], factor.gradient) + __fmul_rn(factor.weight, w.values[j]);
      if constexpr (kMomentum != Momentum::none) {
        float& velocity = velocities.values[j];
        velocity = __fmul_rn(momentum, velocity) + g;
        g = kMomentum == Momentum::nesterov ? g + __fmul_rn(momentum, velocity) : velocity;
      }
      w.values[j] -= __fmul_rn(learning_rate, g);
    }
    if constexpr (kMomentum != Momentum::none) store_floats(state, velocities);
    store_parameters<Weight>(arenas, at, w);
  });
}

template <typename Weight>
auto sgd_kernel(const OptimizerDescription& d) {
  if (d.momentum == 0.0f) return sgd<Momentum::none, Weight>;
  return d.nesterov ? sgd<Momentum::nesterov, Weight> : sgd<Momentum::plain, Weight>;
}

struct AdamwConstants {
  double beta1 = 0, beta2 = 0;
  float epsilon = 0;
  std::uint32_t seed = 0;
  std::size_t first = 0;  // OptimizerDescription::first
};

/// Stores numbers in fp32, or in bf16, rounded stochastically. `element`: of the model.
template <typename T, int kWidth>
__device__ void store_state(T* target, const Floats<kWidth>& values, std::uint32_t seed, std::uint32_t step,
                            std::size_t element, RoundedValue value) {
  if constexpr (std::is_same_v<T, float>) {
    store_floats(target, values);
  } else {
    const std::array<std::uint32_t, 4> bits = random_bits(seed, step, element / 8, value);
    if constexpr (kWidth == 8) {
      Vector<T, 8> rounded;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        rounded.words[i] = round_stochastically(values[2 * i], bits[i] & 0xffff) |
                           std::uint32_t{round_stochastically(values[2 * i + 1], bits[i] >> 16)} << 16;
      store_vector(target, rounded);
    } else {
      const std::uint32_t both = bits[element % 8 / 2];
      const std::uint16_t rounded = round_stochastically(values[0], element % 2 == 0 ? both & 0xffff : both >> 16);
      memcpy(static_cast<void*>(target), &rounded, sizeof(rounded));
    }
  }
}

/// G and M: the types of gradients and moments. Without kMasters, the weights are the parameters.
template <typename Weight, typename G, typename M, bool kMasters>
__global__ void __launch_bounds__(kTileThreads, 4)  // without this 4, ptxas chooses 40 registers for sm_90 and spills
    adamw(const __grid_constant__ SegmentTable table, Arenas arenas, AdamwConstants constants) {
  if (arenas.scalars->is_applied == 0) return;
  const Tile tile = find_tile(table);
  // Combined in fp64 and rounded once, as in PyTorch. A single thread does this, since fp64 is slow on some devices.
  struct Factors {
    float keep, root_correction2, step_size;
  };
  __shared__ Factors factors;
  if (threadIdx.x == 0) {
    const double learning_rate = double{arenas.scalars->learning_rate} * tile.learning_rate_factor;
    factors.keep = static_cast<float>(1.0 - __dmul_rn(learning_rate, tile.weight_decay));
    factors.root_correction2 = static_cast<float>(sqrt(double{arenas.scalars->adam_correction2}));
    factors.step_size = static_cast<float>(learning_rate * arenas.scalars->adam_correction1);
  }
  __syncthreads();
  const Factors f = factors;
  const float clip_coefficient = arenas.scalars->clip_coefficient;
  const float one_minus_beta1 = static_cast<float>(1.0 - constants.beta1);
  const float beta2 = static_cast<float>(constants.beta2);
  const float one_minus_beta2 = static_cast<float>(1.0 - constants.beta2);
  constexpr unsigned kWidth = sizeof(G) == 4 && sizeof(M) == 4 && kMasters ? 4 : 8;
  for_elements<kWidth>(tile, arenas.aligned, [&](auto width, std::size_t i) {
    const Places at = places_of(table, arenas, i);
    [[maybe_unused]] auto* const weights = static_cast<Weight*>(arenas.weights) + at.element;
    Floats<width> w;
    if constexpr (kMasters)
      w = load_floats<width>(arenas.parameters + at.parameter);
    else
      w = load_floats<width>(weights);
    const Floats<width> gradients = load_floats<width>(static_cast<const G*>(arenas.gradients) + i);
    auto* const first_moment = static_cast<M*>(arenas.first_state) + at.state;
    auto* const second_moment = static_cast<M*>(arenas.second_state) + at.state;
    Floats<width> first = load_floats<width>(first_moment);
    Floats<width> second = load_floats<width>(second_moment);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      const float g = __fmul_rn(gradients.values[j], clip_coefficient);
      float& m = first.values[j];
      float& v = second.values[j];
      m += __fmul_rn(one_minus_beta1, g - m);
      v = __fmul_rn(beta2, v) + __fmul_rn(one_minus_beta2 * g, g);
      const float denominator = __fmul_rn(sqrtf(v), f.root_correction2) + constants.epsilon;
      w.values[j] = __fmul_rn(w.values[j], f.keep) - __fmul_rn(f.step_size, m / denominator);
    }
    const std::uint32_t step = arenas.scalars->step;
    const std::size_t element = constants.first + i;
    store_state(first_moment, first, constants.seed, step, element, RoundedValue::first_moment);
    store_state(second_moment, second, constants.seed, step, element, RoundedValue::second_moment);
    if constexpr (kMasters)
      store_parameters<Weight>(arenas, at, w);
    else
      store_state(weights, w, constants.seed, step, element, RoundedValue::weight);
  });
}

using Adamw = void (*)(const SegmentTable, Arenas, AdamwConstants);

template <typename Weight>
Adamw adamw_kernel(const OptimizerDescription& d) {
  if constexpr (std::is_same_v<Weight, Bfloat16>) {
    const auto with_moments = [&]<typename G, typename M>(G*, M*) -> Adamw {
      return d.has_masters ? adamw<Weight, G, M, true> : adamw<Weight, G, M, false>;
    };
    const auto with_gradients = [&]<typename G>(G* gradient) {
      return d.state_dtype == DType::fp32 ? with_moments(gradient, static_cast<float*>(nullptr))
                                          : with_moments(gradient, static_cast<Bfloat16*>(nullptr));
    };
    return d.gradient_dtype == DType::fp32 ? with_gradients(static_cast<float*>(nullptr))
                                           : with_gradients(static_cast<Bfloat16*>(nullptr));
  } else {
    return adamw<Weight, float, float, true>;
  }
}

struct Squares {
  double parameters = 0, gradients = 0;
};

__global__ void __launch_bounds__(kTileThreads)
    sum_squares_of_tiles(const __grid_constant__ SegmentTable table, Arenas arenas, Squares* squares) {
  if (arenas.scalars->is_applied == 0) return;
  const Tile tile = find_tile(table);
  if (!tile.decays) return;
  const double parameters = block_sum<kTileThreads>(sum_of_squares(arenas.parameters, tile, arenas.aligned));
  const double gradients =
      block_sum<kTileThreads>(sum_of_squares(static_cast<const float*>(arenas.gradients), tile, arenas.aligned));
  if (threadIdx.x == 0) squares[table.first_tile + blockIdx.x] = {parameters, gradients};
}

struct LarsConstants {
  double trust_coefficient = 0, epsilon = 0;
};

/// ratio * (clip * g + decay * w) is SGD with both factors multiplied by the ratio.
__global__ void __launch_bounds__(kTileThreads)
    find_trust_ratios(const __grid_constant__ SegmentTable table, const Squares* squares, LarsConstants constants,
                      const StepScalars* scalars, SgdFactors* factors) {
  if (scalars->is_applied == 0) return;
  const unsigned segment = blockIdx.x;
  const bool decays = (table.tile[segment] & SegmentTable::kDecays) != 0;
  const unsigned begin = table.tile[segment] & ~SegmentTable::kDecays;
  const unsigned n_tiles = (table.n_elements[segment] - 1) / kTileElements + 1;
  Squares sum;
  if (decays)
    for (unsigned i = threadIdx.x; i < n_tiles; i += kTileThreads) {
      const Squares tile = squares[table.first_tile + begin + i];
      sum.parameters += tile.parameters;
      sum.gradients += tile.gradients;
    }
  const double clip_coefficient = scalars->clip_coefficient;
  const double w = sqrt(block_sum<kTileThreads>(sum.parameters));
  const double g = sqrt(block_sum<kTileThreads>(sum.gradients)) * clip_coefficient;
  if (threadIdx.x != 0) return;
  const double weight_decay = table.weight_decay[segment];
  double ratio = 1;
  if (w > 0 && g > 0) ratio = constants.trust_coefficient * w / (g + weight_decay * w + constants.epsilon);
  factors[table.first_segment + segment] = {static_cast<float>(ratio * clip_coefficient),
                                            static_cast<float>(ratio * weight_decay)};
}

class CudaOptimizer final : public CudaOp<OptimizerDescription> {
 public:
  CudaOptimizer(const OptimizerDescription& d, const CudaContext& context) : PlannedOp(d, context) {
    for (ParameterSegment& segment : d_.segments) {
      segment.weight_decay = d.decay_of(segment);
      segment.stored_begin = segment.stored();
      segment.begin -= d.first;
    }
    tables_ = make_segment_tables(d_.segments);
  }

  OpMemoryRequirements memory_requirements() const override {
    if (d_.kind != Kind::lars) return {};
    return {.forward_workspace_bytes =
                count_tiles(tables_) * sizeof(Squares) + count_segments(tables_) * sizeof(SgdFactors)};
  }

  std::string describe() const override { return "own kernel: " + optimizer_text(d_); }

  void run_apply(const Apply& args, const OpMemory& memory, Stream& stream) override {
    const OptimizerDescription& d = d_;
    Arenas arenas{.parameters = args.parameters,
                  .weights = args.weights,
                  .gradients = args.gradients,
                  .first_state = args.state,
                  .second_state = d.n_states() > 1
                                      ? static_cast<std::byte*>(args.state) + d.n_elements * size_bytes(d.state_dtype)
                                      : nullptr,
                  .scalars = args.scalars,
                  .parameters_are_sharded = d.parameters_are_sharded};
    arenas.aligned =
        are_aligned(arenas.parameters, arenas.weights, arenas.gradients, arenas.first_state, arenas.second_state);
    const SgdFactors* factors =
        d.kind == Kind::lars ? find_factors(arenas, static_cast<Squares*>(memory.workspace), stream) : nullptr;
    dispatch(d.weight_dtype, [&]<typename Weight>(Weight*) {
      for (const SegmentTable& table : tables_) {
        // The pointers are shifted here, since more places in the kernel would cost registers.
        if (d.weights_are_sharded && args.weights != nullptr)
          arenas.weights =
              static_cast<std::byte*>(args.weights) + static_cast<std::ptrdiff_t>(table.stored_shift * sizeof(Weight));
        if (d.gradients_are_sharded)
          arenas.gradients = static_cast<const std::byte*>(args.gradients) +
                             static_cast<std::ptrdiff_t>(table.stored_shift * size_bytes(d.gradient_dtype));
        const std::size_t of_element = (d.has_masters ? 2 * sizeof(float) : sizeof(Weight)) +
                                       size_bytes(d.gradient_dtype) +
                                       2 * static_cast<std::size_t>(d.n_states()) * size_bytes(d.state_dtype) +
                                       (args.weights != nullptr ? sizeof(Weight) : 0);
        const Grid grid{.blocks = table.n_tiles,
                        .threads = kTileThreads,
                        .work = {.kind = "packs", .bytes = moved_bytes(1, table.n_tiles, kTileElements, of_element)}};
        if (d.kind == Kind::adamw)
          launch(adamw_kernel<Weight>(d), grid, stream, table, arenas,
                 AdamwConstants{d.beta1, d.beta2, d.epsilon, d.seed, d.first});
        else
          launch(sgd_kernel<Weight>(d), grid, stream, table, arenas, d.momentum, factors);
      }
    });
  }

 private:
  const SgdFactors* find_factors(const Arenas& arenas, Squares* squares, Stream& stream) const {
    auto* factors = reinterpret_cast<SgdFactors*>(squares + count_tiles(tables_));
    const LarsConstants constants{d_.trust_coefficient, d_.epsilon};
    for (const SegmentTable& table : tables_) {
      launch(sum_squares_of_tiles, {.blocks = table.n_tiles, .threads = kTileThreads}, stream, table, arenas, squares);
      launch(find_trust_ratios, {.blocks = table.n_segments, .threads = kTileThreads}, stream, table, squares,
             constants, arenas.scalars, factors);
    }
    return factors;
  }

  std::vector<SegmentTable> tables_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerDescription& d, const CudaContext& context) {
  require(d.weight_dtype == DType::fp32 || d.weight_dtype == DType::fp16 || d.weight_dtype == DType::bf16,
          ErrorCode::not_supported, "the optimizer on the device writes weights in fp16 or bf16, not {}",
          name(d.weight_dtype));
  d.check();
  return std::make_unique<CudaOptimizer>(d, context);
}

}  // namespace lockstep::cuda
