// The cpu backend's convolution in each pair of layouts and each gradient mode, against loops in double, also by
// matmuls; its parameter layout; and that a step allocates almost nothing. Normalisations and statistics:
// conv2d_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/base/simd.h"
#include "kernels/cpu/conv2d_matmul.h"
#include "kernels/cpu/conv2d_weights.h"
#include "lockstep/error.h"
#include "lockstep/event.h"
#include "lockstep/ops/conv2d.h"
#include "lockstep/philox.h"
#include "test/support/heap_count.h"

namespace lockstep::cpu {

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription&, const CpuContext&);  // conv2d.cpp
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// fp32 values, 64-byte aligned like those of arenas; NaN until written.
class Buffer {
 public:
  explicit Buffer(std::size_t n) : n_(n), data_(static_cast<float*>(std::aligned_alloc(64, (n * 4 + 127) / 64 * 64))) {
    std::fill_n(data_, n, kNan);
  }
  explicit Buffer(const std::vector<float>& values) : Buffer(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* data() { return data_; }
  void fill(float value) { std::fill_n(data_, n_, value); }
  std::vector<float> values() const { return {data_, data_ + n_}; }

 private:
  std::size_t n_;
  float* data_;
};

class NoStream final : public Stream {
  void wait(const Event&) override {}
  void synchronize() override {}
};

std::vector<float> random_values(std::size_t n, std::uint32_t seed) {
  const Philox philox(seed, RandomPurpose::synthetic, 0, 0);
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(2 * philox.uniform(i) - 1);
  return values;
}

/// Position of (n, h, w, c) in a layout.
std::size_t position(const Shape& s, Layout layout, std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) {
  if (layout == Layout::nhwc) return static_cast<std::size_t>(((n * s[1] + h) * s[2] + w) * s[3] + c);
  return static_cast<std::size_t>((((n * (s[3] / 16) + c / 16) * s[1] + h) * s[2] + w) * 16 + c % 16);
}

std::vector<float> relayout(const Shape& s, const std::vector<float>& from, Layout source, Layout target) {
  std::vector<float> to(from.size());
  for (std::int64_t n = 0; n < s[0]; ++n)
    for (std::int64_t h = 0; h < s[1]; ++h)
      for (std::int64_t w = 0; w < s[2]; ++w)
        for (std::int64_t c = 0; c < s[3]; ++c)
          to[position(s, target, n, h, w, c)] = from[position(s, source, n, h, w, c)];
  return to;
}

/// A sum and the sum of its terms' magnitudes, which bounds its rounding.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double a, double b) {
    value += a * b;
    magnitude += std::abs(a * b);
  }
};

struct Naive {
  std::vector<Sum> y, dx, dweight;  // nhwc, nhwc, (K, C, R, S)
};

Naive naive(const Conv2dDescription& d, const std::vector<float>& x, const std::vector<float>& weight,
            const std::vector<float>& dy) {
  const Shape in = d.x, out = d.y();
  Naive result{std::vector<Sum>(dy.size()), std::vector<Sum>(x.size()), std::vector<Sum>(weight.size())};
  for (std::int64_t n = 0; n < in[0]; ++n)
    for (std::int64_t h = 0; h < out[1]; ++h)
      for (std::int64_t w = 0; w < out[2]; ++w)
        for (std::int64_t k = 0; k < out[3]; ++k) {
          const std::size_t o = position(out, Layout::nhwc, n, h, w, k);
          for (std::int64_t r = 0; r < d.window; ++r)
            for (std::int64_t s = 0; s < d.window; ++s) {
              const std::int64_t row = h * d.stride + r - d.padding, column = w * d.stride + s - d.padding;
              if (row < 0 || row >= in[1] || column < 0 || column >= in[2]) continue;
              for (std::int64_t c = 0; c < in[3]; ++c) {
                const std::size_t i = position(in, Layout::nhwc, n, row, column, c);
                const auto p = static_cast<std::size_t>(((k * in[3] + c) * d.window + r) * d.window + s);
                result.y[o].add(x[i], weight[p]);
                result.dx[i].add(dy[o], weight[p]);
                result.dweight[p].add(dy[o], x[i]);
              }
            }
        }
  return result;
}

/// fp32 sums in any order: each rounding is at most 2^-24 of a partial sum; no case came close to 16 of them.
void expect_close(const std::vector<float>& got, const std::vector<Sum>& want, double offset, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double bound = 1e-6 * (want[i].magnitude + std::abs(offset));
    const double error = std::abs(got[i] - (want[i].value + offset));
    ASSERT_TRUE(error <= bound) << what << ", element " << i << ": expected " << want[i].value + offset << ", found "
                                << got[i];
  }
}

struct Memory {
  explicit Memory(const OpNeeds& needs)
      : workspace(std::max(needs.forward_workspace_bytes, needs.backward_workspace_bytes) / 4),
        saved(needs.saved_bytes / 4) {}
  OpMemory op() { return {workspace.data(), saved.data()}; }
  Buffer workspace, saved;
};

Conv2dDescription describe(const Shape& x, std::int64_t out_channels, int window, int stride, int padding) {
  Conv2dDescription d;
  d.x = x;
  d.out_channels = out_channels;
  d.window = window;
  d.stride = stride;
  d.padding = padding;
  return d;
}

const std::vector<Conv2dDescription>& cases() {
  static const std::vector<Conv2dDescription> all{
      describe({2, 9, 7, 32}, 48, 3, 1, 1),    // odd sizes
      describe({3, 10, 11, 16}, 32, 3, 2, 1),  // stride 2, a last row that no window covers
      describe({2, 8, 8, 32}, 64, 1, 2, 0),    // a shortcut
      describe({2, 5, 5, 64}, 32, 1, 1, 0),    // 1x1
      describe({1, 20, 17, 3}, 64, 7, 2, 3),   // ImageNet's stem, batch 1
      describe({2, 8, 8, 3}, 64, 3, 1, 1),     // CIFAR's stem
      describe({1, 1, 1, 16}, 16, 3, 1, 1),    // a window larger than the image
      describe({2, 6, 5, 5}, 7, 3, 1, 1),      // channels that fill no vector
      describe({2, 6, 5, 19}, 32, 3, 1, 1),    // x has no block layout
      describe({1, 7, 7, 33}, 10, 7, 1, 3),    // a large window
      describe({2, 4, 4, 256}, 512, 1, 2, 0),  // weights that oneDNN pads
  };
  return all;
}

using Layouts = std::pair<Layout, Layout>;

class Conv2dLayouts : public ::testing::TestWithParam<Layouts> {};

void run_case(Conv2dDescription d, const CpuContext& context, Algorithms* algorithms = nullptr) {
  SCOPED_TRACE(d.x.text() + " to " + d.y().text());
  const Shape in = d.x, out = d.y();
  const auto n_in = static_cast<std::size_t>(in.n_elements()), n_out = static_cast<std::size_t>(out.n_elements());
  const auto n_weight = static_cast<std::size_t>(d.out_channels * in[3] * d.window * d.window);
  const auto x = random_values(n_in, 1), weight = random_values(n_weight, 2), dy = random_values(n_out, 3);
  const Naive want = naive(d, x, weight, dy);

  auto conv = make_conv2d(d, {.threads = context.threads, .algorithms = algorithms});
  SCOPED_TRACE(conv->describe());
  EXPECT_EQ(conv->describe().find("ref:"), std::string::npos) << "a reference implementation of oneDNN was chosen";
  const auto layout = conv->weight_layout();
  Memory memory(conv->needs());
  NoStream stream;
  Buffer x_memory(relayout(in, x, Layout::nhwc, d.x_layout)), dy_memory(relayout(out, dy, Layout::nhwc, d.y_layout));
  Buffer y_memory(n_out), parameter(layout->n_elements());
  layout->pack(weight, parameter.data());

  Conv2d::Forward forward;
  forward.x = x_memory.data();
  forward.weight = parameter.data();
  forward.y = y_memory.data();
  conv->forward(forward, memory.op(), stream);
  expect_close(relayout(out, y_memory.values(), d.y_layout, Layout::nhwc), want.y, 0, "y");

  for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip}) {
    const double before = mode == GradientMode::overwrite ? 0.0 : 0.5;
    Buffer dx_memory(std::vector<float>(n_in, before == 0 ? kNan : 0.5f)), dparameter(layout->n_elements());
    if (before != 0) layout->pack(std::vector<float>(n_weight, 0.5f), dparameter.data());
    const std::vector<float> dparameter_before = dparameter.values();
    Conv2d::Backward backward;
    backward.dy = dy_memory.data();
    backward.x = x_memory.data();
    backward.weight = parameter.data();
    backward.dweight = dparameter.data();
    backward.dx = dx_memory.data();
    backward.dweight_mode = backward.dx_mode = mode;
    conv->backward(backward, memory.op(), stream);
    if (mode == GradientMode::skip) {
      EXPECT_EQ(dparameter.values(), dparameter_before);
      EXPECT_EQ(dx_memory.values(), std::vector<float>(n_in, 0.5f));
      continue;
    }
    std::vector<float> dweight(n_weight);
    layout->unpack(dparameter.data(), dweight);
    expect_close(dweight, want.dweight, before, "dweight");
    if (d.input_gradient)
      expect_close(relayout(in, dx_memory.values(), d.x_layout, Layout::nhwc), want.dx, before, "dx");

    // The gradient of padding is zero: packing the canonical form must reproduce all elements.
    Buffer packed_again(layout->n_elements());
    layout->pack(dweight, packed_again.data());
    EXPECT_EQ(dparameter.values(), packed_again.values());
  }
}

TEST_P(Conv2dLayouts, MatchLoopsInDouble) {
  const auto [x_layout, y_layout] = GetParam();
  int n_run = 0;
  for (Conv2dDescription d : cases()) {
    d.x_layout = x_layout;
    d.y_layout = y_layout;
    if (x_layout == Layout::nchw16c && d.x[3] % 16 != 0) continue;
    if (y_layout == Layout::nchw16c && d.out_channels % 16 != 0) continue;
    run_case(d, CpuContext{1 + n_run % 2});
    if (d.x[3] == 3) {
      d.input_gradient = false;  // a stem, for which other kernels are chosen
      run_case(d, CpuContext{1 + n_run % 2});
    }
    ++n_run;
  }
  EXPECT_GE(n_run, 6);
}

INSTANTIATE_TEST_SUITE_P(Pairs, Conv2dLayouts,
                         ::testing::Values(Layouts{Layout::nhwc, Layout::nhwc},
                                           Layouts{Layout::nchw16c, Layout::nchw16c},
                                           Layouts{Layout::nhwc, Layout::nchw16c},
                                           Layouts{Layout::nchw16c, Layout::nhwc}));

/// Remembers `algorithm` for every choice of this convolution.
Algorithms remembered(const std::string& algorithm, const Conv2dDescription& d, const CpuContext& context) {
  Algorithms timed;  // collects the keys
  timed.time_unknown();
  (void)make_conv2d(d, {.threads = context.threads, .algorithms = &timed});
  Algorithms::Choices choices = timed.choices();
  for (auto& [key, chosen] : choices) chosen = algorithm;
  return Algorithms(choices);
}

TEST(Conv2dByMatmul, MatchesLoopsInDouble) {
  std::vector<Conv2dDescription> all = cases();
  all.push_back(describe({3, 17, 13, 40}, 48, 3, 1, 1));  // several chunks of rows, the last one shorter
  all.push_back(describe({3, 27, 23, 24}, 40, 3, 2, 1));  // the same in planes
  all.push_back(describe({2, 9, 10, 8}, 24, 2, 3, 0));    // pixels under no window
  all.push_back(describe({2, 9, 8, 16}, 20, 2, 1, 1));    // an even window
  all.push_back(describe({5, 6, 6, 128}, 160, 3, 1, 1));  // the weights' gradient tap by tap
  all.push_back(describe({2, 14, 14, 16}, 32, 3, 1, 2));  // y larger than x
  for (Conv2dDescription d : all)
    for (const int threads : {1, 2}) {
      Algorithms algorithms = remembered("matmul", d, CpuContext{threads});
      const std::string chosen = make_conv2d(d, {.threads = threads, .algorithms = &algorithms})->describe();
      for (const char* direction : {"forward", "data gradient", "weight gradient"})
        EXPECT_NE(chosen.find(direction + std::string(" matmul")), std::string::npos) << chosen;
      run_case(d, CpuContext{threads}, &algorithms);
    }
}

TEST(Conv2dByMatmul, AcceptsWeightsInAnyLayout) {
  using dnnl::memory;
  Conv2dDescription d = describe({2, 6, 5, 19}, 24, 3, 2, 1);
  const memory::dims sizes{d.out_channels, d.x[3], d.window, d.window};
  const memory::desc canonical(sizes, memory::data_type::f32, memory::format_tag::oihw);
  for (const auto tag : {memory::format_tag::oihw, memory::format_tag::hwio, memory::format_tag::OIhw16i16o}) {
    d.weight_layout =
        std::make_shared<OnednnLayout>(canonical, memory::desc(sizes, memory::data_type::f32, tag));  // the last padded
    Algorithms algorithms = remembered("matmul", d, CpuContext{1});
    run_case(d, CpuContext{1}, &algorithms);
  }
}

TEST(Conv2dByMatmul, KeepsItsWorkspaceSmall) {
  const CpuContext context{1};
  Conv2dDescription d = describe({32, 56, 56, 64}, 64, 3, 1, 1);  // 231 MB of windows
  d.weight_layout = make_matmul_convolution(d, Direction::forward, context)->weight_layout();
  for (const Direction direction : {Direction::forward, Direction::data_gradient, Direction::weight_gradient})
    EXPECT_LT(make_matmul_convolution(d, direction, context)->workspace_bytes(), std::size_t{4} << 20)
        << name(direction);
}

TEST(WeightGradientOfSmallImages, MatchesLoopsInDoubleOnEachInstructionSet) {
  for (const Conv2dDescription& shape : {describe({5, 4, 4, 32}, 48, 3, 1, 1), describe({11, 8, 8, 16}, 32, 3, 2, 1),
                                         describe({2, 8, 8, 32}, 16, 3, 1, 1), describe({3, 2, 5, 16}, 64, 5, 1, 2),
                                         describe({1, 9, 3, 16}, 16, 7, 2, 3), describe({2, 6, 6, 16}, 32, 3, 1, 0)})
    for (const Isa limit : {Isa::baseline, Isa::avx2, Isa::avx512})
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(shape.x.text() + " on " + std::to_string(static_cast<int>(limit)));
        Conv2dDescription d = shape;
        d.x_layout = d.y_layout = Layout::nchw16c;
        using dnnl::memory;
        const memory::dims sizes{d.out_channels, d.x[3], d.window, d.window};
        d.weight_layout =
            std::make_shared<OnednnLayout>(memory::desc(sizes, memory::data_type::f32, memory::format_tag::oihw),
                                           memory::desc(sizes, memory::data_type::f32, memory::format_tag::OIhw16i16o));
        ASSERT_TRUE(weight_gradient_fits(d, Direction::weight_gradient));
        ASSERT_TRUE(weight_gradient_pays(d));
        const auto op = make_weight_gradient(d, Direction::weight_gradient, CpuContext{2});
        const auto n_x = static_cast<std::size_t>(d.x.n_elements()), n_y = static_cast<std::size_t>(d.y().n_elements());
        const auto n_weight = static_cast<std::size_t>(d.out_channels * d.x[3] * d.window * d.window);
        const auto x = random_values(n_x, 1), dy = random_values(n_y, 3);
        const Naive want = naive(d, x, std::vector<float>(n_weight), dy);
        Buffer x_memory(relayout(d.x, x, Layout::nhwc, d.x_layout));
        Buffer dy_memory(relayout(d.y(), dy, Layout::nhwc, d.y_layout));
        Buffer dweight(n_weight), workspace(op->workspace_bytes() / 4);
        if (accumulate) dweight.fill(0.5f);
        limit_isa(limit);
        op->weight_gradient(x_memory.data(), dy_memory.data(), dweight.data(), accumulate, workspace.data());
        limit_isa(Isa::avx512);
        std::vector<float> canonical(n_weight);  // from (K/16, C/16, R, S, 16 c, 16 k)
        const std::int64_t taps = d.window * d.window, channels = d.x[3];
        for (std::int64_t k = 0; k < d.out_channels; ++k)
          for (std::int64_t c = 0; c < channels; ++c)
            for (std::int64_t tap = 0; tap < taps; ++tap)
              canonical[static_cast<std::size_t>((k * channels + c) * taps + tap)] =
                  dweight.data()[static_cast<std::size_t>((((k / 16) * (channels / 16) + c / 16) * taps + tap) * 256 +
                                                          c % 16 * 16 + k % 16)];
        expect_close(canonical, want.dweight, accumulate ? 0.5 : 0.0, "dweight");
      }
}

TEST(Conv2dWeights, SurvivePackingAndUnpacking) {
  for (Conv2dDescription d : cases()) {
    const auto n = static_cast<std::size_t>(d.out_channels * d.x[3] * d.window * d.window);
    const auto weight = random_values(n, 4);
    const auto layout = make_conv2d(d, CpuContext{1})->weight_layout();
    ASSERT_GE(layout->n_elements(), n);
    Buffer parameter(layout->n_elements());
    layout->pack(weight, parameter.data());
    std::vector<float> back(n, kNan);
    layout->unpack(parameter.data(), back);
    EXPECT_EQ(weight, back) << d.x.text() << " " << layout->describe();
    EXPECT_THROW(layout->pack(std::vector<float>(n + 1), parameter.data()), Error);
  }
}

TEST(Conv2dWeights, AreSharedWithAnOpOfAnotherBatch) {
  Conv2dDescription d = describe({4, 8, 8, 32}, 48, 3, 1, 1);
  d.x_layout = d.y_layout = Layout::nchw16c;
  const auto training = make_conv2d(d, CpuContext{1});
  d.x = {1, 8, 8, 32};
  d.inference = true;
  d.x_layout = d.y_layout = Layout::nhwc;
  d.weight_layout = training->weight_layout();
  const auto inference = make_conv2d(d, CpuContext{1});
  EXPECT_EQ(inference->weight_layout(), training->weight_layout());
  EXPECT_EQ(inference->needs().backward_workspace_bytes, 0u);

  const auto x = random_values(8 * 8 * 32, 5), weight = random_values(48 * 32 * 9, 6);
  const Naive want = naive(d, x, weight, std::vector<float>(8 * 8 * 48));
  Buffer x_memory(x), y_memory(8 * 8 * 48), parameter(training->weight_layout()->n_elements());
  training->weight_layout()->pack(weight, parameter.data());
  Memory memory(inference->needs());
  NoStream stream;
  Conv2d::Forward forward;
  forward.x = x_memory.data();
  forward.weight = parameter.data();
  forward.y = y_memory.data();
  inference->forward(forward, memory.op(), stream);
  expect_close(y_memory.values(), want.y, 0, "y");
  EXPECT_THROW(inference->backward({}, memory.op(), stream), Error);
}

/// One step with a normalised input and statistics; returns its outputs, and what it allocated once warm.
struct Step {
  std::vector<float> y, dz, dparameter;
  std::vector<double> statistics, sums;
  HeapCount heap;
};

Step normalised_step(const CpuOptions& options, const CpuContext& context, bool store, Layout layout,
                     const std::string& algorithm = "") {
  Conv2dDescription d = describe({4, 32, 32, 64}, 64, 3, 1, 1);
  d.x_layout = d.y_layout = layout;
  d.statistics = true;
  d.normalization = InputNormalization{.residual = InputNormalization::Residual::plain, .relu = true, .store = store};
  Algorithms algorithms = algorithm.empty() ? Algorithms() : remembered(algorithm, d, context);
  auto conv = make_conv2d(
      d, {.threads = context.threads, .options = options, .algorithms = algorithm.empty() ? nullptr : &algorithms});
  const auto n = static_cast<std::size_t>(d.x.n_elements());
  Memory memory(conv->needs());
  EXPECT_EQ(conv->needs().saved_bytes, store || options.recompute_normalized ? 0u : n * 4);
  NoStream stream;
  Buffer x(random_values(n, 1)), residual(random_values(n, 2)), scale_bias(random_values(128, 3)), z(n), y(n);
  Buffer dy(random_values(n, 4)), added(random_values(n, 5)), dz(n), mean_inverse_stddev(random_values(128, 6));
  Buffer parameter(conv->weight_layout()->n_elements()), dparameter(conv->weight_layout()->n_elements());
  conv->weight_layout()->pack(random_values(64 * 64 * 9, 7), parameter.data());
  Step step;
  step.statistics.resize(128);
  step.sums.resize(128);

  Conv2d::Forward forward;
  forward.x = x.data();
  forward.weight = parameter.data();
  forward.y = y.data();
  forward.statistics = step.statistics.data();
  forward.normalization = {.scale_bias = scale_bias.data(),
                           .residual = residual.data(),
                           .residual_scale_bias = nullptr,
                           .z = store ? z.data() : nullptr};
  Conv2d::Backward backward;
  backward.dy = dy.data();
  backward.x = x.data();
  backward.weight = parameter.data();
  backward.dweight = dparameter.data();
  backward.normalization = forward.normalization;
  backward.gradient.mean_inverse_stddev = mean_inverse_stddev.data();
  backward.gradient.added = added.data();
  backward.gradient.dz = dz.data();
  backward.gradient.sums = step.sums.data();

  for (int i = 0; i < 3; ++i) {
    const HeapWatch watch;
    conv->forward(forward, memory.op(), stream);
    if (!options.recompute_normalized) memory.workspace.fill(kNan);
    conv->backward(backward, memory.op(), stream);
    step.heap = watch.count();
    // The last run writes dz over the gradient that is added.
    if (i == 1) {
      step.dz = dz.values();
      backward.gradient.dz = added.data();
    }
  }
  EXPECT_EQ(step.dz, added.values());
  step.y = y.values();
  step.dparameter = dparameter.values();
  return step;
}

TEST(Conv2dNormalisedInput, ProducesTheSameBitsWhereverItIsStored) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw16c}) {
    const Step saved = normalised_step({}, CpuContext{1}, false, layout);
    for (const double v : saved.sums) ASSERT_TRUE(std::isfinite(v));
    for (const float v : saved.dparameter) ASSERT_TRUE(std::isfinite(v));
    for (const Step& other : {normalised_step({.recompute_normalized = true}, CpuContext{1}, false, layout),
                              normalised_step({}, CpuContext{1}, true, layout)}) {
      EXPECT_EQ(saved.y, other.y);
      EXPECT_EQ(saved.dz, other.dz);
      EXPECT_EQ(saved.dparameter, other.dparameter);
      EXPECT_EQ(saved.statistics, other.statistics);
      EXPECT_EQ(saved.sums, other.sums);
    }
  }
}

TEST(Conv2dHeap, StepsAllocateAlmostNothing) {
  if (!heap_is_counted()) GTEST_SKIP() << "a sanitizer owns the heap";
  for (const int threads : {1, 2})
    for (const auto& [layout, algorithm] :
         {std::pair(Layout::nhwc, ""), std::pair(Layout::nchw16c, ""), std::pair(Layout::nhwc, "matmul")})
      for (const bool recompute : {false, true}) {
        const Step step =
            normalised_step({.recompute_normalized = recompute}, CpuContext{threads}, false, layout, algorithm);
        // oneDNN's lists of arguments; a tensor of this step has 1 MiB.
        RecordProperty("largest_bytes", static_cast<int>(step.heap.largest_bytes));
        RecordProperty("n_allocations", static_cast<int>(step.heap.n_allocations));
        EXPECT_LE(step.heap.largest_bytes, 512u);
        EXPECT_EQ(step.heap.held_bytes, 0);
      }
}

TEST(Conv2dDescriptions, ThatAreImpossibleAreRejected) {
  const auto refused = [](const Conv2dDescription& d, const std::string& why) {
    try {
      make_conv2d(d, CpuContext{1});
      ADD_FAILURE() << "planned: " << why;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused(describe({2, 2, 2, 16}, 16, 7, 1, 0), "needs images of at least 7 pixels, found 2 x 2");
  refused(describe({0, 8, 8, 16}, 16, 3, 1, 1), "x must be (N, H, W, C)");
  refused(describe({2, 8, 8, 16}, 16, 3, 0, 1), "stride must be positive");
  Conv2dDescription d = describe({2, 8, 8, 3}, 16, 3, 1, 1);
  d.x_layout = Layout::nchw16c;
  refused(d, "a multiple of 16 channels, found 3");
  d = describe({2, 8, 8, 16}, 20, 3, 1, 1);
  d.y_layout = Layout::nchw16c;
  refused(d, "a multiple of 16 channels, found 20");
  d = describe({2, 8, 8, 16}, 16, 3, 1, 1);
  d.dtype = DType::fp16;
  refused(d, "computes in fp32 or bf16, fp16 was asked for");
  d = describe({2, 8, 8, 16}, 16, 3, 1, 1);
  d.weight_layout = make_conv2d(describe({2, 8, 8, 16}, 16, 1, 1, 0), CpuContext{1})->weight_layout();
  refused(d,
          "weight_layout is for a parameter of sizes (16, 16, 1, 1), but the op's weights have sizes (16, 16, 3, 3)");
}

}  // namespace
}  // namespace lockstep::cpu
