// The loader alone: batches of 32 from a file (argument 1, else the committed sample), shuffled, one reader thread.
// Items a second are samples.
#include "data/loader.h"
#include "bench/micro/support.h"

int main(int argc, char** argv) {
  using namespace lockstep;         // NOLINT
  using namespace lockstep::bench;  // NOLINT
  const bool given = argc > 1 && argv[1][0] != '-';
  const std::string path = given ? argv[1] : "data/samples/cifar10_train.h5";
  if (given) {
    std::rotate(argv + 1, argv + 2, argv + argc);
    --argc;
  }
  add("loader/32x32x3", [path](benchmark::State& state) {
    const std::shared_ptr<const data::ImageSet> set = data::open_image_set(path);
    data::Loader loader(set, {.global_batch = kBatch, .capacity = kBatch, .seed = 1});
    measure(
        state, [&] { benchmark::DoNotOptimize(loader.next().n_samples); }, 0,
        static_cast<double>(kBatch) * static_cast<double>(set->info().image_bytes()));
    state.SetItemsProcessed(state.iterations() * kBatch);
  });
  return run_all(argc, argv);
}
