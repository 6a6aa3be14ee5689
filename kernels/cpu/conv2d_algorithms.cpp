// The algorithms of a bare convolution, the choice of one for each direction, and the layout of a graph's activations.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/cpu/conv2d_amx.h"
#include "kernels/cpu/conv2d_bare.h"
#include "kernels/cpu/conv2d_matmul.h"
#include "kernels/cpu/conv2d_plan.h"
#include "kernels/cpu/conv2d_weights.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {
namespace {

struct ConvolutionAlgorithm {
  const char* name;
  bool (*fits)(const Conv2dDescription&, Direction);
  std::unique_ptr<BareConvolution> (*make)(const Conv2dDescription&, Direction, const CpuContext&);
};

// Names are part of the choices that are stored on disk: a kernel whose speed changes gets a new name.
const ConvolutionAlgorithm kAmx{.name = "amx", .fits = amx_convolution_fits, .make = make_amx_convolution};
const ConvolutionAlgorithm kBlocks{.name = "blocks", .fits = weight_gradient_fits, .make = make_weight_gradient};
const ConvolutionAlgorithm kDirect{.name = "direct",
                                   .fits = [](const Conv2dDescription&, Direction) { return true; },
                                   .make = make_onednn_convolution};
const ConvolutionAlgorithm kMatmul{.name = "matmul", .fits = matmul_convolution_fits, .make = make_matmul_convolution};

/// In the order of a fixed choice.
std::vector<const ConvolutionAlgorithm*> algorithms_of(const Conv2dDescription& d, Direction direction) {
  std::vector<const ConvolutionAlgorithm*> fitting{&kAmx, &kDirect, &kBlocks, &kMatmul};
  if (weight_gradient_pays(d)) std::swap(fitting[1], fitting[2]);
  std::erase_if(fitting, [&](const ConvolutionAlgorithm* algorithm) { return !algorithm->fits(d, direction); });
  return fitting;
}

/// The weights' layout that the fixed choice of forward uses.
std::shared_ptr<const ParameterLayout> first_layout(const Conv2dDescription& d, const CpuContext& context) {
  return algorithms_of(d, Direction::forward)[0]->make(d, Direction::forward, context)->weight_layout();
}

/// 64-byte aligned, of numbers near 1.
class Buffer {
 public:
  explicit Buffer(std::size_t size_bytes)
      : data_(std::aligned_alloc(64, (std::max<std::size_t>(size_bytes, 1) + 63) / 64 * 64)) {
    require(data_ != nullptr, ErrorCode::out_of_memory, "an allocation of {} bytes to time convolutions failed",
            size_bytes);
    std::memset(data_, 0x3f, size_bytes);
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  template <typename T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
};

/// An algorithm and its measured time.
struct Candidate {
  const ConvolutionAlgorithm* algorithm;
  Conv2dDescription description;  // x and y are as large as those of the other algorithms
};

/// The number of samples from which on the fastest algorithm no longer changes.
Conv2dDescription with_fewer_images(Conv2dDescription d, std::int64_t images_a_thread, const CpuContext& context) {
  d.x = {std::min(d.x[0], images_a_thread * std::max(1, context.threads)), d.x[1], d.x[2], d.x[3]};
  return d;
}

/// The number of rounds. Each round runs all algorithms, so that other load of the processor affects all of them
/// equally.
std::vector<double> seconds_of(const std::vector<Candidate>& candidates, Direction direction,
                               const CpuContext& context) {
  struct Trial {
    std::unique_ptr<BareConvolution> convolution;
    double seconds = 1e30;
  };
  std::vector<Trial> trials;
  std::size_t weight_bytes = 0, workspace_bytes = 0;
  for (const Candidate& candidate : candidates) {
    trials.push_back({candidate.algorithm->make(candidate.description, direction, context)});
    const BareConvolution& made = *trials.back().convolution;
    weight_bytes = std::max(weight_bytes, made.weight_layout()->n_elements() * sizeof(float));
    workspace_bytes = std::max(workspace_bytes, made.workspace_bytes());
  }
  const Conv2dDescription& d = candidates[0].description;
  const auto bytes = [&](const Shape& s) { return static_cast<std::size_t>(s.n_elements()) * size_bytes(d.dtype); };
  const Buffer x(bytes(d.x)), y(bytes(d.y())), weight(weight_bytes), workspace(workspace_bytes);
  const auto run = [&](BareConvolution& convolution) {
    switch (direction) {
      case Direction::forward:
        return convolution.forward(x.as(), weight.as(), y.as(), workspace.as());
      case Direction::data_gradient:
        return convolution.data_gradient(y.as(), weight.as(), x.as(), workspace.as());
      case Direction::weight_gradient:
        return convolution.weight_gradient(x.as(), y.as(), weight.as<float>(), false, workspace.as());
    }
  };
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  // The first round fills caches. Algorithms that are far behind are not run again, and there are fewer long rounds.
  constexpr int kLeastRounds = 3, kMaxRounds = 10;
  constexpr double kHopeless = 3, kEnoughSeconds = 0.06;
  const auto begin = Clock::now();
  double least = 1e30;
  for (int round = 0; round < kMaxRounds && (round < kLeastRounds || seconds_since(begin) < kEnoughSeconds); ++round)
    for (Trial& trial : trials) {
      if (round > 0 && trial.seconds > kHopeless * least) continue;
      const auto start = Clock::now();
      run(*trial.convolution);
      trial.seconds = std::min(trial.seconds, seconds_since(start));
      least = std::min(least, trial.seconds);
    }
  std::vector<double> seconds;
  for (const Trial& trial : trials) seconds.push_back(trial.seconds);
  return seconds;
}

constexpr Layout kLayouts[] = {Layout::nchw16c, Layout::nhwc};  // the layouts of fp32; the first is the fixed choice

/// Times all directions of a 3x3 convolution of such activations in each of kLayouts, with their fastest algorithms,
/// and with no more channels than make a difference.
std::vector<double> seconds_in_layouts(const Shape& shape, const CpuContext& context) {
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
  std::vector<double> seconds(descriptions.size());
  for (const Direction direction : {Direction::forward, Direction::data_gradient, Direction::weight_gradient}) {
    std::vector<Candidate> candidates;
    std::vector<std::size_t> ends;  // of each layout's candidates
    for (const Conv2dDescription& d : descriptions) {
      for (const ConvolutionAlgorithm* algorithm : algorithms_of(d, direction)) candidates.push_back({algorithm, d});
      ends.push_back(candidates.size());
    }
    const std::vector<double> found = seconds_of(candidates, direction, context);
    for (std::size_t i = 0; i < ends.size(); ++i)
      seconds[i] += *std::min_element(found.begin() + static_cast<std::ptrdiff_t>(i == 0 ? 0 : ends[i - 1]),
                                      found.begin() + static_cast<std::ptrdiff_t>(ends[i]));
  }
  return seconds;
}

/// The table of all algorithms, created on first use.
template <typename All>
std::function<double(std::size_t)> each_of(const All& all) {
  return [&all, seconds = std::vector<double>()](std::size_t i) mutable {
    if (seconds.empty()) seconds = all();
    return seconds[i];
  };
}

/// The key has no batch size, so that ranks whose batch is one sample smaller use the same algorithm.
std::string key(const Conv2dDescription& d, Direction direction) {
  return fmt::format("conv2d {}x{}x{} -> {}, {}x{}/{}+{}, {}, {} to {}, weights {}, {}", d.x[1], d.x[2], d.x[3],
                     d.out_channels, d.window, d.window, d.stride, d.padding, name(d.dtype), name(d.x_layout),
                     name(d.y_layout), d.weight_layout ? d.weight_layout->describe() : "free", name(direction));
}

[[noreturn]] void made_for_another(Direction direction) {
  fail(ErrorCode::internal, "{} was called on a convolution that was planned for another direction", name(direction));
}

}  // namespace

const char* name(Direction direction) {
  switch (direction) {
    case Direction::forward:
      return "forward";
    case Direction::data_gradient:
      return "data gradient";
    case Direction::weight_gradient:
      return "weight gradient";
  }
  return "";
}

void BareConvolution::forward(const void*, const void*, void*, void*) { made_for_another(Direction::forward); }
void BareConvolution::data_gradient(const void*, const void*, void*, void*) {
  made_for_another(Direction::data_gradient);
}
void BareConvolution::weight_gradient(const void*, const void*, float*, bool, void*) {
  made_for_another(Direction::weight_gradient);
}

std::unique_ptr<BareConvolution> make_bare_convolution(const Conv2dDescription& given, Direction direction,
                                                       const CpuContext& context, Algorithms* algorithms) {
  check(given);
  if (!algorithms) return algorithms_of(given, direction)[0]->make(given, direction, context);
  Conv2dDescription d = given;
  // Whichever algorithm is the fastest, the weights have the layout of the first: a layout that fits a narrow winner of
  // forward could rule out the best algorithm of a gradient.
  if (!d.weight_layout) d.weight_layout = first_layout(d, context);
  const std::vector<const ConvolutionAlgorithm*> fitting = algorithms_of(d, direction);
  constexpr std::int64_t kImagesAThread = 32;
  const Conv2dDescription timed = with_fewer_images(d, kImagesAThread, context);
  std::vector<std::string> names;
  std::vector<Candidate> candidates;
  for (const ConvolutionAlgorithm* algorithm : fitting) {
    names.emplace_back(algorithm->name);
    candidates.push_back({algorithm, timed});
  }
  const auto seconds = [&] { return seconds_of(candidates, direction, context); };
  return fitting[algorithms->choose(key(d, direction), names, each_of(seconds))]->make(d, direction, context);
}

Layout choose_activation_layout(const Shape& shape, DType dtype, const CpuContext& context, Algorithms* algorithms) {
  const bool has_blocks =
      dtype == DType::fp32 && shape.rank() == 4 && shape[3] % 16 == 0 && onednn_instructions() == "AVX-512";
  if (!has_blocks) return Layout::nhwc;
  if (!algorithms || shape[1] * shape[2] == 1) return kLayouts[0];
  const std::string key = fmt::format("layout {}x{}x{}, {}", shape[1], shape[2], shape[3], name(dtype));
  const std::vector<std::string> names{std::string(name(kLayouts[0])), std::string(name(kLayouts[1]))};
  const auto seconds = [&] {
    // Tensors are reordered between neighbours of different layouts, so a small gain does not pay.
    constexpr double kCostOfChange = 1.1;
    std::vector<double> found = seconds_in_layouts(shape, context);
    found[1] *= kCostOfChange;
    return found;
  };
  return kLayouts[algorithms->choose(key, names, each_of(seconds))];
}

}  // namespace lockstep::cpu
