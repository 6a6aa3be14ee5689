// Counts what a part of a test allocates on the heap, in all threads and libraries of the process. In a program that
// uses it, malloc and related functions are replaced by functions that count and then call glibc's (heap_count.cpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep {

struct HeapCount {
  std::size_t n_allocations = 0;
  std::size_t largest_bytes = 0;
  std::int64_t held_bytes = 0;  // allocated and not yet freed
};

namespace heap {
extern std::atomic<std::size_t> n_allocations, largest_bytes;
extern std::atomic<std::int64_t> held_bytes;
}  // namespace heap

/// Counts from its construction to count().
class HeapWatch {
 public:
  HeapWatch() : n_allocations_(heap::n_allocations), held_bytes_(heap::held_bytes) { heap::largest_bytes = 0; }
  HeapCount count() const {
    return {heap::n_allocations - n_allocations_, heap::largest_bytes, heap::held_bytes - held_bytes_};
  }

 private:
  std::size_t n_allocations_;
  std::int64_t held_bytes_;
};

/// False with sanitizers, which replace malloc themselves.
bool heap_is_counted();

}  // namespace lockstep
