// The ways to do a bare convolution, and which one is taken for each direction.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cpu/conv2d_amx.h"
#include "kernels/cpu/conv2d_bare.h"
#include "kernels/cpu/conv2d_plan.h"
#include "kernels/cpu/conv2d_weights.h"

namespace lockstep::cpu {
namespace {

struct Way {
  const char* name;
  bool (*fits)(const Conv2dDescription&, Direction);
  std::unique_ptr<BareConvolution> (*make)(const Conv2dDescription&, Direction, const CpuContext&);
};

// Names are part of what is remembered on disk: kernels that change their speed get another.
const Way kAmx{.name = "amx", .fits = amx_convolution_fits, .make = make_amx_convolution};
const Way kBlocks{.name = "blocks", .fits = weight_gradient_fits, .make = make_weight_gradient};
const Way kDirect{.name = "direct",
                  .fits = [](const Conv2dDescription&, Direction) { return true; },
                  .make = make_onednn_convolution};

/// In the order of a fixed choice.
std::vector<const Way*> ways_of(const Conv2dDescription& d, Direction direction) {
  std::vector<const Way*> ways{&kAmx, &kDirect, &kBlocks};
  if (weight_gradient_pays(d)) std::swap(ways[1], ways[2]);
  std::erase_if(ways, [&](const Way* way) { return !way->fits(d, direction); });
  return ways;
}

/// 64-byte aligned, of numbers near 1.
class Buffer {
 public:
  explicit Buffer(std::size_t size_bytes)
      : data_(std::aligned_alloc(64, (std::max<std::size_t>(size_bytes, 1) + 63) / 64 * 64)) {
    require(data_ != nullptr, ErrorCode::out_of_memory, "{} bytes to time convolutions were refused", size_bytes);
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

double seconds_of(const Way& way, const Conv2dDescription& d, Direction direction, const CpuContext& context) {
  using Clock = std::chrono::steady_clock;
  const auto convolution = way.make(d, direction, context);
  const auto bytes = [&](const Shape& s) { return static_cast<std::size_t>(s.n_elements()) * size_bytes(d.dtype); };
  const std::size_t weight_bytes = convolution->weight_layout()->n_elements() * sizeof(float);
  const Buffer x(bytes(d.x)), y(bytes(d.y())), weight(weight_bytes), workspace(convolution->workspace_bytes());
  const auto run = [&] {
    switch (direction) {
      case Direction::forward:
        return convolution->forward(x.as(), weight.as<float>(), y.as(), workspace.as());
      case Direction::data_gradient:
        return convolution->data_gradient(y.as(), weight.as<float>(), x.as(), workspace.as());
      case Direction::weight_gradient:
        return convolution->weight_gradient(x.as(), y.as(), weight.as<float>(), false, workspace.as());
    }
  };
  run();  // takes pages and fills caches
  double least = 1e30;
  for (int repetition = 0; repetition < 4; ++repetition) {
    const auto begin = Clock::now();
    run();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return least;
}

/// Without the batch: ranks whose batch is a sample shorter do as the others.
std::string key(const Conv2dDescription& d, Direction direction) {
  return fmt::format("conv2d {}x{}x{} -> {}, {}x{}/{}+{}, {}, {} to {}, weights {}, {}", d.x[1], d.x[2], d.x[3],
                     d.out_channels, d.window, d.window, d.stride, d.padding, name(d.dtype), name(d.x_layout),
                     name(d.y_layout), d.weight_layout ? d.weight_layout->describe() : "free", name(direction));
}

[[noreturn]] void made_for_another(Direction direction) {
  fail(ErrorCode::internal, "a convolution was made for another direction, and its {} was called", name(direction));
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

void BareConvolution::forward(const void*, const float*, void*, void*) { made_for_another(Direction::forward); }
void BareConvolution::data_gradient(const void*, const float*, void*, void*) {
  made_for_another(Direction::data_gradient);
}
void BareConvolution::weight_gradient(const void*, const void*, float*, bool, void*) {
  made_for_another(Direction::weight_gradient);
}

std::unique_ptr<BareConvolution> make_bare_convolution(const Conv2dDescription& d, Direction direction,
                                                       const CpuContext& context, Algorithms* algorithms) {
  check(d);
  const std::vector<const Way*> ways = ways_of(d, direction);
  std::size_t chosen = 0;
  if (algorithms) {
    std::vector<std::string> names;
    for (const Way* way : ways) names.emplace_back(way->name);
    chosen = algorithms->choose(key(d, direction), names,
                                [&](std::size_t i) { return seconds_of(*ways[i], d, direction, context); });
  }
  return ways[chosen]->make(d, direction, context);
}

}  // namespace lockstep::cpu
