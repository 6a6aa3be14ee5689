// The cpu backend's convolution in each pair of layouts and each gradient mode, compared with loops in double; also
// computed with matmuls, and the weight gradient of small images. conv2d_test.cpp tests normalisations and statistics.
#include "kernels/cpu/base/blocked_layout.h"
#include "kernels/cpu/base/simd.h"
#include "kernels/cpu/conv2d_bare.h"
#include "test/kernels/conv2d_loops.h"

namespace lockstep::cpu::conv2d_loops {
namespace {

using Layouts = std::pair<Layout, Layout>;

class Conv2dLayouts : public ::testing::TestWithParam<Layouts> {};

void run_case(Conv2dDescription d, const CpuContext& context, Algorithms* algorithms = nullptr) {
  SCOPED_TRACE(d.x.text() + " to " + d.y().text());
  const Shape in = d.x, out = d.y();
  const auto n_in = static_cast<std::size_t>(in.n_elements()), n_out = static_cast<std::size_t>(out.n_elements());
  const auto n_weight = static_cast<std::size_t>(d.out_channels * in[3] * d.kernel_size * d.kernel_size);
  const auto x = random_values(n_in, 1), weight = random_values(n_weight, 2), dy = random_values(n_out, 3);
  const Naive expected = naive(d, x, weight, dy);

  auto conv = make_conv2d(d, {.threads = context.threads, .algorithms = algorithms});
  SCOPED_TRACE(conv->describe());
  // oneDNN has fast implementations of blocked layouts for AVX-512 only.
  if (cpu::isa() == cpu::Isa::avx512 || (d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc)) {
    EXPECT_EQ(conv->describe().find("ref:"), std::string::npos) << "a reference implementation of oneDNN was chosen";
  }
  const auto layout = conv->weight_layout();
  Memory memory(conv->memory_requirements());
  NoStream stream;
  Buffer x_memory(relayout(in, x, Layout::nhwc, d.x_layout)), dy_memory(relayout(out, dy, Layout::nhwc, d.y_layout));
  Buffer y_memory(n_out), parameter(layout->n_elements());
  layout->pack(weight, parameter.data());

  Conv2d::Forward forward;
  forward.x = x_memory.data();
  forward.weight = parameter.data();
  forward.y = y_memory.data();
  conv->forward(forward, memory.op(), stream);
  expect_close(relayout(out, y_memory.values(), d.y_layout, Layout::nhwc), expected.y, 0, "y");

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
    expect_close(dweight, expected.dweight, before, "dweight");
    if (d.input_gradient)
      expect_close(relayout(in, dx_memory.values(), d.x_layout, Layout::nhwc), expected.dx, before, "dx");

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

TEST(Conv2dByMatmul, MatchesLoopsInDouble) {
  std::vector<Conv2dDescription> all = cases();
  all.push_back(describe({3, 17, 13, 40}, 48, 3, 1, 1));  // several chunks of rows; the last is shorter
  all.push_back(describe({3, 27, 23, 24}, 40, 3, 2, 1));  // the same in planes
  all.push_back(describe({2, 9, 10, 8}, 24, 2, 3, 0));    // pixels that no window covers
  all.push_back(describe({2, 9, 8, 16}, 20, 2, 1, 1));    // a window of even size
  all.push_back(describe({5, 6, 6, 128}, 160, 3, 1, 1));  // the weight gradient tap by tap
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
  Conv2dDescription d = describe({2, 6, 5, 19}, 24, 3, 2, 1);
  for (const char* notation : {"abcd", "cdba", "ABcd16b16a"}) {  // the last is padded
    d.weight_layout =
        std::make_shared<BlockedLayout>(Sizes{d.out_channels, d.x[3], d.kernel_size, d.kernel_size}, notation);
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
        d.weight_layout =
            std::make_shared<BlockedLayout>(Sizes{d.out_channels, d.x[3], d.kernel_size, d.kernel_size}, "ABcd16b16a");
        ASSERT_TRUE(weight_gradient_fits(d, Direction::weight_gradient));
        ASSERT_TRUE(weight_gradient_pays(d));
        const auto op = make_weight_gradient(d, Direction::weight_gradient, CpuContext{2});
        const auto n_x = static_cast<std::size_t>(d.x.n_elements()), n_y = static_cast<std::size_t>(d.y().n_elements());
        const auto n_weight = static_cast<std::size_t>(d.out_channels * d.x[3] * d.kernel_size * d.kernel_size);
        const auto x = random_values(n_x, 1), dy = random_values(n_y, 3);
        const Naive expected = naive(d, x, std::vector<float>(n_weight), dy);
        Buffer x_memory(relayout(d.x, x, Layout::nhwc, d.x_layout));
        Buffer dy_memory(relayout(d.y(), dy, Layout::nhwc, d.y_layout));
        Buffer dweight(n_weight), workspace(op->workspace_bytes() / 4);
        if (accumulate) dweight.fill(0.5f);
        limit_isa(limit);
        op->weight_gradient(x_memory.data(), dy_memory.data(), dweight.data(), accumulate, workspace.data());
        limit_isa(Isa::avx512);
        std::vector<float> canonical(n_weight);  // from (K/16, C/16, R, S, 16 c, 16 k)
        const std::int64_t taps = d.kernel_size * d.kernel_size, channels = d.x[3];
        for (std::int64_t k = 0; k < d.out_channels; ++k)
          for (std::int64_t c = 0; c < channels; ++c)
            for (std::int64_t tap = 0; tap < taps; ++tap)
              canonical[static_cast<std::size_t>((k * channels + c) * taps + tap)] =
                  dweight.data()[static_cast<std::size_t>((((k / 16) * (channels / 16) + c / 16) * taps + tap) * 256 +
                                                          c % 16 * 16 + k % 16)];
        expect_close(canonical, expected.dweight, accumulate ? 0.5 : 0.0, "dweight");
      }
}

}  // namespace
}  // namespace lockstep::cpu::conv2d_loops
