// One object for each thread, made at its first use and deleted when the thread ends: as thread_local, but where
// there is no memory for it, that is std::bad_alloc. (For a thread_local with a destructor the C library ends the
// process.)
#pragma once

#include <pthread.h>

#include <memory>
#include <new>

#include "base/check.h"

namespace llmb {

// Each place in the code that calls per_thread<T>([] {}) has a T of its own, since each lambda is a type of its own.
template <typename T, typename Place>
T& per_thread(Place) {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    LLMB_CHECK(pthread_key_create(&made, [](void* own) { delete static_cast<T*>(own); }) == 0);
    return made;
  }();
  void* own = pthread_getspecific(key);
  if (own == nullptr) {
    auto made = std::make_unique<T>();
    if (pthread_setspecific(key, made.get()) != 0) throw std::bad_alloc();
    own = made.release();
  }
  return *static_cast<T*>(own);
}

}  // namespace llmb
