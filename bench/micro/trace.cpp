// The cost of a span of RUN/trace.json: two readings of the clock and a copy into a ring buffer that is overwritten
// repeatedly.
#include "lockstep/trace.h"

#include "bench/micro/support.h"

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT
  bench::add("span/off", [](benchmark::State& state) {
    for (auto _ : state) const trace::Span span(trace::Kind::forward, "layer4.1.conv2");
  })->Unit(benchmark::kNanosecond);
  bench::add("span/on", [](benchmark::State& state) {
    if (!trace::is_on) trace::start(65536);
    for (auto _ : state) const trace::Span span(trace::Kind::forward, "layer4.1.conv2");
  })->Unit(benchmark::kNanosecond);
  return bench::run_all(argc, argv);
}
