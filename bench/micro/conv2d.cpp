// The convolutions of ResNet-18 at 32x32 and some of ResNet-50's, batch 32: the convolution alone, in each direction,
// and the unit as in the network (a pending normalisation with ReLU of its input, statistics of its output).
#include "lockstep/ops/conv2d.h"
#include "bench/micro/support.h"

namespace lockstep::bench {
namespace {

struct Case {
  std::int64_t size, channels, out_channels;
  int kernel_size, stride;
};
constexpr Case kCases[] = {{32, 3, 64, 3, 1},    {32, 64, 64, 3, 1},   {32, 64, 128, 3, 2}, {32, 64, 128, 1, 2},
                           {16, 128, 128, 3, 1}, {16, 128, 256, 3, 2}, {8, 256, 256, 3, 1}, {8, 256, 512, 3, 2},
                           {4, 512, 512, 3, 1},  {64, 3, 64, 7, 2},    {16, 64, 256, 1, 1}, {16, 256, 64, 1, 1},
                           {4, 1024, 256, 1, 1}};

PlannedBoth<Conv2dDescription> plan(const Case& c, bool in_network) {
  Conv2dDescription d;
  d.x = {kBatch, c.size, c.size, c.channels};
  d.out_channels = c.out_channels;
  d.kernel_size = c.kernel_size;
  d.stride = c.stride;
  d.padding = c.kernel_size / 2;
  d.dtype = dtype();
  d.x_layout = activation_layout(d.x);
  d.y_layout = activation_layout(d.y());
  d.statistics = in_network;
  d.input_gradient = c.channels > 3;
  if (in_network && c.channels > 3) d.normalization = InputNormalization{};
  PlannedBoth p(d);
  Arguments& arguments = p.arguments;
  Conv2d::Forward& forward = p.forward;
  Conv2d::Backward& backward = p.backward;
  const std::int64_t n_x = d.x.n_elements(), n_y = d.y().n_elements();
  const auto n_weight = static_cast<std::int64_t>(p.op->weight_layout()->n_elements());
  forward.x = backward.x = arguments.tensor(n_x);
  forward.weight = backward.weight = arguments.tensor(n_weight);
  forward.y = arguments.tensor(n_y);
  forward.statistics = arguments.make<double>(2 * c.out_channels);
  backward.dy = arguments.tensor(n_y);
  backward.dweight = arguments.make(n_weight);
  if (d.normalization) {
    forward.normalization.scale_bias = arguments.make(2 * c.channels);
    forward.normalization.low_precision_scale_bias = arguments.tensor(2 * c.channels);
    backward.normalization = forward.normalization;
    backward.gradient.gamma = arguments.make(c.channels);
    backward.gradient.beta = arguments.make(c.channels);
    backward.gradient.mean_inverse_stddev = arguments.make(2 * c.channels);
    backward.gradient.dz = arguments.tensor(n_x);
    backward.gradient.sums = arguments.make<double>(2 * c.channels);
  } else if (d.input_gradient) {
    backward.dx = arguments.tensor(n_x);
  }
  p.flops = 2.0 * static_cast<double>(n_y * c.channels * c.kernel_size * c.kernel_size);
  p.bytes = element_bytes() * static_cast<double>(n_x + n_y) + kFloatBytes * static_cast<double>(n_weight);
  return p;
}

void register_case(const Case& c, bool in_network) {
  const std::string name = std::string(in_network ? "unit" : "conv") + "/" + std::to_string(c.size) + "x" +
                           std::to_string(c.size) + "x" + std::to_string(c.channels) + "-" +
                           std::to_string(c.out_channels) + "_" + std::to_string(c.kernel_size) + "x" +
                           std::to_string(c.kernel_size) + (c.stride > 1 ? "/2" : "");
  const auto planned = [=] { return plan(c, in_network); };
  add_forward(name, planned);
  const auto add_direction = [&](const char* direction, GradientMode dx, GradientMode dweight) {
    const int n_directions = (c.channels > 3 && dx != GradientMode::skip) + (dweight != GradientMode::skip);
    add_backward(name + direction, planned, n_directions, n_directions, [=](Conv2d::Backward& args) {
      args.dx_mode = dx;
      args.dweight_mode = dweight;
    });
  };
  if (in_network) return add_direction("/backward", GradientMode::overwrite, GradientMode::overwrite);
  if (c.channels > 3) add_direction("/data_gradient", GradientMode::overwrite, GradientMode::skip);
  add_direction("/weight_gradient", GradientMode::skip, GradientMode::overwrite);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  for (const bool in_network : {false, true})
    for (const auto& c : lockstep::bench::kCases) lockstep::bench::register_case(c, in_network);
  return lockstep::bench::run_all(argc, argv);
}
