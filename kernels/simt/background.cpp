#include "kernels/simt/background.h"

#include <chrono>

#include "kernels/simt/stream.h"

namespace llmb::simt {

Background::Background() {
  static_cast<void>(run_any());  // what it needs is made before this, and so lives longer
  thread_ = std::thread([this] {
    while (!stops_)
      if (!run_any()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
}

Background::~Background() {
  stops_ = true;
  thread_.join();
}

}  // namespace llmb::simt
