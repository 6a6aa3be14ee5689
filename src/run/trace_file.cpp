#include "run/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/file.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::run {
namespace {

using trace::Clock;
using Microseconds = std::chrono::duration<double, std::micro>;

/// All ranks together have up to about 4 million events, which Perfetto can still open. A ring of 65,536 holds about
/// 250 steps of ResNet-50.
std::size_t events_per_row(int ranks) { return std::clamp<std::size_t>(4'000'000 / ranks, 4096, 65536); }

template <typename T>
std::vector<T> gather(World& world, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all;
  for (const std::string& bytes : world.all_gather({reinterpret_cast<const char*>(&mine), sizeof(T)}))
    std::memcpy(&all.emplace_back(), bytes.data(), sizeof(T));
  return all;
}

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

/// Appends to a file in large blocks.
class Output {
 public:
  explicit Output(std::string path) : path_(std::move(path)), file_(open_file(path_, O_WRONLY | O_CREAT | O_TRUNC)) {}

  template <typename... Args>
  void write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    if (text_.size() >= kFlushBytes) flush();
  }
  void flush() {
    write_fully(file_.get(), text_, path_);
    text_.clear();
  }

 private:
  static constexpr std::size_t kFlushBytes = std::size_t{1} << 20;
  std::string path_, text_;
  Descriptor file_;
};

}  // namespace

ClockOffset measure_clock_offset(World& world) {
  constexpr int kRounds = 24;
  struct Times {
    int node = 0;
    Clock::time_point came[kRounds], left[kRounds];
  } mine;
  mine.node = world.node();
  for (int round = 0; round < kRounds; ++round) {
    mine.came[round] = Clock::now();
    world.barrier();
    mine.left[round] = Clock::now();
  }
  const std::vector<Times> all = gather(world, mine);
  const Times& first = all[0];
  ClockOffset result{.at = Clock::now()};
  if (mine.node == first.node) return result;
  Microseconds lower = Microseconds::min(), upper = Microseconds::max();
  for (const Times& times : all) {
    if (times.node != mine.node) continue;  // ranks of a node share a clock
    for (int round = 0; round < kRounds; ++round) {
      lower = std::max<Microseconds>(lower, times.came[round] - first.left[round]);
      upper = std::min<Microseconds>(upper, times.left[round] - first.came[round]);
    }
  }
  result.offset = (lower + upper) / 2;
  result.uncertainty = (upper - lower) / 2;
  return result;
}

/// What rank 0 needs to know about each rank's part.
struct TraceFile::Part {
  bool is_written = false;
  std::uint64_t n_events = 0, n_dropped = 0;
  std::int64_t first_step = -1, last_step = -1;
  double uncertainty_us = 0;
};

TraceFile::TraceFile(World& world, std::string directory)
    : world_(world), directory_(std::move(directory)), at_start_(measure_clock_offset(world)), begin_(Clock::now()) {
  trace::start(events_per_row(world.size()));
}

std::string TraceFile::part_path(int rank) const { return fmt::format("{}/trace.rank-{}.part", directory_, rank); }

void TraceFile::write() const {
  const std::vector<trace::RowEvents> rows = trace::events();
  const ClockOffset now = measure_clock_offset(world_);
  const std::vector<Part> parts = gather(world_, write_part(rows, now));
  const bool is_whole = std::ranges::all_of(parts, &Part::is_written);
  if (world_.rank() == 0 && is_whole) merge(parts);
  world_.barrier();  // parts must exist until they are read
  std::error_code ignored;
  std::filesystem::remove(part_path(world_.rank()), ignored);
}

TraceFile::Part TraceFile::write_part(const std::vector<trace::RowEvents>& rows, const ClockOffset& now) const {
  // On rank 0's clock, in microseconds after its start.
  const Microseconds passed = now.at - at_start_.at;
  const double drift = (now.offset - at_start_.offset) / passed;
  const auto on_rank_0 = [&](Clock::time_point time) {
    const Microseconds since_start = time - at_start_.at;
    return Microseconds(time.time_since_epoch()) - at_start_.offset - drift * since_start;
  };
  const Microseconds zero = std::ranges::min(gather(world_, on_rank_0(begin_)));

  Part part;
  part.uncertainty_us = std::max(at_start_.uncertainty, now.uncertainty).count();
  const int rank = world_.rank();
  try {
    Output out(part_path(rank));
    out.write(R"({{"name":"process_name","ph":"M","pid":{0},"args":{{"name":{1}}}}},
{{"name":"process_sort_index","ph":"M","pid":{0},"args":{{"sort_index":{0}}}}})",
              rank, quoted(fmt::format("rank {} ({})", rank, world_.host())));
    int row = 0;
    for (const trace::RowEvents& r : rows) {
      out.write(",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}", rank,
                row, quoted(r.name));
      for (const trace::Event& e : r.events) {
        const std::string name = e.number < 0 ? std::string(e.name) : fmt::format("{} {}", e.name, e.number);
        const Microseconds begin = on_rank_0(e.begin) - zero, end = on_rank_0(e.end) - zero;
        // Both ends are rounded to the nanosecond and the length follows from them, so that nested spans stay nested.
        const double ts = std::round(begin.count() * 1e3) / 1e3, until = std::round(end.count() * 1e3) / 1e3;
        out.write(",\n{{\"name\":{},\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}}",
                  quoted(name), trace::name(e.kind), rank, row, ts, until - ts);
        if (e.kind != trace::Kind::step) continue;
        part.first_step = part.first_step < 0 ? e.number : std::min(part.first_step, e.number);
        part.last_step = std::max(part.last_step, e.number);
      }
      part.n_events += r.events.size();
      part.n_dropped += r.n_dropped;
      ++row;
    }
    out.flush();
    part.is_written = true;
  } catch (const Error& error) {
    log::warning("trace.json will not be written: {}", error.what());
  }
  return part;
}

void TraceFile::merge(const std::vector<Part>& parts) const {
  Part all = parts[0];
  for (const Part& part : std::span(parts).subspan(1)) {
    all.uncertainty_us = std::max(all.uncertainty_us, part.uncertainty_us);
    all.first_step = std::max(all.first_step, part.first_step);
    all.n_events += part.n_events;
    all.n_dropped += part.n_dropped;
  }
  const std::string path = directory_ + "/trace.json";
  try {
    PendingFile pending(path, PartialName::fixed);
    Output out(pending.partial_path());
    const nlohmann::json about = {{"ranks", parts.size()},
                                  {"events", all.n_events},
                                  {"dropped_older_events", all.n_dropped},
                                  {"first_step", all.first_step},
                                  {"last_step", all.last_step},
                                  {"clock_uncertainty_microseconds", all.uncertainty_us}};
    out.write("{{\"displayTimeUnit\":\"ms\",\n\"otherData\":{},\n\"traceEvents\":[\n", about.dump());
    for (std::size_t rank = 0; rank < parts.size(); ++rank)
      out.write("{}{}", rank > 0 ? ",\n" : "", read_file(part_path(static_cast<int>(rank))));
    out.write("\n]}}\n");
    out.flush();
    pending.publish();
  } catch (const Error& error) {
    log::warning("trace.json was not written: {}", error.what());
    return;
  }
  log::info("{}: {} events of steps {} to {}, clocks within {:.1f} us{}; open it in https://ui.perfetto.dev", path,
            all.n_events, all.first_step, all.last_step, all.uncertainty_us,
            all.n_dropped > 0 ? fmt::format(", {} older events dropped", all.n_dropped) : "");
}

}  // namespace lockstep::run
