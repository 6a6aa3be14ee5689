// Counts what a part of a test allocates on the heap, in all threads and libraries of the process. Include it in one
// file of a test's executable: it replaces malloc and related functions by ones that count and call glibc's.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace lockstep {

struct HeapCount {
  std::size_t n_allocations = 0;
  std::size_t largest_bytes = 0;
  std::int64_t held_bytes = 0;  // allocated and not yet freed
};

namespace heap {
inline std::atomic<std::size_t> n_allocations{0}, largest_bytes{0};
inline std::atomic<std::int64_t> held_bytes{0};

inline void* count_allocation(void* block, std::size_t size_bytes) {
  if (block == nullptr) return block;
  ++n_allocations;
  held_bytes += static_cast<std::int64_t>(malloc_usable_size(block));
  std::size_t largest = largest_bytes;
  while (largest < size_bytes && !largest_bytes.compare_exchange_weak(largest, size_bytes)) {
  }
  return block;
}
inline void count_release(void* block) {
  if (block != nullptr) held_bytes -= static_cast<std::int64_t>(malloc_usable_size(block));
}
}  // namespace heap

/// From its construction to count().
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

constexpr bool heap_is_counted() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return true;
#endif
}

}  // namespace lockstep

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {
void* __libc_malloc(std::size_t size_bytes);
void* __libc_calloc(std::size_t n, std::size_t size_bytes);
void* __libc_realloc(void* block, std::size_t size_bytes);
void* __libc_memalign(std::size_t alignment, std::size_t size_bytes);
void __libc_free(void* block);

void* malloc(std::size_t size_bytes) { return lockstep::heap::count_allocation(__libc_malloc(size_bytes), size_bytes); }
void* calloc(std::size_t n, std::size_t size_bytes) {
  return lockstep::heap::count_allocation(__libc_calloc(n, size_bytes), n * size_bytes);
}
void* realloc(void* block, std::size_t size_bytes) {
  lockstep::heap::count_release(block);
  return lockstep::heap::count_allocation(__libc_realloc(block, size_bytes), size_bytes);
}
void* memalign(std::size_t alignment, std::size_t size_bytes) {
  return lockstep::heap::count_allocation(__libc_memalign(alignment, size_bytes), size_bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t size_bytes) { return memalign(alignment, size_bytes); }
int posix_memalign(void** block, std::size_t alignment, std::size_t size_bytes) {
  *block = memalign(alignment, size_bytes);
  return *block == nullptr ? ENOMEM : 0;
}
void free(void* block) {
  lockstep::heap::count_release(block);
  __libc_free(block);
}
}
#endif
