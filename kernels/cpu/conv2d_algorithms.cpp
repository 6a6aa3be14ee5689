// The algorithms of a bare convolution, the choice of one for each direction, and the layout of a graph's activations.
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/timing_buffer.h"
#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/log.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t kBlock = 16;  // channels per block in Layout::nchw16c

struct ConvolutionAlgorithm {
  const char* name;
  bool (*fits)(const Conv2dDescription&, Direction);
  MakeConvolution make;
};

// Names are part of the choices that are stored on disk: a kernel whose speed changes gets a new name.
const ConvolutionAlgorithm kAmx{.name = "amx", .fits = amx_convolution_fits, .make = make_amx_convolution};
const ConvolutionAlgorithm kBlocks{.name = "blocks", .fits = weight_gradient_fits, .make = make_weight_gradient};
#ifdef LOCKSTEP_DNNL
const ConvolutionAlgorithm kDirect{.name = "direct",
                                   .fits = [](const Conv2dDescription&, Direction) { return true; },
                                   .make = make_onednn_convolution};
#endif
const ConvolutionAlgorithm kMatmul{.name = "matmul", .fits = matmul_convolution_fits, .make = make_matmul_convolution};
// Its rounding errors are larger than those of the others, so it is never the first, which `reproducible` uses.
const ConvolutionAlgorithm kWinograd{.name = "winograd", .fits = winograd_fits, .make = make_winograd_convolution};

#ifdef LOCKSTEP_DNNL
Conv2dDescription widened_for_blocks(const Conv2dDescription& d) {
  Conv2dDescription fp32 = widened(d, /*needs_nhwc=*/false);
  fp32.weight_layout = weight_gradient_layout(fp32);
  return fp32;
}
bool is_widened(const Conv2dDescription& d) {
  return d.dtype == DType::bf16 && d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc;
}

// The same for bf16, multiplied in fp32.
Conv2dDescription widened_in_any_layout(const Conv2dDescription& d) { return widened(d, /*needs_nhwc=*/false); }
Conv2dDescription widened_in_nhwc(const Conv2dDescription& d) { return widened(d, /*needs_nhwc=*/true); }
template <auto to_fp32, auto make>
std::unique_ptr<BareConvolution> make_widened(const Conv2dDescription& d, Direction direction,
                                              const CpuContext& context) {
  return make_widened_convolution(d, to_fp32(d), direction, context, make);
}
bool widened_fits(const Conv2dDescription& d, Direction) { return is_widened(d); }
bool widened_blocks_fit(const Conv2dDescription& d, Direction direction) {
  return is_widened(d) && direction == Direction::weight_gradient &&
         weight_gradient_fits(widened_for_blocks(d), direction);
}
const ConvolutionAlgorithm kWidenedDirect{.name = "widened direct",
                                          .fits = widened_fits,
                                          .make = make_widened<widened_in_any_layout, make_onednn_convolution>};
const ConvolutionAlgorithm kWidenedBlocks{.name = "widened blocks",
                                          .fits = widened_blocks_fit,
                                          .make = make_widened<widened_for_blocks, make_weight_gradient>};
const ConvolutionAlgorithm kWidenedMatmul{
    .name = "widened matmul", .fits = widened_fits, .make = make_widened<widened_in_nhwc, make_matmul_convolution>};
#endif

/// The algorithms that fit. A fixed choice takes the first.
std::vector<const ConvolutionAlgorithm*> algorithms_of(const Conv2dDescription& d, Direction direction) {
#ifdef LOCKSTEP_DNNL
  std::vector<const ConvolutionAlgorithm*> own{&kAmx, &kDirect, &kBlocks, &kMatmul, &kWinograd};
  std::vector<const ConvolutionAlgorithm*> in_fp32{&kWidenedDirect, &kWidenedBlocks, &kWidenedMatmul};
  if (weight_gradient_pays(d)) {
    std::swap(own[1], own[2]);
    std::swap(in_fp32[0], in_fp32[1]);
  }
  const bool multiplies_bf16 = d.dtype == DType::fp32 || product_type(DType::bf16) == DType::bf16;
  std::vector<const ConvolutionAlgorithm*> fitting = multiplies_bf16 ? own : in_fp32;
  const auto& others = multiplies_bf16 ? in_fp32 : own;
  fitting.insert(fitting.end(), others.begin(), others.end());
#else
  // Our own products take bf16 directly.
  std::vector<const ConvolutionAlgorithm*> fitting{&kAmx, &kBlocks, &kMatmul, &kWinograd};
#endif
  std::erase_if(fitting, [&](const ConvolutionAlgorithm* algorithm) { return !algorithm->fits(d, direction); });
  return fitting;
}

/// The weights' layout that the fixed choice of forward uses.
std::shared_ptr<const ParameterLayout> first_layout(const Conv2dDescription& d, const CpuContext& context) {
  return algorithms_of(d, Direction::forward)[0]->make(d, Direction::forward, context)->weight_layout();
}

/// An algorithm that is timed.
struct Candidate {
  const ConvolutionAlgorithm* algorithm;
  Conv2dDescription description;  // x and y are as large as those of the other algorithms
};

/// Limits the batch for timing. With more samples than this, the fastest algorithm no longer changes.
Conv2dDescription with_fewer_images(Conv2dDescription d, std::int64_t images_a_thread, const CpuContext& context) {
  d.x = {std::min(d.x[0], images_a_thread * std::max(1, context.threads)), d.x[1], d.x[2], d.x[3]};
  return d;
}

/// The candidates and the memory that they run on.
class Trials {
 public:
  Trials(const std::vector<Candidate>& candidates, Direction direction, const CpuContext& context)
      : direction_(direction) {
    std::size_t weight_bytes = 0, workspace_bytes = 0;
    for (const Candidate& candidate : candidates) {
      convolutions_.push_back(made(candidate, direction, context));
      if (!convolutions_.back()) continue;
      const BareConvolution& convolution = *convolutions_.back();
      weight_bytes = std::max(weight_bytes, convolution.weight_layout()->n_elements() * sizeof(float));
      workspace_bytes = std::max(workspace_bytes, convolution.workspace_bytes());
    }
    const Conv2dDescription& d = candidates[0].description;
    const auto bytes = [&](const Shape& s) { return static_cast<std::size_t>(s.n_elements()) * size_bytes(d.dtype); };
    x_ = std::make_unique<TimingBuffer>(bytes(d.x));
    y_ = std::make_unique<TimingBuffer>(bytes(d.y()));
    weight_ = std::make_unique<TimingBuffer>(weight_bytes);
    workspace_ = std::make_unique<TimingBuffer>(workspace_bytes);
  }

  CallTime time(std::size_t i) {
    if (!convolutions_[i]) return {.seconds = std::numeric_limits<double>::infinity()};
    return time_call([&] { run(*convolutions_[i]); });
  }

 private:
  static std::unique_ptr<BareConvolution> made(const Candidate& candidate, Direction direction,
                                               const CpuContext& context) {
    try {
      return candidate.algorithm->make(candidate.description, direction, context);
    } catch (const Error& error) {
      log::write_to_file(log::Level::info, fmt::format("the algorithm {} is not available for {}: {}",
                                                       candidate.algorithm->name, name(direction), error.what()));
      return nullptr;
    }
  }
  void run(BareConvolution& convolution) const {
    if (direction_ == Direction::weight_gradient)
      return convolution.weight_gradient(x_->as(), y_->as(), weight_->as<float>(), false, workspace_->as());
    const bool is_forward = direction_ == Direction::forward;
    convolution.run((is_forward ? x_ : y_)->as(), weight_->as(), (is_forward ? y_ : x_)->as(), workspace_->as());
  }

  Direction direction_;
  std::vector<std::unique_ptr<BareConvolution>> convolutions_;
  std::unique_ptr<TimingBuffer> x_, y_, weight_, workspace_;
};

Timing time_candidates(const std::vector<Candidate>& candidates, Direction direction, const CpuContext& context) {
  Trials trials(candidates, direction, context);
  return time_in_alternation(candidates.size(), [&](std::size_t i) { return trials.time(i); });
}

constexpr Layout kLayouts[] = {Layout::nchw16c, Layout::nhwc};  // the layouts of fp32; the first is the fixed choice

/// Times all directions of a 3x3 convolution of such activations in each of kLayouts, with the fastest algorithm for
/// each. More channels than kChannels would make no difference.
Timing time_layouts(const Shape& shape, const CpuContext& context) {
  constexpr std::int64_t kImagesAThread = 8, kChannels = 512;
  const std::int64_t channels = std::min(shape[3], kChannels);
  std::vector<Conv2dDescription> descriptions;
  for (const Layout layout : kLayouts) {
    Conv2dDescription d{.x = {shape[0], shape[1], shape[2], channels}, .out_channels = channels};
    d = with_fewer_images(std::move(d), kImagesAThread, context);
    d.x_layout = d.y_layout = layout;
    d.weight_layout = first_layout(d, context);
    descriptions.push_back(std::move(d));
  }
  Timing timing{.seconds = std::vector<double>(descriptions.size())};
  for (const Direction direction : {Direction::forward, Direction::data_gradient, Direction::weight_gradient}) {
    std::vector<Candidate> candidates;
    std::vector<std::size_t> ends;  // the end of each layout's candidates
    for (const Conv2dDescription& d : descriptions) {
      for (const ConvolutionAlgorithm* algorithm : algorithms_of(d, direction)) candidates.push_back({algorithm, d});
      ends.push_back(candidates.size());
    }
    const Timing found = time_candidates(candidates, direction, context);
    for (std::size_t i = 0; i < ends.size(); ++i)
      timing.seconds[i] +=
          *std::min_element(found.seconds.begin() + static_cast<std::ptrdiff_t>(i == 0 ? 0 : ends[i - 1]),
                            found.seconds.begin() + static_cast<std::ptrdiff_t>(ends[i]));
    timing.is_under_load = timing.is_under_load || found.is_under_load;
  }
  return timing;
}

/// The key does not contain the batch size, so that ranks whose batch is one sample smaller use the same algorithm.
std::string key(const Conv2dDescription& d, Direction direction) {
  return fmt::format("conv2d {}x{}x{} -> {}, {}x{}/{}+{}, {}, {} to {}, weights {}, {}", d.x[1], d.x[2], d.x[3],
                     d.out_channels, d.kernel_size, d.kernel_size, d.stride, d.padding, name(d.dtype), name(d.x_layout),
                     name(d.y_layout), d.weight_layout ? d.weight_layout->describe() : "free", name(direction));
}

}  // namespace

const char* name(Direction direction) {
  constexpr const char* kNames[] = {"forward", "data gradient", "weight gradient"};
  return kNames[static_cast<std::size_t>(direction)];
}

void check(const Conv2dDescription& d) {
  require(d.dtype == DType::fp32 || d.dtype == DType::bf16, ErrorCode::not_supported,
          "{}: the cpu backend computes in fp32 or bf16, not in {}", text(d), name(d.dtype));
  require_possible(d);
  require(d.x_layout == Layout::nhwc || d.x[3] % kBlock == 0, ErrorCode::op_description,
          "{}: x in channel blocks of {} needs a multiple of {} channels, found {}", text(d), kBlock, kBlock, d.x[3]);
  require(d.y_layout == Layout::nhwc || d.out_channels % kBlock == 0, ErrorCode::op_description,
          "{}: y in channel blocks of {} needs a multiple of {} channels, found {}", text(d), kBlock, kBlock,
          d.out_channels);
}

std::unique_ptr<BareConvolution> make_bare_convolution(const Conv2dDescription& given, Direction direction,
                                                       const CpuContext& context, Algorithms* algorithms) {
  check(given);
  if (!algorithms) return algorithms_of(given, direction)[0]->make(given, direction, context);
  Conv2dDescription d = given;
  // Whichever algorithm is the fastest, the weights have the layout of the first one: the layout of a forward algorithm
  // that wins by a narrow margin could rule out the best algorithm of a gradient.
  if (!d.weight_layout) d.weight_layout = first_layout(d, context);
  const std::vector<const ConvolutionAlgorithm*> fitting = algorithms_of(d, direction);
  constexpr std::int64_t kFewestImages = 2, kMostImages = 32, kPixels = 4096;  // per thread
  const Conv2dDescription timed =
      with_fewer_images(d, std::clamp(kPixels / (d.x[1] * d.x[2]), kFewestImages, kMostImages), context);
  std::vector<std::string> names;
  std::vector<Candidate> candidates;
  for (const ConvolutionAlgorithm* algorithm : fitting) {
    names.emplace_back(algorithm->name);
    candidates.push_back({algorithm, timed});
  }
  const auto time_all = [&] { return time_candidates(candidates, direction, context); };
  return fitting[algorithms->choose(key(d, direction), names, time_all)]->make(d, direction, context);
}

bool has_convolutions_in_blocks() { return kHasOnednn && product_instructions().starts_with("AVX-512"); }

Layout choose_activation_layout(const Shape& shape, DType dtype, const CpuContext& context, Algorithms* algorithms) {
  const bool has_blocks =
      dtype == DType::fp32 && shape.rank() == 4 && shape[3] % kBlock == 0 && has_convolutions_in_blocks();
  if (!has_blocks) return Layout::nhwc;
  if (!algorithms || shape[1] * shape[2] == 1) return kLayouts[0];
  const std::string key = fmt::format("layout {}x{}x{}, {}", shape[1], shape[2], shape[3], name(dtype));
  const std::vector<std::string> names{std::string(name(kLayouts[0])), std::string(name(kLayouts[1]))};
  const auto time_all = [&] {
    // Tensors are reordered between neighbours with different layouts, so a small gain does not pay off.
    constexpr double kCostOfChange = 1.1;
    Timing timing = time_layouts(shape, context);
    timing.seconds[1] *= kCostOfChange;
    return timing;
  };
  return kLayouts[algorithms->choose(key, names, time_all)];
}

}  // namespace lockstep::cpu
