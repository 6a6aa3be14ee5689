// Spans: none when tracing is off; when it is on, each thread's events in order and nested, the newest ones if a ring
// is full, and no allocations. Once a process has started to trace, it does not stop, so the tests form one sequence.
#include "lockstep/trace.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "test/support/heap_count.h"

namespace lockstep::trace {
namespace {

constexpr std::size_t kCapacity = 8;

RowEvents row(const std::string& name) {
  for (RowEvents& r : events())
    if (r.name == name) return r;
  ADD_FAILURE() << "no row " << name;
  return {};
}

TEST(Trace, RecordsEachThreadAndDropsTheOldestEvents) {
  { const Span unseen(Kind::step, "step", 1); }
  EXPECT_EQ(add_row("communication"), nullptr);
  record(nullptr, Kind::all_reduce, "bucket", {}, {});
  EXPECT_TRUE(events().empty());

  start(kCapacity);
  {
    const Span outer(Kind::step, "step", 7);
    const Span inner(Kind::forward, "a name that is longer than the 38 characters which an event has");
    { const Span innermost(Kind::wait, "data"); }
  }
  RowEvents main = row("main");
  ASSERT_EQ(main.events.size(), 3u);
  EXPECT_EQ(main.n_dropped, 0u);
  EXPECT_STREQ(main.events[0].name, "step");
  EXPECT_EQ(main.events[0].number, 7);
  EXPECT_STREQ(main.events[1].name, "a name that is longer than the 38 char");
  EXPECT_EQ(main.events[1].number, -1);
  EXPECT_STREQ(main.events[2].name, "data");
  EXPECT_EQ(main.events[2].kind, Kind::wait);
  for (std::size_t i = 1; i < main.events.size(); ++i) {
    EXPECT_GE(main.events[i].begin, main.events[i - 1].begin);
    EXPECT_LE(main.events[i].end, main.events[i - 1].end);
    EXPECT_LE(main.events[i].begin, main.events[i].end);
  }

  const HeapWatch watch;
  for (int i = 0; i < 20; ++i) const Span span(Kind::forward, "layer", i);
  EXPECT_EQ(watch.count().n_allocations, 0u);
  main = row("main");
  ASSERT_EQ(main.events.size(), kCapacity);
  EXPECT_EQ(main.n_dropped, 23 - kCapacity);
  for (std::size_t i = 0; i < kCapacity; ++i) EXPECT_EQ(main.events[i].number, 12 + static_cast<int>(i));

  // When a thread ends, another thread takes over its row; two threads at the same time have two rows.
  const auto read = [](int number) {
    const ThreadRow own("reader");
    const Span span(Kind::read, "read", number);
  };
  std::thread(read, 1).join();
  std::thread(read, 2).join();
  EXPECT_EQ(row("reader").events.size(), 2u);
  {
    const ThreadRow own("reader");
    std::thread(read, 3).join();
  }
  std::size_t n_readers = 0;
  for (const RowEvents& r : events()) n_readers += r.name == "reader";
  EXPECT_EQ(n_readers, 2u);

  std::thread([] { const Span span(Kind::read, "of a thread without a row"); }).join();

  Row* communication = add_row("communication");
  ASSERT_NE(communication, nullptr);
  const Clock::time_point begin = Clock::now();
  record(communication, Kind::wait, "other ranks", begin, begin + std::chrono::milliseconds(1));
  record(communication, Kind::all_reduce, "bucket 1 of 2", begin, begin + std::chrono::milliseconds(2));
  const RowEvents sums = row("communication");
  ASSERT_EQ(sums.events.size(), 2u);
  EXPECT_EQ(sums.events[0].kind, Kind::all_reduce) << "outer events come first";
}

}  // namespace
}  // namespace lockstep::trace
