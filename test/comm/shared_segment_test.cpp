// Memory that ranks share: regions that need not begin at huge-page boundaries, and huge pages where the system has
// them.
#include "comm/shared_segment.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace lockstep::comm {
namespace {

constexpr std::size_t kPage = 4096, kHugePage = std::size_t{2} << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE

/// A figure for all memory of this process, such as "ShmemPmdMapped", its shared memory in huge pages.
std::size_t bytes_of(const std::string& figure) {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    unsigned long kib = 0;
    if (line.starts_with(figure + ":") && std::sscanf(line.c_str() + figure.size() + 1, "%lu", &kib) == 1)
      return kib * 1024;
  }
  return 0;
}
std::size_t huge_bytes() { return bytes_of("ShmemPmdMapped"); }

/// Whether Linux makes huge pages on request. Emulators report success without asking Linux.
bool has_huge_pages() {
  const std::size_t before = bytes_of("AnonHugePages");
  void* const memory =
      ::mmap(nullptr, 2 * kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return false;
  const auto address = (reinterpret_cast<std::uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage;
  const bool has =
      ::madvise(reinterpret_cast<void*>(address), kHugePage, kCollapse) == 0 && bytes_of("AnonHugePages") > before;
  ::munmap(memory, 2 * kHugePage);
  return has;
}

std::size_t allocated_bytes(const SharedSegment& segment) {
  struct stat status {};
  EXPECT_EQ(::fstat(segment.descriptor(), &status), 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

}  // namespace

TEST(SharedSegment, ReservesPartsOfAnyLength) {
  constexpr std::size_t kPart = 3 * kHugePage + 5 * kPage;
  const SharedSegment segment = SharedSegment::create(3 * kPart, "test");
  for (const std::size_t part : {1, 0, 2}) {
    const std::size_t before = allocated_bytes(segment);
    segment.reserve(part * kPart, kPart);
    EXPECT_EQ(allocated_bytes(segment) - before, kPart) << "part " << part;
  }
  EXPECT_TRUE(std::all_of(segment.data(), segment.data() + 3 * kPart, [](std::byte b) { return b == std::byte{0}; }));
  const SharedSegment other = SharedSegment::open(segment.path(), 3 * kPart, "test");
  segment.data()[kPart + 1] = std::byte{7};
  EXPECT_EQ(other.data()[kPart + 1], std::byte{7});
}

TEST(SharedSegment, HasHugePages) {
  if (!has_huge_pages()) GTEST_SKIP() << "no huge pages on request";
  const std::size_t before = huge_bytes();
  const SharedSegment segment = SharedSegment::create(8 * kHugePage, "test");
  segment.reserve(kPage, 7 * kHugePage);
  std::fill_n(segment.data() + kPage, 7 * kHugePage, std::byte{1});
  EXPECT_GT(huge_bytes(), before);  // Linux may refuse some of them if memory is fragmented
}

}  // namespace lockstep::comm
