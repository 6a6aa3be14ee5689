// Objects that threads borrow, such as decoders with their memory.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep {

/// Lends each thread its own object while it works. There are as many objects as there were simultaneous loans.
template <typename T>
class Pool {
 public:
  class Loan {
   public:
    Loan(Pool& pool, std::unique_ptr<T> object) : pool_(pool), object_(std::move(object)) {}
    ~Loan() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(object_));  // lend() has reserved the space
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    T* operator->() { return object_.get(); }
    T& operator*() { return *object_; }

   private:
    Pool& pool_;
    std::unique_ptr<T> object_;
  };

  Loan lend() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      free_.reserve(++n_objects_);
      return {*this, std::make_unique<T>()};
    }
    std::unique_ptr<T> object = std::move(free_.back());
    free_.pop_back();
    return {*this, std::move(object)};
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
  std::size_t n_objects_ = 0;
};

}  // namespace lockstep
