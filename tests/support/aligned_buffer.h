// An array in memory of base/aligned_buffer.h.
//
// Thread safety: as a plain array. Ownership: frees on destruction; movable. Contents are zero after construction.
//
//   AlignedBuffer<float> x(n);
//   x.data()[0] = 1.0f;
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "base/aligned_buffer.h"

namespace gdn {

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws std::bad_alloc when memory is exhausted.
  explicit AlignedBuffer(size_t count) : data_(static_cast<T*>(AlignedAllocate(count * sizeof(T)))), size_(count) {
    if (count != 0 && data_ == nullptr) throw std::bad_alloc();
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  struct Free {
    void operator()(T* data) const { AlignedFree(data); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace gdn
