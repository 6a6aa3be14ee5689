// The ops that move memory: batch norm, pooling, loss, image input, optimizers, norms, hash; and the last layer's
// matmul. Sizes are ResNet-18's at 32x32, batch 32.
#include "bench/micro/support.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t kParameters = 11'173'962;  // of ResNet-18 with 10 classes
constexpr double kFloat = 4;                      // bytes

std::string text(const Shape& s) {
  return std::to_string(s[1]) + "x" + std::to_string(s[2]) + "x" + std::to_string(s[3]);
}

void add_batch_norm(const Shape& shape) {
  add("batch_norm/" + text(shape) + "/backward", [shape](benchmark::State& state) {
    Arguments arguments;
    const auto n_rows = static_cast<double>(shape[0] * shape[1] * shape[2]);
    const auto op = backend().batch_norm({.x = shape, .layout = backend().activation_layout(shape), .n_rows = n_rows});
    const OpMemory memory = arguments.memory_of(*op);
    const auto stream = backend().make_stream();
    const std::int64_t n = shape.n_elements(), channels = shape[3];
    const double* sums = arguments.make<double>(2 * channels);
    const BatchNorm::Backward args{.sums = sums,
                                   .local_sums = sums,
                                   .dz = arguments.make(n),
                                   .x = arguments.make(n),
                                   .gamma = arguments.make(channels),
                                   .mean_inverse_stddev = arguments.make(2 * channels),
                                   .dx = arguments.make(n),
                                   .dgamma = arguments.make(channels),
                                   .dbeta = arguments.make(channels)};
    measure(
        state, [&] { op->backward(args, memory, *stream); }, 0, 3 * kFloat * static_cast<double>(n));
  });
}

void add_pool(const std::string& name, Pool2dDescription d) {
  d.x_layout = backend().activation_layout(d.x);
  d.y_layout = d.window == 0 ? Layout::nhwc : backend().activation_layout(d.y());
  struct Planned {
    explicit Planned(const Pool2dDescription& d) : op(backend().pool2d(d)), memory(arguments.memory_of(*op)) {
      forward = {.x = arguments.make(d.x.n_elements()), .y = arguments.make(d.y().n_elements()), .normalization = {}};
      backward = {.dy = arguments.make(d.y().n_elements()),
                  .x = forward.x,
                  .dx = arguments.make(d.x.n_elements()),
                  .normalization = {},
                  .gradient = {}};
      bytes = kFloat * static_cast<double>(d.x.n_elements() + d.y().n_elements());
    }
    Arguments arguments;
    std::unique_ptr<Pool2d> op;
    OpMemory memory;
    Pool2d::Forward forward;
    Pool2d::Backward backward;
    double bytes = 0;
  };
  add(name + "/" + text(d.x) + "/forward", [d](benchmark::State& state) {
    Planned planned(d);
    const auto stream = backend().make_stream();
    measure(
        state, [&] { planned.op->forward(planned.forward, planned.memory, *stream); }, 0, planned.bytes);
  });
  add(name + "/" + text(d.x) + "/backward", [d](benchmark::State& state) {
    Planned planned(d);
    const auto stream = backend().make_stream();
    planned.op->forward(planned.forward, planned.memory, *stream);
    measure(
        state, [&] { planned.op->backward(planned.backward, planned.memory, *stream); }, 0, planned.bytes);
  });
}

void loss(benchmark::State& state) {
  constexpr std::int64_t kClasses = 1000;
  Arguments arguments;
  const auto op = backend().softmax_cross_entropy({.rows = kBatch, .classes = kClasses, .label_smoothing = 0.1f});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  const float* logits = arguments.make(kBatch * kClasses);
  const auto* labels = arguments.make<std::int32_t>(kBatch);
  auto* scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
  *scalars = {.loss_weight = 1.0f / kBatch};
  auto* sums = static_cast<LossSums*>(arguments.bytes(sizeof(LossSums)));
  float* dlogits = arguments.make(kBatch * kClasses);
  measure(
      state,
      [&] {
        op->forward({.logits = logits, .labels = labels, .sums = sums}, memory, *stream);
        op->backward({.logits = logits, .labels = labels, .scalars = scalars, .dlogits = dlogits}, memory, *stream);
      },
      0, 3 * kFloat * kBatch * kClasses);
}

void image_input(benchmark::State& state) {
  Arguments arguments;
  const Shape shape{kBatch, 32, 32, 3};
  const auto op = backend().image_input({.x = shape,
                                         .mean = {0.5f, 0.5f, 0.5f},
                                         .stddev = {0.2f, 0.2f, 0.2f},
                                         .crop_padding = 4,
                                         .flip = true,
                                         .seed = 1});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  auto* ids = arguments.make<std::uint32_t>(kBatch);
  for (std::int64_t i = 0; i < kBatch; ++i) ids[i] = static_cast<std::uint32_t>(i);
  auto* scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
  *scalars = {};
  const ImageInput::Forward args{.images = arguments.make<std::uint8_t>(shape.n_elements()),
                                 .sample_ids = ids,
                                 .scalars = scalars,
                                 .y = arguments.make(shape.n_elements())};
  measure(
      state, [&] { op->forward(args, memory, *stream); }, 0, (1 + kFloat) * static_cast<double>(shape.n_elements()));
}

void optimizer(benchmark::State& state, OptimizerDescription d) {
  Arguments arguments;
  d.segments = {{.begin = 0, .n_elements = kParameters}};
  d.n_elements = kParameters;
  d.weight_decay = 5e-4f;
  const auto op = backend().optimizer(d);
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  auto* scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
  *scalars = {.learning_rate = 1e-6f};
  const Optimizer::Apply args{.parameters = arguments.make(kParameters),
                              .gradients = arguments.make(kParameters),
                              .state = static_cast<float*>(arguments.bytes(4 * kParameters * d.n_states())),
                              .scalars = scalars};
  // Parameters and states are read and written, gradients read.
  measure(
      state, [&] { op->apply(args, memory, *stream); }, 0, kFloat * kParameters * (3 + 2 * d.n_states()));
}

void clip_norm(benchmark::State& state) {
  Arguments arguments;
  const auto op = backend().clip_norm({.segments = {{.begin = 0, .n_elements = kParameters}}, .max_norm = 1});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  auto* scalars = static_cast<StepScalars*>(arguments.bytes(sizeof(StepScalars)));
  *scalars = {};
  auto* sums = static_cast<LossSums*>(arguments.bytes(sizeof(LossSums)));
  *sums = {.loss = 1, .samples = 1};
  const ClipNorm::Apply args{
      .gradients = arguments.make(kParameters), .sums = sums, .scalars = scalars, .norm = arguments.make<double>(1)};
  measure(
      state, [&] { op->apply(args, memory, *stream); }, 0, kFloat * kParameters);
}

void hash(benchmark::State& state) {
  Arguments arguments;
  const auto op = backend().hash({.size_bytes = 4 * kParameters});
  const OpMemory memory = arguments.memory_of(*op);
  const auto stream = backend().make_stream();
  const Hash::Apply args{.data = arguments.make(kParameters), .hash = arguments.make<std::uint64_t>(1)};
  measure(
      state, [&] { op->apply(args, memory, *stream); }, 0, kFloat * kParameters);
}

void add_matmul(std::int64_t in, std::int64_t out) {
  const std::string name = "matmul/" + std::to_string(kBatch) + "x" + std::to_string(in) + "-" + std::to_string(out);
  add(name + "/forward_backward", [in, out](benchmark::State& state) {
    Arguments arguments;
    const auto op = backend().matmul({.rows = kBatch, .in_features = in, .out_features = out});
    const OpMemory memory = arguments.memory_of(*op);
    const auto stream = backend().make_stream();
    const auto n_weight = static_cast<std::int64_t>(op->weight_layout()->n_elements());
    const Matmul::Forward forward{.x = arguments.make(kBatch * in),
                                  .weight = arguments.make(n_weight),
                                  .bias = arguments.make(out),
                                  .y = arguments.make(kBatch * out)};
    const Matmul::Backward backward{.dy = arguments.make(kBatch * out),
                                    .x = forward.x,
                                    .weight = forward.weight,
                                    .dx = arguments.make(kBatch * in),
                                    .dweight = arguments.make(n_weight),
                                    .dbias = arguments.make(out)};
    measure(
        state,
        [&] {
          op->forward(forward, memory, *stream);
          op->backward(backward, memory, *stream);
        },
        6.0 * static_cast<double>(kBatch * in * out), 3 * kFloat * static_cast<double>(n_weight));
  });
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;         // NOLINT
  using namespace lockstep::bench;  // NOLINT
  for (const Shape& shape :
       {Shape{kBatch, 32, 32, 64}, Shape{kBatch, 16, 16, 128}, Shape{kBatch, 8, 8, 256}, Shape{kBatch, 4, 4, 512}})
    add_batch_norm(shape);
  add_pool("max_pool", {.kind = Pool2dDescription::Kind::max, .x = {kBatch, 32, 32, 64}});
  add_pool(
      "average_pool",
      {.kind = Pool2dDescription::Kind::average, .x = {kBatch, 4, 4, 512}, .window = 0, .stride = 1, .padding = 0});
  add_matmul(512, 10);
  add_matmul(2048, 1000);
  add("cross_entropy/32x1000/forward_backward", loss);
  add("image_input/32x32x3", image_input);
  add("sgd_momentum/11.2M",
      [](benchmark::State& state) { optimizer(state, {.kind = OptimizerDescription::Kind::sgd, .momentum = 0.9f}); });
  add("adamw/11.2M", [](benchmark::State& state) { optimizer(state, {.kind = OptimizerDescription::Kind::adamw}); });
  add("lars/11.2M",
      [](benchmark::State& state) { optimizer(state, {.kind = OptimizerDescription::Kind::lars, .momentum = 0.9f}); });
  add("clip_norm/11.2M", clip_norm);
  add("hash/11.2M", hash);
  return run_all(argc, argv);
}
