// Encoding with one thread: tokenizer TOKENIZER FILE. `text` encodes the whole file at once, `lines` line by line.
// Times are processor time. bench/macro/tokenizer.py compares them with Hugging Face's library.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "text/tokenizer.h"

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT
  benchmark::Initialize(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenizer TOKENIZER FILE [--benchmark_...]\n");
    return kExitUsage;
  }
  const text::Tokenizer tokenizer = text::Tokenizer::open(argv[1]);
  const std::string content = read_file(argv[2]);
  std::vector<std::string_view> lines;
  for (std::string_view rest = content; !rest.empty();) {
    const std::size_t n = std::min(rest.find('\n'), rest.size());
    lines.push_back(rest.substr(0, n));
    rest.remove_prefix(std::min(n + 1, rest.size()));
  }
  const auto measure = [&](const char* name, const std::vector<std::string_view>& texts) {
    benchmark::RegisterBenchmark(name, [&](benchmark::State& state) {
      std::vector<std::int32_t> ids;
      for (auto _ : state) {
        ids.clear();
        for (const std::string_view text : texts) tokenizer.encode(text, ids);
        benchmark::DoNotOptimize(ids.data());
      }
      state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * content.size()));
      state.counters["ids"] = static_cast<double>(ids.size());
    });
  };
  const std::vector<std::string_view> whole = {content};
  measure("text", whole);
  measure("lines", lines);
  benchmark::RunSpecifiedBenchmarks();
}
