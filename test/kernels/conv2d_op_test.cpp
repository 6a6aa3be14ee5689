// The cpu backend's convolution as a planned op: the layout of its weights, the three ways to get a normalised input,
// that a step allocates almost nothing, and the messages for impossible descriptions.
#include <utility>

#include "kernels/cpu/base/simd.h"
#include "lockstep/error.h"
#include "test/kernels/conv2d_loops.h"
#include "test/support/heap_count.h"

namespace lockstep::cpu::conv2d_loops {
namespace {

TEST(Conv2dWeights, SurvivePackingAndUnpacking) {
  for (Conv2dDescription d : cases()) {
    const auto n = static_cast<std::size_t>(d.out_channels * d.x[3] * d.kernel_size * d.kernel_size);
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
  EXPECT_EQ(inference->memory_requirements().backward_workspace_bytes, 0u);

  const auto x = random_values(8 * 8 * 32, 5), weight = random_values(48 * 32 * 9, 6);
  const Naive expected = naive(d, x, weight, std::vector<float>(8 * 8 * 48));
  Buffer x_memory(x), y_memory(8 * 8 * 48), parameter(training->weight_layout()->n_elements());
  training->weight_layout()->pack(weight, parameter.data());
  Memory memory(inference->memory_requirements());
  NoStream stream;
  Conv2d::Forward forward;
  forward.x = x_memory.data();
  forward.weight = parameter.data();
  forward.y = y_memory.data();
  inference->forward(forward, memory.op(), stream);
  expect_close(y_memory.values(), expected.y, 0, "y");
  EXPECT_THROW(inference->backward({}, memory.op(), stream), Error);
}

/// One step with a normalised input and statistics: its outputs, and what it allocated after a warm-up.
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
  Memory memory(conv->memory_requirements());
  EXPECT_EQ(conv->memory_requirements().saved_bytes, store || options.recompute_normalized ? 0u : n * 4);
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
    // The last run overwrites the added gradient with dz.
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

/// Without AVX-512, oneDNN computes blocked layouts with its reference implementations.
bool is_slow(Layout layout) { return layout != Layout::nhwc && isa() != Isa::avx512; }

TEST(Conv2dNormalisedInput, ProducesTheSameBitsWhereverItIsStored) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw16c}) {
    if (is_slow(layout)) continue;
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
        if (is_slow(layout)) continue;
        const Step step =
            normalised_step({.recompute_normalized = recompute}, CpuContext{threads}, false, layout, algorithm);
        // Allowed: oneDNN's argument lists and, on AVX2, the buffers of its matrix products. A tensor of this step has
        // 1 MiB.
        RecordProperty("largest_bytes", static_cast<int>(step.heap.largest_bytes));
        RecordProperty("n_allocations", static_cast<int>(step.heap.n_allocations));
        EXPECT_LE(step.heap.largest_bytes, isa() == Isa::avx512 ? 512u : 20'000u);
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
  refused(d, "computes in fp32 or bf16, not in fp16");
  d = describe({2, 8, 8, 16}, 16, 3, 1, 1);
  d.weight_layout = make_conv2d(describe({2, 8, 8, 16}, 16, 1, 1, 0), CpuContext{1})->weight_layout();
  refused(d,
          "weight_layout is for a parameter of sizes (16, 16, 1, 1), but the op's weights have sizes (16, 16, 3, 3)");
}

}  // namespace
}  // namespace lockstep::cpu::conv2d_loops
