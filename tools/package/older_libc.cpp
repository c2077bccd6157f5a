// Stand-ins for symbols newer than the C library that the packages' program is linked with. Only that program has them.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

// libstdc++ asks it whether atomic operations may be left out: never.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}

// std::random_device reads it.
extern "C" __attribute__((visibility("hidden"))) uint32_t arc4random() noexcept {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value)
    if (errno != EINTR) std::abort();
  return value;
}

namespace {

struct Search {
  uintptr_t address;
  dl_find_object* found;
};

// Visits one loaded object; 1 where the address lies in it.
int visit_object(dl_phdr_info* info, size_t, void* data) {
  const Search& search = *static_cast<Search*>(data);
  bool is_inside = false;
  void* eh_frame = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_GNU_EH_FRAME) eh_frame = reinterpret_cast<void*>(begin);
    if (header.p_type != PT_LOAD || search.address < begin || search.address >= begin + header.p_memsz) continue;
    is_inside = true;
    search.found->dlfo_map_start = reinterpret_cast<void*>(begin);
    search.found->dlfo_map_end = reinterpret_cast<void*>(begin + header.p_memsz);
  }
  search.found->dlfo_eh_frame = eh_frame;
  return is_inside;
}

}  // namespace

// GCC's unwinder finds a frame's tables by it. 0: found; -1: no loaded object holds the address.
extern "C" __attribute__((visibility("hidden"))) int _dl_find_object(void* address, dl_find_object* result) noexcept {
  *result = {};
  Search search{reinterpret_cast<uintptr_t>(address), result};
  return dl_iterate_phdr(visit_object, &search) == 1 && result->dlfo_eh_frame ? 0 : -1;
}
